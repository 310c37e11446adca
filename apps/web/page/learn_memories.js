// @ts-check
// What stays of the past when it is not kept token by token: linear attention's state and Infini-attention's memory.
import { ask } from "./api.js";
import { failure, field, make, show } from "./dom.js";
import { matrix } from "./matrix.js";
import { t } from "./text.js";

/** elu(x) + 1, what linear attention makes of queries and keys. @param {number} x */
const phi = (x) => (x > 0 ? x + 1 : Math.exp(x));
/** @param {number[]} a @param {number[]} b */
const dot = (a, b) => a.reduce((sum, x, n) => sum + x * b[n], 0);
const zeros = (/** @type {number[][]} */ m) => m.map((row) => row.map(() => 0));

/** @type {import("./app.js").View} */
export function memories(main, settings, keep) {
  const state = {
    step: Number(settings.get("step") ?? 3), decay: Number(settings.get("decay") ?? 1), seed: Number(settings.get("seed") ?? 1),
    infini_step: Number(settings.get("infini_step") ?? 9), segment: Number(settings.get("segment") ?? 4), update: settings.get("update") ?? "linear", gate: Number(settings.get("gate") ?? 0),
  };
  const linear = make("div", { class: "card", id: "linear" });
  const infini = make("div", { class: "card", id: "infini" });
  const panel = make("div", { class: "explain", "aria-live": "polite", role: "status" }, t("choose_a_cell"));
  main.append(make("h1", {}, t("linear_title")), make("p", {}, t("linear_text")), linear, make("h1", {}, t("infini_title")), make("p", {}, t("infini_text")), infini, panel);
  const say = (/** @type {Node | string} */ text) => panel.replaceChildren(text);
  /** A matrix whose cells say how they came about. @param {(number | null)[][]} values @param {string} caption @param {(i: number, j: number) => string} reason */
  const explained = (values, caption, reason) => matrix(values, { caption, say, explain: (i, j) => make("code", {}, reason(i, j)) });
  /** Numbers that come from the seed. @param {number[]} row @param {string} name */
  const given = (row, name) => explained([row], name, (i, j) => `${name}[${j + 1}] = ${show(row[j])}: ${t("random_number")}; φ = ${show(phi(row[j]))}`);
  const slider = (/** @type {string} */ label, /** @type {number} */ count, /** @type {number} */ value, /** @type {(v: number) => void} */ changed) => {
    const input = make("input", { type: "range", class: "long", min: 1, max: count, value: value + 1, "aria-label": label, oninput: () => { text.textContent = `${label} ${input.value} / ${count}`; changed(Number(input.value) - 1); } });
    const text = make("output", {}, `${label} ${value + 1} / ${count}`);
    return make("div", { class: "row" }, input, text);
  };

  async function draw_linear() {
    const answer = await ask("/api/linear", { tokens: 12, decay: state.decay, seed: state.seed });
    const area = make("div", { class: "matrices" });
    const decayed = (/** @type {number} */ x) => (state.decay === 1 ? show(x) : `${show(state.decay)}·${show(x)}`);
    const show_step = () => {
      const now = answer.steps[state.step], before = answer.steps[state.step - 1] ?? { s: zeros(now.s), z: now.z.map(() => 0) };
      const fk = now.k.map(phi), fq = now.q.map(phi);
      area.replaceChildren(given(now.k, "k"), given(now.v, "v"), given(now.q, "q"),
        explained(now.s, `S = ${state.decay === 1 ? "" : show(state.decay) + " "}S + φ(k) vᵀ`, (i, j) => `${decayed(before.s[i][j])} + ${show(fk[i])}·${show(now.v[j])} = ${show(now.s[i][j])}`),
        explained([now.z], `z = ${state.decay === 1 ? "" : show(state.decay) + " "}z + φ(k)`, (i, j) => `${decayed(before.z[j])} + ${show(fk[j])} = ${show(now.z[j])}`),
        explained([now.out], `${t("output")} = φ(q) S / φ(q)·z`, (i, j) => `(${fq.map((/** @type {number} */ f, /** @type {number} */ n) => `${show(f)}·${show(now.s[n][j])}`).join(" + ")}) / ${show(dot(fq, now.z))} = ${show(now.out[j])}`));
      keep(state);
    };
    linear.replaceChildren(
      make("div", { class: "controls" }, field(t("decay"), "number", state.decay, (v) => { state.decay = v; draw_linear().catch(fail(linear)); }, { min: 0, max: 1, step: 0.05 }), field(t("seed"), "number", state.seed, (v) => { state.seed = v; draw_linear().catch(fail(linear)); draw_infini().catch(fail(infini)); }, { min: 0, max: 9999 })),
      slider(t("token"), answer.tokens, state.step, (v) => { state.step = v; show_step(); }), area,
      make("p", { class: "quiet" }, t("linear_cost")));
    show_step();
  }

  async function draw_infini() {
    const answer = await ask("/api/infini", { tokens: 16, segment: state.segment, update: state.update, gate: state.gate, seed: state.seed });
    const area = make("div", { class: "matrices" });
    const strip = make("div", { class: "strip", role: "img" });
    const show_step = () => {
      const steps = answer.steps, now = steps[state.infini_step], before = steps[state.infini_step - 1] ?? { m: zeros(now.m), z: now.z.map(() => 0), segments: 0 };
      const folded = steps.slice(0, now.segments * state.segment);
      const near = state.infini_step - before.segments * state.segment + 1;
      const share = 1 / (1 + Math.exp(-state.gate)), fq = now.q.map(phi), weight = dot(fq, before.z);
      /** What the memory says to this token's query: as it was before the segment ended. @param {number} j */
      const remembered = (j) => (weight > 0 ? dot(fq, before.m.map((/** @type {number[]} */ row) => row[j])) / weight : 0);
      const list = (/** @type {string[]} */ parts) => (parts.length ? parts.join(" + ") : "0");
      strip.replaceChildren(...steps.map((/** @type {any} */ _, /** @type {number} */ n) => make("span", { class: n > state.infini_step ? "later" : n < now.segments * state.segment ? "folded" : "exact", title: `${t("token")} ${n + 1}` }, String(n + 1))));
      strip.setAttribute("aria-label", `${t("segments_folded")}: ${now.segments}; ${t("tokens_pending")}: ${now.pending}`);
      area.replaceChildren(
        make("p", { class: "legend" }, make("span", { class: "key cool" }, `${t("segments_folded")}: ${now.segments}`), make("span", { class: "key warm" }, `${t("tokens_pending")}: ${now.pending}`)),
        explained(now.m, "M", (i, j) => (state.update === "linear"
          ? `${list(folded.map((/** @type {any} */ s) => `${show(phi(s.k[i]))}·${show(s.v[j])}`))} = ${show(now.m[i][j])}`
          : `Σ φ(k)[${i + 1}] (v − φ(k) M / φ(k)·z)[${j + 1}] = ${show(now.m[i][j])} (${t("delta_text")})`)),
        explained([now.z], "z", (i, j) => `${list(folded.map((/** @type {any} */ s) => show(phi(s.k[j]))))} = ${show(now.z[j])}`),
        given(now.q, "q"),
        explained([now.out], t("output"), (i, j) => {
          if (before.segments === 0) return `${show(now.out[j])}: ${t("from_near")}: ${near}; ${t("memory_empty")}`;
          const near_part = share < 1 ? (now.out[j] - share * remembered(j)) / (1 - share) : 0;
          return `${show(share)} · ${show(remembered(j))} (${t("from_memory")}) + ${show(1 - share)} · ${show(near_part)} (${t("from_near")}: ${near}) = ${show(now.out[j])}`;
        }));
      keep(state);
    };
    infini.replaceChildren(
      make("div", { class: "controls" },
        field(t("segment"), "number", state.segment, (v) => { state.segment = v; draw_infini().catch(fail(infini)); }, { min: 1, max: 16 }),
        field(t("update"), [["linear", t("update_linear")], ["delta", t("update_delta")]], state.update, (v) => { state.update = v; draw_infini().catch(fail(infini)); }),
        field(t("gate"), "number", state.gate, (v) => { state.gate = v; draw_infini().catch(fail(infini)); }, { min: -20, max: 20, step: 0.5 })),
      slider(t("token"), answer.tokens, state.infini_step, (v) => { state.infini_step = v; show_step(); }), strip, area);
    show_step();
    main.dataset.ready = "memories";
  }
  const fail = (/** @type {HTMLElement} */ place) => (/** @type {unknown} */ error) => place.replaceChildren(failure(error));
  draw_linear().catch(fail(linear));
  draw_infini().catch(fail(infini));
}
