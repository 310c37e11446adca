// @ts-check
// One head: a map that zooms down to single weights, and each weight explained.
import { ask } from "./api.js";
import { make, show } from "./dom.js";
import { paint } from "./look.js";
import { t } from "./text.js";

const largest_text = 14;

/** Puts a file into the person's downloads. @param {string} name @param {string} address */
function save(name, address) {
  const link = make("a", { href: address, download: name });
  link.click();
}

/** The same map as shapes. @param {any} tile @param {string} title */
function drawing(tile, title) {
  const rows = tile.map.length, columns = tile.map[0].length, side = 8;
  const cells = tile.map.flatMap((/** @type {number[]} */ row, /** @type {number} */ i) => row.map((weight, j) =>
    weight > 0 ? `<rect x="${j * side}" y="${i * side}" width="${side}" height="${side}" fill="#d67010" fill-opacity="${Math.sqrt(Math.min(1, weight)).toFixed(3)}"/>` : ""));
  const name = title.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${columns * side} ${rows * side}"><title>${name}</title>${cells.join("")}</svg>`;
}

const short = (/** @type {string} */ text) => JSON.stringify(text).slice(1, -1).slice(0, largest_text);

/**
 * @param {HTMLElement} place
 * @param {any} answer  of /api/look
 * @param {Record<string, any>} state  kind, layer, head; top, left, size of what is shown; row, column of the chosen weight
 * @param {() => void} keep
 */
