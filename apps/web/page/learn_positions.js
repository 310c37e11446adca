// @ts-check
// RoPE as rotating pairs, the ways to stretch it, and ALiBi's slopes.
import { ask } from "./api.js";
import { field, make, show } from "./dom.js";
import { t } from "./text.js";

/** @type {import("./app.js").View} */
export function positions(main, settings, keep) {
  const state = {
    pairs: Number(settings.get("pairs") ?? 16), theta: Number(settings.get("theta") ?? 10000),
    scaling: settings.get("scaling") ?? "none", factor: Number(settings.get("factor") ?? 4),
    trained: Number(settings.get("trained") ?? 2048), length: Number(settings.get("length") ?? 8192),
    position: Number(settings.get("position") ?? 12), heads: Number(settings.get("heads") ?? 8),
  };
  const controls = make("div", { class: "card controls" });
  const clocks = make("div", { class: "card", id: "clocks" });
  const chart = make("div", { class: "card", id: "waves" });
  const alibi = make("div", { class: "card", id: "alibi" });
  main.append(make("h1", {}, t("positions_title")), make("p", {}, t("positions_text")), controls, clocks, chart, make("h1", {}, "ALiBi"), make("p", {}, t("alibi_text")), alibi);
  /** @type {any} */
  let answer = null;
  const change = (/** @type {string} */ name, number = true) => (/** @type {any} */ v) => { Object.assign(state, { [name]: number ? Number(v) : v }); draw(); };

  function draw_clocks() {
    const slider = make("input", { type: "range", min: 0, max: state.length, value: state.position, id: "position", "aria-label": t("position"),
      oninput: () => { state.position = Number(slider.value); keep(state); dials(); } });
    const label = make("output", { class: "quiet" });
    const area = make("div", { class: "row" });
    clocks.replaceChildren(make("h2", {}, t("clocks_title")), make("p", { class: "quiet" }, t("clocks_text")), make("div", { class: "row" }, slider, label), area);
    slider.style.width = "min(100%, 560px)";
    function dials() {
      label.textContent = `${t("position")} ${state.position}`;
      const shown = Math.min(16, state.pairs);
      area.replaceChildren(...Array.from({ length: shown }, (_, n) => {
        const i = Math.floor((n * state.pairs) / shown);
        const dial = make("svg", { viewBox: "-26 -26 52 66", width: 60, role: "img", "aria-label": `${t("pair")} ${i}` });
        dial.append(make("circle", { r: 22, fill: "none", stroke: "currentColor", "stroke-opacity": 0.3 }));
        for (const [list, colour] of [[answer.plain, "--cool"], [answer.frequencies, "--warm"]]) {
          const angle = state.position * list[i];
          dial.append(make("line", { x1: 0, y1: 0, x2: 21 * Math.cos(angle), y2: -21 * Math.sin(angle), stroke: `rgb(var(${colour}))`, "stroke-width": 3, "stroke-linecap": "round" }));
        }
        dial.append(make("text", { x: 0, y: 37, "text-anchor": "middle" }, `${t("pair")} ${i}`));
        return dial;
      }));
    }
    dials();
  }

  function draw_chart() {
    const width = 680, height = 240, left = 56, bottom = 30;
    const waves = (/** @type {number[]} */ list) => list.map((f) => (f > 0 ? (2 * Math.PI) / f : Infinity));
    const plain = waves(answer.plain), now = waves(answer.frequencies);
    const top = Math.log10(Math.max(...[...plain, ...now].filter(Number.isFinite), state.length) * 1.3);
    const x = (/** @type {number} */ i) => left + ((width - left - 12) * i) / Math.max(1, state.pairs - 1);
    const y = (/** @type {number} */ wave) => 12 + (height - bottom - 12) * (1 - Math.log10(Math.max(1, wave)) / top);
    const line = (/** @type {number[]} */ list, /** @type {string} */ colour) => make("polyline", { fill: "none", stroke: `rgb(var(${colour}))`, "stroke-width": 2.5,
      points: list.map((wave, i) => `${x(i)},${y(Number.isFinite(wave) ? wave : 10 ** top)}`).join(" ") });
    const level = (/** @type {number} */ value, /** @type {string} */ text) => [
      make("line", { x1: left, x2: width - 12, y1: y(value), y2: y(value), stroke: "currentColor", "stroke-opacity": 0.4, "stroke-dasharray": "4 4" }),
      make("text", { x: left + 4, y: y(value) - 4 }, text)];
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, class: "wide", role: "img", "aria-label": t("waves_title") });
    for (let power = 0; power <= top; ++power) svg.append(make("text", { x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, power < 5 ? String(10 ** power) : `10^${power}`));
    svg.append(...level(state.trained, t("trained")), ...(state.length !== state.trained ? level(state.length, t("length")) : []), line(plain, "--cool"), line(now, "--warm"),
      make("text", { x: (width + left) / 2, y: height - 6, "text-anchor": "middle" }, t("pair")));
    chart.replaceChildren(make("h2", {}, t("waves_title")), make("p", { class: "quiet" }, t("waves_text"), answer.attention_factor !== 1 ? ` ${t("attention_factor")}: ${show(answer.attention_factor)}.` : ""), svg);
  }

  async function draw_alibi() {
    const { slopes } = await ask("/api/alibi", { heads: state.heads });
    const width = 680, height = 200;
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, class: "wide", role: "img", "aria-label": "ALiBi" });
    slopes.forEach((/** @type {number} */ slope, /** @type {number} */ h) => {
      const points = Array.from({ length: 33 }, (_, d) => `${40 + (d * (width - 60)) / 32},${12 + Math.min(height - 40, slope * d * 20)}`).join(" ");
      const line = make("polyline", { points, fill: "none", stroke: "rgb(var(--warm))", "stroke-opacity": 1 - (0.7 * h) / slopes.length, "stroke-width": 2 });
      line.append(make("title", {}, `${t("head")} ${h + 1}: ${show(slope)}`));
      svg.append(line);
    });
    svg.append(make("text", { x: 36, y: 16, "text-anchor": "end" }, "0"), make("text", { x: width / 2, y: height - 6, "text-anchor": "middle" }, t("distance")));
    alibi.replaceChildren(make("div", { class: "controls" }, field(t("heads"), "number", state.heads, (v) => { state.heads = v; keep(state); draw_alibi(); }, { min: 1, max: 256 })), svg,
      make("p", { class: "quiet" }, `${t("slopes")}: ${slopes.slice(0, 16).map(show).join(", ")}${slopes.length > 16 ? ", …" : ""}`));
  }

  async function draw() {
    keep(state);
    controls.replaceChildren(
      field(t("pairs"), "number", state.pairs, change("pairs"), { min: 1, max: 128 }),
      field("theta", "number", state.theta, change("theta"), { min: 1, max: 1e9, step: "any" }),
      field(t("scaling"), [["none", t("no_scaling")], ["linear", "PI"], ["ntk", "NTK"], ["dynamic", t("dynamic_ntk")], ["yarn", "YaRN"], ["llama3", "Llama 3"]], state.scaling, change("scaling", false), { id: "scaling" }),
      field(t("factor"), "number", state.factor, change("factor"), { min: 1, max: 1024, step: "any" }),
      field(t("trained"), "number", state.trained, change("trained"), { min: 1 }),
      field(t("length"), "number", state.length, change("length"), { min: 1 }));
    try {
      answer = await ask("/api/rope", state);
      draw_clocks();
      draw_chart();
      await draw_alibi();
      main.dataset.ready = "positions";
    } catch (error) {
      chart.replaceChildren(make("div", { class: "error", role: "alert" }, String(/** @type {Error} */ (error).message)));
    }
  }
  draw();
}
