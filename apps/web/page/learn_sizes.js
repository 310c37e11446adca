// @ts-check
// How large a model is: where its parameters sit, what a token costs, what must lie in memory.
import { ask } from "./api.js";
import { failure, field, make, show_bytes } from "./dom.js";
import { t } from "./text.js";

/** 8030261248 -> "8.03 billion" @param {number} count */
function show_count(count) {
  for (const [size, name] of /** @type {[number, string][]} */ ([[1e12, "trillion"], [1e9, "billion"], [1e6, "million"], [1e3, "thousand"]])) {
    if (count >= size) return `${(count / size).toPrecision(3)} ${t(name)}`;
  }
  return String(count);
}

/** Parts of a whole as bars, the largest as wide as the card. @param {string} title @param {[string, number][]} parts @param {(n: number) => string} show @param {string} note */
function breakdown(title, parts, show, note) {
  const total = parts.reduce((sum, part) => sum + part[1], 0), most = Math.max(...parts.map((part) => part[1]), 1);
  return make("section", { class: "card" }, make("h2", {}, title), make("div", { class: "big" }, show(total)),
    make("ul", { class: "parts" }, parts.filter((part) => part[1] > 0).map(([name, size]) => {
      const bar = make("span", { class: "bar" });
      bar.style.width = `${(100 * size) / most}%`;
      return make("li", {}, make("span", {}, name), make("span", { class: "quiet" }, `${show(size)} · ${((100 * size) / total).toFixed(1)} %`), make("span", { class: "track" }, bar));
    })), make("p", { class: "quiet small" }, note));
}

/** @type {import("./app.js").View} */
export function sizes(main, settings, keep) {
  const state = { model: settings.get("model") ?? "llama-3-8b", tokens: Number(settings.get("tokens") ?? 8192), texts: Number(settings.get("texts") ?? 1), bytes: Number(settings.get("bytes") ?? 2) };
  const controls = make("div", { class: "card controls" });
  const result = make("div", { class: "columns wide-columns", id: "sizes" });
  main.append(make("h1", {}, t("sizes_title")), make("p", {}, t("sizes_text")), controls, result);
  async function draw() {
    keep(state);
    let answer;
    try {
      answer = await ask("/api/sizes", state);
    } catch (error) {
      result.replaceChildren(failure(error));
      return;
    }
    const change = (/** @type {"model" | "tokens" | "texts" | "bytes"} */ name) => (/** @type {any} */ value) => { Object.assign(state, { [name]: name === "model" ? value : Number(value) }); draw(); };
    controls.replaceChildren(
      field(t("model"), answer.models.map((/** @type {string} */ m) => [m, m]), state.model, change("model"), { id: "model" }),
      field(t("tokens_each"), "number", state.tokens, change("tokens"), { min: 1, max: 16777216 }),
      field(t("texts_at_once"), "number", state.texts, change("texts"), { min: 1, max: 65536 }),
      field(t("number_format"), [[4, "32 bit"], [2, "16 bit"], [1, "8 bit"]], state.bytes, change("bytes")));
    const p = answer.parameters, f = answer.flops;
    result.replaceChildren(
      breakdown(t("sizes_parameters"), [[t("part_embedding"), p.embedding + p.positions], [t("part_attention"), p.attention], [t("part_ffn"), p.ffn], [t("part_norms"), p.norms], [t("part_head"), p.head]], show_count,
        `${answer.layers} ${t("layers")} · ${answer.heads} ${t("queries")} · d_model ${answer.d_model}${p.active < p.total ? ` · ${t("active")}: ${show_count(p.active)}` : ""}`),
      breakdown(t("sizes_work"), [[t("part_projections"), f.projections], [t("part_scores"), f.scores], [t("part_ffn"), f.ffn], [t("part_head"), f.head]], show_count,
        t("sizes_work_note")),
      breakdown(t("sizes_memory"), [[t("part_weights"), answer.weight_bytes], [t("part_cache"), answer.cache_bytes]], show_bytes,
        t("sizes_memory_note")));
    result.dataset.ready = state.model;
  }
  draw();
}