export async function head_view(place, answer, state, keep) {
  const cross = state.kind === "cross";
  const row_texts = state.kind === "self" || state.kind === "encoder" ? answer.texts : answer.target;
  const column_texts = cross ? answer.texts : row_texts;
  const name = `${t("layer")} ${state.layer + 1} · ${t("head")} ${state.head + 1}`;
  const base = { ids: answer.ids, kind: state.kind, layer: state.layer, head: state.head };
  const canvas = make("canvas", { id: "map", tabindex: 0, role: "img", "aria-label": name });
  const where = make("p", { class: "quiet", id: "where" });
  const explain = make("div", { id: "cell", "aria-live": "polite" });
  const rows_side = make("div", { class: "side-rows" }), columns_side = make("div", { class: "side-columns" });
  /** @type {any} */
  let tile = null;

  async function draw() {
    const size = state.size ?? Math.max(row_texts.length, column_texts.length);
    const top = Math.min(state.top ?? 0, row_texts.length - 1), left = Math.min(state.left ?? 0, column_texts.length - 1);
    tile = await ask("/api/look/map", { ...base, top, left, height: Math.min(size, row_texts.length - top), width: Math.min(size, column_texts.length - left), cells: 96 });
    paint(canvas, tile.map);
    canvas.style.width = `${Math.min(620, Math.max(160, 26 * tile.map[0].length))}px`;
    where.textContent = `${t("rows")} ${top + 1}–${top + tile.height} / ${tile.rows}, ${t("columns")} ${left + 1}–${left + tile.width} / ${tile.columns}`;
    const few = 32;
    rows_side.replaceChildren(...(tile.height <= few ? row_texts.slice(top, top + tile.height).map((/** @type {string} */ x, /** @type {number} */ n) => make("span", {}, `${top + n + 1} ${short(x)}`)) : []));
    columns_side.replaceChildren(...(tile.width <= few ? column_texts.slice(left, left + tile.width).map((/** @type {string} */ x) => make("span", {}, short(x))) : []));
    place.dataset.ready = `${state.kind}.${state.layer}.${state.head}.${size}`;
    keep();
  }

  async function cell() {
    if (state.row === null || state.column === null) return;
    const c = await ask("/api/look/cell", { ...base, row: state.row, column: state.column });
    const order = c.profile.map((/** @type {number} */ w, /** @type {number} */ j) => [w, j]).sort((/** @type {number[]} */ a, /** @type {number[]} */ b) => b[0] - a[0]).slice(0, 8);
    explain.replaceChildren(
      make("h3", {}, `${JSON.stringify(c.row_text)} (${c.row + 1}) → ${JSON.stringify(c.column_text)} (${c.column + 1})`),
      make("p", {}, `${t("weight")}: `, make("b", { id: "weight", "data-value": c.weight }, show(c.weight)), ` · ${t("rank")} ${c.rank} / ${c.seen} · ${t("order_entropy")} ${show(c.row_entropy)}`),
      make("p", { class: "formula" }, c.weight > 0 ? `w = e^s / Σ e^s;  s − s_max = ln(${show(c.weight)} / ${show(c.largest)}) = ${show(c.below_best)}` : t("cell_hidden")),
      make("p", {}, t("row_sees")),
      make("ul", { class: "profile" }, order.filter((/** @type {number[]} */ x) => x[0] > 0).map(([w, j]) => {
        const bar = make("span", { class: "bar" });
        bar.style.width = `${(100 * w).toFixed(2)}%`;
        return make("li", {}, make("span", { class: "formula" }, `${j + 1} ${short(column_texts[j])} ${show(w)}`), bar);
      })));
    keep();
  }

  function zoom(/** @type {number} */ factor, /** @type {number} */ row, /** @type {number} */ column) {
    const most = Math.max(row_texts.length, column_texts.length);
    const size = Math.max(4, Math.min(most, Math.round((state.size ?? most) * factor)));
    const begin = (/** @type {number} */ at, /** @type {number} */ count) => Math.max(0, Math.min(Math.round(at - size / 2), count - Math.min(size, count)));
    Object.assign(state, { size: size === most ? null : size, top: begin(row, row_texts.length), left: begin(column, column_texts.length) });
    return draw();
  }
  const middle = () => [tile.top + tile.height / 2, tile.left + tile.width / 2];

  canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    const at = (/** @type {number} */ share, /** @type {number} */ begin, /** @type {number} */ count) => begin + Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    const row = at((event.clientY - box.top) / box.height, tile.top, tile.height);
    const column = at((event.clientX - box.left) / box.width, tile.left, tile.width);
    Object.assign(state, { row, column });
    cell();
    if (tile.height > tile.map.length || tile.width > tile.map[0].length) zoom(0.25, row, column);
  });
  canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = /** @type {Record<string, number[]>} */ ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Enter: [0, 0] })[event.key];
    if (event.key === "+" || event.key === "-") {
      const [row, column] = middle();
      zoom(event.key === "+" ? 0.5 : 2, row, column);
    } else if (step) {
      event.preventDefault();
      state.row = Math.max(0, Math.min(row_texts.length - 1, (state.row ?? tile.top) + step[0]));
      state.column = Math.max(0, Math.min(column_texts.length - 1, (state.column ?? tile.left) + step[1]));
      cell();
    }
  });
  const button = (/** @type {string} */ id, /** @type {string} */ text, /** @type {() => void} */ action) => make("button", { type: "button", id, onclick: action }, text);
  place.replaceChildren(make("section", { class: "card" },
    make("h2", {}, `${cross ? t("kind_cross") + " " : ""}${name}`),
    make("div", { class: "row" },
      button("zoom-in", t("zoom_in"), () => { const [r, c] = middle(); zoom(0.5, r, c); }), button("zoom-out", t("zoom_out"), () => { const [r, c] = middle(); zoom(2, r, c); }),
      button("save-png", "PNG", () => save("heed-head.png", canvas.toDataURL("image/png"))),
      button("save-svg", "SVG", () => save("heed-head.svg", "data:image/svg+xml;charset=utf-8," + encodeURIComponent(drawing(tile, name))))),
    where,
    make("div", { class: "head-parts" }, make("div", { class: "map-parts" }, rows_side, make("div", {}, columns_side, canvas)), explain)));
  try {
    await draw();
    await cell();
  } catch (error) {
    place.replaceChildren(make("div", { class: "card error", role: "alert" }, String(/** @type {Error} */ (error).message)));
  }
}
