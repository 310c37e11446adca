// @ts-check
// MHA, GQA, MQA and MLA of one model side by side: what each keeps of a token.
import { ask } from "./api.js";
import { failure, field, make, show_bytes } from "./dom.js";
import { t } from "./text.js";

const most_drawn = 8;

/** Heads as rows of squares: queries above, what is kept below, lines between who reads what. */
function picture(/** @type {any} */ kind) {
  const heads = Math.min(most_drawn, kind.heads);
  const kept = kind.latent ? 1 : Math.max(1, Math.round((kind.kv_heads / kind.heads) * heads));
  const x = (/** @type {number} */ n, /** @type {number} */ count) => 6 + ((n + 0.5) * 228) / count;
  const svg = make("svg", { viewBox: "0 0 240 124", class: "wide", role: "img", "aria-label": `${kind.kind}: ${kind.heads} ${t("queries")}, ${kind.latent ? t("kept_latent") : `${t("kept_keys")}: ${kind.kv_heads}`}` });
  for (let h = 0; h < heads; ++h) {
    const target = x(Math.floor((h * kept) / heads), kept);
    svg.append(make("line", { x1: x(h, heads), y1: 38, x2: target, y2: 82, stroke: "currentColor", "stroke-opacity": 0.35 }));
    svg.append(make("rect", { x: x(h, heads) - 9, y: 20, width: 18, height: 18, rx: 4, fill: "rgb(var(--warm))" }));
  }
  for (let g = 0; g < kept; ++g) {
    const width = kind.latent ? 110 : 18;
    svg.append(make("rect", { x: x(g, kept) - width / 2, y: 82, width, height: 18, rx: 4, fill: "rgb(var(--cool))" }));
  }
  svg.append(make("text", { x: 2, y: 12 }, `${kind.heads} ${t("queries")}`), make("text", { x: 2, y: 118 }, kind.latent ? t("kept_latent") : `${t("kept_keys")}: ${kind.kv_heads}`));
  return svg;
}

/** Where the bytes come from. */
function sum_text(/** @type {any} */ kind) {
  const tail = `${kind.layers} ${t("layers")} × 2 ${t("bytes_each")}`;
  if (kind.latent) return `(${kind.latent} ${t("latent_numbers")} + ${kind.rope_size} ${t("rotated_numbers")}) × ${tail}`;
  return `${kind.kv_heads} ${t("heads_kept")} × (${kind.head_size} + ${kind.head_size}) ${t("numbers_of_both")} × ${tail}`;
}

/** @type {import("./app.js").View} */
export function kinds(main, settings, keep) {
  const state = { model: settings.get("model") ?? "llama-3-8b", tokens: Number(settings.get("tokens") ?? 8192) };
  const controls = make("div", { class: "card controls" });
  const result = make("div", { class: "columns", id: "kinds" });
  main.append(make("h1", {}, t("kinds_title")), make("p", {}, t("kinds_text")), controls, result);
  async function draw() {
    keep(state);
    let answer;
    try {
      answer = await ask("/api/kinds", state);
    } catch (error) {
      result.replaceChildren(failure(error));
      return;
    }
    controls.replaceChildren(
      field(t("model"), answer.models.map((/** @type {string} */ m) => [m, m]), state.model, (v) => { state.model = v; draw(); }, { id: "model" }),
      field(t("tokens"), "number", state.tokens, (v) => { state.tokens = v; draw(); }, { min: 1, max: 16777216 }));
    const most = Math.max(...answer.kinds.map((/** @type {any} */ k) => k.bytes));
    result.replaceChildren(...answer.kinds.map((/** @type {any} */ kind) => {
      const bar = make("div", { class: "bar" });
      bar.style.width = `${(100 * kind.bytes) / most}%`;
      return make("section", { class: "card" },
        make("h2", {}, kind.kind, kind.own ? make("span", { class: "tag" }, t("as_published")) : null),
        picture(kind),
        make("div", { class: "big" }, show_bytes(kind.bytes_per_token), make("span", { class: "quiet" }, ` ${t("per_token")}`)),
        make("div", { class: "track" }, bar),
        make("p", {}, `${show_bytes(kind.bytes)} ${t("for_tokens")} ${state.tokens.toLocaleString("en")}`),
        make("p", { class: "quiet small" }, sum_text(kind)),
        kind.heads > most_drawn ? make("p", { class: "quiet small" }, `${t("drawn")}: ${most_drawn} / ${kind.heads}`) : null);
    }));
    result.dataset.ready = "1";
  }
  draw();
}
