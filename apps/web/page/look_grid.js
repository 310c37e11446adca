// @ts-check
// All heads of a run as small maps, what comes next, and what the model would have said behind each layer.
import { field, make, show, visible } from "./dom.js";
import { paint } from "./look_draw.js";
import { name_of } from "./look_run.js";
import { t } from "./text.js";

export const orders = ["layer", "entropy", "distance", "first", "previous", "duplicate", "induction"];
const percent = (/** @type {number} */ p) => `${(100 * p).toFixed(1)} %`;

/** "Layer 2 · head 3", with the kind where there are several. @param {import("./look_run.js").Head} head */
export const title_of = (head) => `${head.kind === "self" ? "" : t("kind_" + head.kind) + " "}${t("layer")} ${head.layer + 1} · ${t("head_small")} ${head.head + 1}`;

/**
 * @param {import("./look_run.js").Run} run
 * @param {{order: string, off: string[], chosen: string, open: (head: any) => void, toggle?: (name: string) => void}} how
 */
export function head_grid(run, how) {
  const list = [...run.answer.heads];
  if (how.order !== "layer") list.sort((a, b) => b[how.order] - a[how.order]);
  if (list.length === 0) return make("p", { class: "quiet" }, t("no_weights"));
  return make("div", { class: "grid-heads" }, list.map((head) => {
    const canvas = make("canvas", { "aria-hidden": "true" });
    paint(canvas, head.map);
    const name = name_of(head), off = how.off.includes(name);
    const title = title_of(head);
    const order = how.order === "layer" ? "entropy" : how.order;
    const value = `${t("value_" + order)} ${show(head[order])}`;
    const all = orders.slice(1).map((name) => `${t("value_" + name)}: ${show(head[name])}`).join("\n");
    return make("div", { class: off ? "thumb-box off" : "thumb-box" },
      make("button", { type: "button", class: "thumb", "data-name": name, "aria-pressed": String(name === how.chosen), title: all, onclick: () => how.open(head) }, canvas, make("span", {}, title), make("span", { class: "quiet" }, value)),
      how.toggle ? make("button", { type: "button", class: "switch", "data-switch": name, "aria-pressed": String(off), "aria-label": `${t("switch_off")}: ${title}`, onclick: () => how.toggle?.(name) }, off ? t("is_off") : t("switch_off")) : null);
  }));
}

/** The most probable next tokens of one or two runs. @param {import("./look_run.js").Run} run @param {string} title */
export function next_tokens(run, title) {
  if (!run.answer.next.length) return null;
  return make("div", { class: "next-list" }, make("h3", {}, title), make("ol", {}, run.answer.next.map((/** @type {any} */ n) => {
    const bar = make("span", { class: "bar" });
    bar.style.width = percent(n.p).replace(" ", "");
    return make("li", {}, make("span", { class: "token" }, visible(n.text)), make("span", {}, percent(n.p)), make("span", { class: "track" }, bar));
  })));
}

/**
 * The logit lens: behind each layer, what the head makes of one token.
 * @param {HTMLElement} place
 * @param {import("./look_run.js").Run} run
 * @param {Record<string, any>} state  lens: the token
 * @param {() => void} keep
 */
export async function lens_view(place, run, state, keep) {
  const answer = await run.ask("lens", state.lens === null ? {} : { row: state.lens });
  const first = answer.first_row + 1, last = (run.answer.target.length || run.answer.texts.length);
  place.replaceChildren(make("section", { class: "card" },
    make("h2", {}, t("lens_title")), make("p", {}, t("lens_text")),
    make("div", { class: "controls" }, field(`${t("token")} (${first}–${last})`, "number", answer.row + 1, (v) => { state.lens = v - 1; keep(); lens_view(place, run, state, keep); }, { id: "lens-row", min: first, max: last })),
    make("p", {}, `${t("lens_at")} `, make("code", {}, visible(answer.text))),
    make("div", { class: "scroll" }, make("table", { class: "lens", id: "lens" }, answer.layers.map((/** @type {any} */ layer) =>
      make("tr", {}, make("th", { scope: "row" }, layer.layer === 0 ? t("embedding") : `${t("after_layer")} ${layer.layer}`),
        layer.best.map((/** @type {any} */ best) => {
          const cell = make("td", {}, make("span", { class: "token" }, visible(best.text)), ` ${percent(best.p)}`);
          cell.style.background = `rgb(var(--warm) / ${(0.6 * Math.sqrt(best.p)).toFixed(3)})`;
          return cell;
        })))))));
}
