// @ts-check
// Who sees whom: a pattern as text, drawn and costed.
import { ask } from "./api.js";
import { failure, field, make } from "./dom.js";
import { t } from "./text.js";

const samples = [
  "causal", "causal & window(7, 0)", "causal & (window(7, 0) | prefix(2))", "window(4, 4) | global(0)", "causal & strided(4)", "causal & dilated(-1, 0, 3)",
  "causal & fixed(8, 2)", "document(0*10, 1*12, 2*10) & causal", "random_blocks(4, 8, 2, seed 1) | window(4, 4)", "per_head(causal, everything)",
];

/** @type {import("./app.js").View} */
export function patterns(main, settings, keep) {
  const state = { text: settings.get("text") ?? samples[2], tokens: Number(settings.get("tokens") ?? 32), length: Number(settings.get("length") ?? 4096), head: Number(settings.get("head") ?? 0) };
  const controls = make("div", { class: "card" });
  const result = make("div", { class: "card", id: "pattern" });
  main.append(make("h1", {}, t("patterns_title")), make("p", {}, t("patterns_text")), controls, result);
  async function draw() {
    keep(state);
    controls.replaceChildren(
      make("div", { class: "controls" },
        field(t("pattern"), "text", state.text, (v) => { state.text = v; draw(); }, { id: "pattern-text", size: 44, maxlength: 2000 }),
        field(t("tokens"), "number", state.tokens, (v) => { state.tokens = v; draw(); }, { min: 1, max: 128 }),
        field(t("head"), "number", state.head, (v) => { state.head = v; draw(); }, { min: 0, max: 63 }),
        field(t("cost_at"), "number", state.length, (v) => { state.length = v; draw(); }, { min: 1, max: 32768 })),
      make("p", { class: "samples" }, samples.map((sample) => make("button", { type: "button", "aria-pressed": String(sample === state.text), onclick: () => { state.text = sample; draw(); } }, sample))));
    let answer;
    try {
      answer = await ask("/api/pattern", state);
    } catch (error) {
      result.replaceChildren(failure(error));
      return;
    }
    const n = answer.tokens;
    const cell = Math.max(3, Math.min(16, Math.floor(512 / n)));
    const canvas = make("canvas", { width: n * cell, height: n * cell, role: "img", "aria-label": answer.text });
    const paint = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    answer.rows.forEach((/** @type {string} */ row, /** @type {number} */ i) => [...row].forEach((bit, j) => {
      paint.fillStyle = bit === "1" ? `rgb(${style.getPropertyValue("--warm")})` : style.getPropertyValue("--line");
      paint.fillRect(j * cell, i * cell, cell - 1, cell - 1);
    }));
    const { none, some, all } = answer.blocks;
    const total = none + some + all;
    const percent = (/** @type {number} */ part, /** @type {number} */ whole) => `${((100 * part) / whole).toFixed(1)} %`;
    const figure = (/** @type {string} */ label, /** @type {number} */ part, /** @type {number} */ whole, /** @type {string} */ note) => {
      const bar = make("span", { class: "bar" });
      bar.style.width = percent(part, whole).replace(" ", "");
      return make("div", {}, make("div", {}, label), make("div", { class: "big" }, percent(part, whole), make("span", { class: "quiet" }, ` ${part.toLocaleString("en")} / ${whole.toLocaleString("en")}`)), make("span", { class: "track" }, bar), make("p", { class: "quiet small" }, note));
    };
    canvas.title = t("hover_pattern");
    canvas.addEventListener("mousemove", (/** @type {MouseEvent} */ event) => {
      const box = canvas.getBoundingClientRect();
      const i = Math.min(n - 1, Math.floor(((event.clientY - box.top) / box.height) * n)), j = Math.min(n - 1, Math.floor(((event.clientX - box.left) / box.width) * n));
      if (i >= 0 && j >= 0) canvas.title = `${t("query")} ${i + 1}, ${t("key")} ${j + 1}: ${answer.rows[i][j] === "1" ? t("visible") : t("hidden")}`;
    });
    result.replaceChildren(make("h2", {}, answer.text), make("div", { class: "pattern-parts" }, make("div", { class: "scroll" }, canvas),
      make("div", {}, make("p", { class: "legend" }, make("span", { class: "key warm" }, t("visible")), make("span", { class: "key" }, t("may_not_see"))),
        figure(t("seen"), answer.seen, n * n, `${n} × ${n} ${t("tokens_small")}`),
        figure(`${t("blocks_computed")} ${answer.length.toLocaleString("en")}`, some + all, total, `${t("of_them_masked")} ${some.toLocaleString("en")}. ${t("blocks_note")}`))));
    result.dataset.ready = "1";
  }
  draw();
}
