// @ts-check
// A matrix whose every cell can be asked where its number comes from, by mouse or by keyboard.
import { make, show } from "./dom.js";

/**
 * @typedef {object} MatrixOptions
 * @property {string} [caption]
 * @property {string} [row]   name of a row, "token"
 * @property {string} [column]
 * @property {"signed" | "share"} [kind]  shares are 0 to 1
 * @property {(i: number, j: number) => Node | string} [explain]
 * @property {(text: Node | string) => void} [say]
 */

/**
 * @param {(number | null)[][]} values  null is hidden: minus infinity
 * @param {MatrixOptions} options
 */
export function matrix(values, options = {}) {
  const finite = values.flat().filter((x) => x !== null).map((x) => Math.abs(/** @type {number} */ (x)));
  const largest = options.kind === "share" ? 1 : Math.max(1e-12, ...finite);
  const columns = values[0]?.length ?? 0;
  const body = make("tbody");
  const cells = values.map((row, i) => {
    const line = make("tr", {}, make("th", { scope: "row" }, `${options.row ?? ""} ${i + 1}`.trim()));
    const made = row.map((value, j) => {
      const cell = make("td", { tabindex: i === 0 && j === 0 ? 0 : -1, class: value === null ? "hidden" : false }, show(value));
      if (value !== null) {
        const strength = Math.min(1, Math.abs(value) / largest);
        const colour = options.kind === "share" || value > 0 ? "--warm" : "--cool";
        cell.style.background = `rgb(var(${colour}) / ${(strength * 0.72).toFixed(3)})`;
        cell.title = String(value);
      }
      line.append(cell);
      return cell;
    });
    body.append(line);
    return made;
  });
  /** @type {HTMLElement | null} */
  let chosen = null;
  const choose = (/** @type {number} */ i, /** @type {number} */ j) => {
    const cell = cells[i]?.[j];
    if (!cell) return;
    document.querySelectorAll("td.chosen").forEach((other) => other.classList.remove("chosen"));
    if (chosen) chosen.tabIndex = -1;
    chosen = cell;
    cell.tabIndex = 0;
    cell.classList.add("chosen");
    if (options.explain && options.say) options.say(options.explain(i, j));
  };
  const place = (/** @type {EventTarget | null} */ target) => {
    for (let i = 0; i < cells.length; ++i) {
      const j = cells[i].indexOf(/** @type {any} */ (target));
      if (j >= 0) return [i, j];
    }
    return null;
  };
  body.addEventListener("click", (/** @type {Event} */ event) => {
    const at = place(event.target);
    if (at) choose(at[0], at[1]);
  });
  body.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const at = place(event.target);
    const step = /** @type {Record<string, number[]>} */ ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Enter: [0, 0], " ": [0, 0] })[event.key];
    if (!at || !step) return;
    event.preventDefault();
    const next = cells[at[0] + step[0]]?.[at[1] + step[1]];
    if (!next) return;
    next.focus();
    choose(at[0] + step[0], at[1] + step[1]);
  });
  const head = make("tr", {}, make("th"), Array.from({ length: columns }, (_, j) => make("th", { scope: "col" }, `${options.column ?? ""} ${j + 1}`.trim())));
  const figure = make("figure", {},
    options.caption ? make("figcaption", {}, options.caption) : null,
    make("div", { class: "scroll" }, make("table", { class: "matrix" }, make("thead", {}, head), body)));
  figure.cells = cells;  // for whoever marks some of them
  return figure;
}
