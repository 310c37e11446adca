// @ts-check
// One head: a map that zooms from the whole text down to single weights, and each weight explained.
import { failure, make, show, visible } from "./dom.js";
import { cell_view } from "./look_cell.js";
import { drawing, largest_of, paint, save, short } from "./look_draw.js";
import { title_of } from "./look_grid.js";
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
  const suffix = how.suffix;
  const name = title_of({ kind: state.kind, layer: state.layer, head: state.head });
  const base = { kind: state.kind, layer: state.layer, head: state.head };
  const canvas = make("canvas", { id: "map" + suffix, tabindex: 0, role: "img", "aria-label": `${name}. ${t("map_keys")}` });
  const where = make("p", { class: "quiet", id: "where" + suffix });
  const explain = make("div", { id: "cell" + suffix, "aria-live": "polite" }, make("p", { class: "quiet" }, t("choose_a_weight")));
  const mark = make("div", { class: "map-mark", hidden: true });
  const ramp_end = make("span", {}), under = make("p", { class: "under" });
  const rows_side = make("div", { class: "side-rows" }), columns_side = make("div", { class: "side-columns" });
  /** @type {any} */
  let tile = null;
  let asked = new AbortController();

  /** Token texts beside the map: all where there is room, else some with their number. @param {string[]} texts @param {number} begin @param {number} count */
  function labels(texts, begin, count) {
    const few = 44, every = count <= few && tile.step === 1 ? 1 : Math.ceil(count / 8);
    const list = [];
    for (let n = 0; n < count; n += every) list.push(make("span", {}, `${begin + n * tile.step + 1} ${short(texts[begin + n * tile.step])}`));
    return list;
  }

  function fail(/** @type {unknown} */ error) {
    if (error instanceof DOMException && error.name === "AbortError") return;
    place.replaceChildren(failure(error));
  }

  async function draw() {
    asked.abort();
    asked = new AbortController();
    tile = await run.ask("map", { ...base, step: state.step ?? undefined, top: Math.min(state.top ?? 0, row_texts.length - 1), left: Math.min(state.left ?? 0, column_texts.length - 1), cells: state.cells ?? most_cells }, asked.signal);
    const height = tile.map.length, width = tile.map[0].length;
    const full = largest_of(tile.map);
    paint(canvas, tile.map, full);
    const room = Math.max(180, place.clientWidth - 140);  // beside the tokens' names
    canvas.style.width = `${Math.min(520, room, Math.max(340, 26 * width))}px`;
    const last = (/** @type {number} */ begin, /** @type {number} */ cells, /** @type {number} */ all) => Math.min(all, begin + cells * tile.step);
    where.textContent = `${t("rows")} ${tile.top + 1}–${last(tile.top, height, tile.rows)} / ${tile.rows}, ${t("columns")} ${tile.left + 1}–${last(tile.left, width, tile.columns)} / ${tile.columns}` +
      (tile.step > 1 ? ` · ${t("a_square_is")} ${tile.step} × ${tile.step} ${t("weights_small")}` : "");
    ramp_end.textContent = show(full);
    draw_mark();
    rows_side.replaceChildren(...labels(row_texts, tile.top, height));
    columns_side.replaceChildren(...labels(column_texts, tile.left, width));
    place.dataset.ready = `${state.kind}.${state.layer}.${state.head}.${tile.step}.${tile.top}.${tile.left}`;
    how.keep();
  }

  /** A frame around the chosen weight, where it is in view. */
  function draw_mark() {
    const height = tile.map.length, width = tile.map[0].length;
    const r = Math.floor((state.row - tile.top) / tile.step), c = Math.floor((state.column - tile.left) / tile.step);
    mark.hidden = state.row === null || state.column === null || r < 0 || r >= height || c < 0 || c >= width;
    Object.assign(mark.style, { left: `${(100 * c) / width}%`, top: `${(100 * r) / height}%`, width: `${100 / width}%`, height: `${100 / height}%` });
  }

  async function cell() {
    if (state.row === null || state.column === null || state.row >= row_texts.length || state.column >= column_texts.length) return;
    draw_mark();
    cell_view(explain, await run.ask("cell", { ...base, row: state.row, column: state.column }), column_texts, suffix);
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
  canvas.addEventListener("mousemove", (/** @type {MouseEvent} */ event) => {
    if (!tile) return;
    const [row, column] = square(event);
    const weight = tile.map[Math.floor((row - tile.top) / tile.step)]?.[Math.floor((column - tile.left) / tile.step)];
    const token = (/** @type {string[]} */ texts, /** @type {number} */ at) => `${visible(texts[at])} (${at + 1})`;
    under.textContent = `${token(row_texts, row)} → ${token(column_texts, column)}: ${tile.step > 1 ? `${t("up_to")} ` : ""}${show(weight ?? 0)}`;
  });
  canvas.addEventListener("mouseleave", () => { under.textContent = ""; });
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
    make("h2", {}, name, how.title ? ` · ${how.title}` : ""),
    make("div", { class: "row" },
      button("zoom-in", t("zoom_in"), () => around(true)), button("zoom-out", t("zoom_out"), () => around(false)),
      button("save-png", t("save_png"), () => save("heed-head.png", canvas.toDataURL("image/png"))),
      button("save-svg", t("save_svg"), () => save("heed-head.svg", "data:image/svg+xml;charset=utf-8," + encodeURIComponent(drawing(tile.map, name))))),
    where, make("p", { class: "quiet small" }, t("map_keys")),
    make("div", { class: "head-parts" }, make("div", {}, make("div", { class: "map-parts" }, rows_side, make("div", {}, columns_side, make("div", { class: "map-box" }, canvas, mark))),
      make("p", { class: "scale" }, "0", make("span", { class: "ramp" }), ramp_end, make("span", {}, `· ${t("map_reading")}`)), under), explain)));
  try {
    await draw();
    await cell();
  } catch (error) { fail(error); }
}
