// @ts-check
// One head: a map that zooms from the whole text down to single weights, and each weight explained.
import { make, show } from "./dom.js";
import { cell_view } from "./look_cell.js";
import { drawing, largest_of, paint, save, short } from "./look_draw.js";
import { t } from "./text.js";

const most_cells = 128, fewest_cells = 8;

/**
 * @param {HTMLElement} place
 * @param {import("./look_run.js").Run} run
 * @param {Record<string, any>} state  kind, layer, head; step, cells, top, left of what is shown; row, column of the chosen weight
 * @param {{keep: () => void, suffix: string, title: string}} how  suffix of ids and title, where two heads stand side by side
 */
export async function head_view(place, run, state, how) {
  const { rows: row_texts, columns: column_texts } = run.texts(state.kind);
  const cross = state.kind === "cross", suffix = how.suffix;
  const name = `${t("layer")} ${state.layer + 1} · ${t("head")} ${state.head + 1}`;
  const base = { kind: state.kind, layer: state.layer, head: state.head };
  const canvas = make("canvas", { id: "map" + suffix, tabindex: 0, role: "img", "aria-label": `${name}. ${t("map_keys")}` });
  const where = make("p", { class: "quiet", id: "where" + suffix });
  const explain = make("div", { id: "cell" + suffix, "aria-live": "polite" });
  const rows_side = make("div", { class: "side-rows" }), columns_side = make("div", { class: "side-columns" });
  /** @type {any} */
  let tile = null;
  let asked = new AbortController();

  /** Token texts beside the map: all where there is room, else some with their number. @param {string[]} texts @param {number} begin @param {number} count */
  function labels(texts, begin, count) {
    const few = 32, every = count <= few && tile.step === 1 ? 1 : Math.ceil(count / 8);
    const list = [];
    for (let n = 0; n < count; n += every) list.push(make("span", {}, `${begin + n * tile.step + 1} ${short(texts[begin + n * tile.step])}`));
    return list;
  }

  function fail(/** @type {unknown} */ error) {
    if (error instanceof DOMException && error.name === "AbortError") return;
    place.replaceChildren(make("div", { class: "card error", role: "alert" }, String(/** @type {Error} */ (error).message)));
  }

  async function draw() {
    asked.abort();
    asked = new AbortController();
    tile = await run.ask("map", { ...base, step: state.step ?? undefined, top: Math.min(state.top ?? 0, row_texts.length - 1), left: Math.min(state.left ?? 0, column_texts.length - 1), cells: state.cells ?? most_cells }, asked.signal);
    const height = tile.map.length, width = tile.map[0].length;
    const full = largest_of(tile.map);
    paint(canvas, tile.map, full);
    canvas.style.width = `${Math.min(600, Math.max(160, 26 * width))}px`;
    const last = (/** @type {number} */ begin, /** @type {number} */ cells, /** @type {number} */ all) => Math.min(all, begin + cells * tile.step);
    where.textContent = `${t("rows")} ${tile.top + 1}–${last(tile.top, height, tile.rows)} / ${tile.rows}, ${t("columns")} ${tile.left + 1}–${last(tile.left, width, tile.columns)} / ${tile.columns}` +
      (tile.step > 1 ? ` · ${t("a_square_is")} ${tile.step} × ${tile.step}` : "") + ` · ${t("full_colour")} ${show(full)}`;
    rows_side.replaceChildren(...labels(row_texts, tile.top, height));
    columns_side.replaceChildren(...labels(column_texts, tile.left, width));
    place.dataset.ready = `${state.kind}.${state.layer}.${state.head}.${tile.step}.${tile.top}.${tile.left}`;
    how.keep();
  }

  async function cell() {
    if (state.row === null || state.column === null || state.row >= row_texts.length || state.column >= column_texts.length) return;
    cell_view(explain, await run.ask("cell", { ...base, row: state.row, column: state.column }), suffix);
    how.keep();
  }

  /** Twice as near or as far, around a weight. @param {boolean} nearer @param {number} row @param {number} column */
  function zoom(nearer, row, column) {
    let step = tile.step, cells = state.cells ?? most_cells;
    if (nearer && step > 1) step /= 2;
    else if (nearer) cells = Math.max(fewest_cells, cells / 2);
    else if (cells < most_cells) cells *= 2;
    else step = Math.min(tile.whole_step, step * 2);
    const begin = (/** @type {number} */ at, /** @type {number} */ count) => Math.max(0, Math.min(Math.floor((at - (cells * step) / 2) / step) * step, count - cells * step));
    const whole = step === tile.whole_step && cells === most_cells;
    Object.assign(state, whole ? { step: null, cells: null, top: null, left: null } : { step, cells: cells === most_cells ? null : cells, top: begin(row, row_texts.length), left: begin(column, column_texts.length) });
    return draw().catch(fail);
  }
  const middle = () => [tile.top + (tile.map.length * tile.step) / 2, tile.left + (tile.map[0].length * tile.step) / 2];
  const around = (/** @type {boolean} */ nearer) => { const [row, column] = middle(); return zoom(nearer, row, column); };

  /** The square under the mouse. @param {MouseEvent} event */
  function square(event) {
    const box = canvas.getBoundingClientRect();
    const at = (/** @type {number} */ share, /** @type {number} */ begin, /** @type {number} */ count, /** @type {number} */ all) =>
      Math.min(all - 1, begin + tile.step * Math.min(count - 1, Math.max(0, Math.floor(share * count))));
    return [at((event.clientY - box.top) / box.height, tile.top, tile.map.length, tile.rows), at((event.clientX - box.left) / box.width, tile.left, tile.map[0].length, tile.columns)];
  }
  canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    if (!tile) return;
    const [row, column] = square(event);
    if (tile.step > 1) return void zoom(true, row + tile.step / 2, column + tile.step / 2);
    Object.assign(state, { row, column });
    cell().catch(fail);
  });
  canvas.addEventListener("wheel", (/** @type {WheelEvent} */ event) => {
    if (!tile || !event.ctrlKey) return;
    event.preventDefault();
    const [row, column] = square(event);
    zoom(event.deltaY < 0, row, column);
  }, { passive: false });
  canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = /** @type {Record<string, number[]>} */ ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Enter: [0, 0] })[event.key];
    if (!tile || (!step && event.key !== "+" && event.key !== "-")) return;
    event.preventDefault();
    if (!step) return void around(event.key === "+");
    state.row = Math.max(0, Math.min(row_texts.length - 1, (state.row ?? tile.top) + step[0] * tile.step));
    state.column = Math.max(0, Math.min(column_texts.length - 1, (state.column ?? tile.left) + step[1] * tile.step));
    const inside = state.row >= tile.top && state.row < tile.top + tile.map.length * tile.step && state.column >= tile.left && state.column < tile.left + tile.map[0].length * tile.step;
    if (!inside) {
      const size = (state.cells ?? most_cells) * tile.step;
      const begin = (/** @type {number} */ at, /** @type {number} */ count) => Math.max(0, Math.min(Math.floor((at - size / 2) / tile.step) * tile.step, count - size));
      Object.assign(state, { step: tile.step, top: begin(state.row, row_texts.length), left: begin(state.column, column_texts.length) });
    }
    (inside ? Promise.resolve() : draw()).then(cell).catch(fail);
  });
  const button = (/** @type {string} */ id, /** @type {string} */ text, /** @type {() => void} */ action) => make("button", { type: "button", id: id + suffix, onclick: action }, text);
  place.replaceChildren(make("section", { class: "card" },
    make("h2", {}, `${cross ? t("kind_cross") + " " : ""}${name}`, how.title ? ` · ${how.title}` : ""),
    make("div", { class: "row" },
      button("zoom-in", t("zoom_in"), () => around(true)), button("zoom-out", t("zoom_out"), () => around(false)),
      button("save-png", "PNG", () => save("heed-head.png", canvas.toDataURL("image/png"))),
      button("save-svg", "SVG", () => save("heed-head.svg", "data:image/svg+xml;charset=utf-8," + encodeURIComponent(drawing(tile.map, name))))),
    where,
    make("div", { class: "head-parts" }, make("div", { class: "map-parts" }, rows_side, make("div", {}, columns_side, canvas)), explain)));
  try {
    await draw();
    await cell();
  } catch (error) { fail(error); }
}
