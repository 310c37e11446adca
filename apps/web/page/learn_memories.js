// @ts-check
// What stays of the past when it is not kept token by token: linear attention's state and Infini-attention's memory.
import { ask } from "./api.js";
import { field, make, show } from "./dom.js";
import { matrix } from "./matrix.js";
import { t } from "./text.js";

/** @type {import("./app.js").View} */
export function memories(main, settings, keep) {
  const state = {
    step: Number(settings.get("step") ?? 3), decay: Number(settings.get("decay") ?? 1), seed: Number(settings.get("seed") ?? 1),
    infini_step: Number(settings.get("infini_step") ?? 9), segment: Number(settings.get("segment") ?? 4), update: settings.get("update") ?? "linear", gate: Number(settings.get("gate") ?? 0),
  };
  const linear = make("div", { class: "card", id: "linear" });
  const infini = make("div", { class: "card", id: "infini" });
  main.append(make("h1", {}, t("linear_title")), make("p", {}, t("linear_text")), linear, make("h1", {}, t("infini_title")), make("p", {}, t("infini_text")), infini);
  const slider = (/** @type {string} */ label, /** @type {number} */ count, /** @type {number} */ value, /** @type {(v: number) => void} */ changed) => {
    const input = make("input", { type: "range", min: 1, max: count, value: value + 1, "aria-label": label, oninput: () => { text.textContent = `${label} ${input.value}`; changed(Number(input.value) - 1); } });
    const text = make("output", {}, `${label} ${value + 1}`);
    return make("div", { class: "row" }, input, text);
  };

  async function draw_linear() {
    const answer = await ask("/api/linear", { tokens: 12, decay: state.decay, seed: state.seed });
    const area = make("div", { class: "matrices" });
    const show_step = () => {
      const now = answer.steps[state.step];
      area.replaceChildren(matrix([now.k], { caption: "k" }), matrix([now.v], { caption: "v" }), matrix(now.s, { caption: `S = ${show(state.decay)} S + φ(k) vᵀ` }), matrix([now.z], { caption: "z" }), matrix([now.q], { caption: "q" }), matrix([now.out], { caption: t("output") }));
      keep(state);
    };
    linear.replaceChildren(
      make("div", { class: "controls" }, field(t("decay"), "number", state.decay, (v) => { state.decay = v; draw_linear(); }, { min: 0, max: 1, step: 0.05 }), field(t("seed"), "number", state.seed, (v) => { state.seed = v; draw_linear(); draw_infini(); }, { min: 0, max: 9999 })),
      slider(t("token"), answer.tokens, state.step, (v) => { state.step = v; show_step(); }), area,
      make("p", { class: "quiet" }, t("linear_cost")));
    show_step();
  }

  async function draw_infini() {
    const answer = await ask("/api/infini", { tokens: 16, segment: state.segment, update: state.update, gate: state.gate, seed: state.seed });
    const area = make("div", { class: "matrices" });
    const note = make("p", { class: "quiet" });
    const show_step = () => {
      const now = answer.steps[state.infini_step];
      note.textContent = `${t("segments_folded")}: ${now.segments}; ${t("tokens_pending")}: ${now.pending}`;
      area.replaceChildren(matrix(now.m, { caption: "M" }), matrix([now.z], { caption: "z" }), matrix([now.out], { caption: t("output") }));
      keep(state);
    };
    infini.replaceChildren(
      make("div", { class: "controls" },
        field(t("segment"), "number", state.segment, (v) => { state.segment = v; draw_infini(); }, { min: 1, max: 16 }),
        field(t("update"), [["linear", t("update_linear")], ["delta", t("update_delta")]], state.update, (v) => { state.update = v; draw_infini(); }),
        field(t("gate"), "number", state.gate, (v) => { state.gate = v; draw_infini(); }, { min: -20, max: 20, step: 0.5 })),
      slider(t("token"), answer.tokens, state.infini_step, (v) => { state.infini_step = v; show_step(); }), note, area);
    show_step();
    main.dataset.ready = "memories";
  }
  draw_linear();
  draw_infini();
}
