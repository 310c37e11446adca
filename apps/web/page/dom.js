// @ts-check
// Small helpers to make elements. Text always goes in as text, never as markup.

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * make("p", {class: "quiet"}, "text", make("b", {}, "bold"))
 * @param {string} tag
 * @param {Record<string, any>} [properties]  "on..." are listeners, the rest attributes; false and null are left out
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function make(tag, properties = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "circle", "rect", "text", "polyline", "title"].includes(tag) && properties.svg !== false;
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined || name === "svg") continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** A number as people read it: four digits, no exponent where none is needed. @param {number | null} value */
export function show(value) {
  if (value === null) return "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.0005 || size >= 100000) return value.toExponential(2).replace("-", "−");
  return value.toPrecision(size < 1 ? 3 : 4).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "").replace("-", "−");
}

/** 1536 -> "1.5 KiB" @param {number} bytes */
export function show_bytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return (bytes >= 100 || unit === 0 ? bytes.toFixed(0) : bytes.toFixed(1)) + " " + units[unit];
}

/** Why nothing is shown, for the place where it would stand. @param {unknown} error */
export function failure(error) {
  return make("div", { class: "card error", role: "alert" }, String(/** @type {Error} */ (error).message ?? error));
}

/** A token as people see it: spaces and line ends become visible. @param {string} text */
export function visible(text) {
  return text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f]/g, (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

/**
 * A form field with its label. `kind`: "number", "tick", "text", or a list of [value, text].
 * @param {string} label
 * @param {any} kind
 * @param {any} value
 * @param {(value: any) => void} changed
 * @param {Record<string, any>} [properties]  of the input; "empty": what an empty number means, where it may be empty
 */
export function field(label, kind, value, changed, properties = {}) {
  if (kind === "tick") {
    const input = make("input", { type: "checkbox", checked: value, onchange: () => changed(input.checked), ...properties });
    return make("label", { class: "tick" }, input, label);
  }
  if (Array.isArray(kind)) {
    const select = make("select", { onchange: () => changed(select.value), ...properties },
      kind.map(([name, text]) => make("option", { value: name, selected: String(name) === String(value) }, text)));
    return make("label", {}, label, select);
  }
  const { empty, ...rest } = properties;
  const input = make("input", {
    type: kind, value: String(value), required: kind === "number" && empty === undefined,
    onchange: () => {
      if (kind !== "number") return changed(input.value);
      if (input.value === "" && empty !== undefined && !input.validity.badInput) return changed(empty);
      if (input.checkValidity()) changed(Number(input.value));
      else input.reportValidity();
    },
    ...rest,
  });
  return make("label", {}, label, input);
}
