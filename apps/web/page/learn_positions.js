// @ts-check
// RoPE as rotating pairs, the ways to stretch it, and ALiBi's slopes.
import { ask } from "./api.js";
import { failure, field, make, show } from "./dom.js";
import { t } from "./text.js";

/** @type {[string, string][]} */
const scalings = [["none", "no_scaling"], ["linear", "PI"], ["ntk", "NTK"], ["dynamic", "dynamic_ntk"], ["yarn", "YaRN"], ["llama3", "Llama 3"]];
const name_of = (/** @type {string} */ scaling) => t(scalings.find(([name]) => name === scaling)?.[1] ?? scaling);

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
  /** The chosen scaling's answer. @type {any} */
  let answer = null;
  /** Those of all scalings, to be compared. @type {Record<string, any>} */
  let all = {};
  const change = (/** @type {string} */ name, number = true) => (/** @type {any} */ v) => { Object.assign(state, { [name]: number ? Number(v) : v }); draw(); };
  const scaled = () => state.scaling !== "none";
  /** Charts shrink with the page, their letters should not: a narrow page has narrow charts. */
  const wide = () => (main.clientWidth < 640 ? 400 : 860);

  function draw_clocks() {
    const slider = make("input", { type: "range", min: 0, max: state.length, value: state.position, id: "position", class: "long", "aria-label": t("position"),
      oninput: () => { state.position = Number(slider.value); keep(state); dials(); } });
    const label = make("output", {});
    const area = make("div", { class: "dials" });
    clocks.replaceChildren(make("h2", {}, t("clocks_title")), make("p", { class: "quiet" }, t("clocks_text")),
      make("div", { class: "row" }, slider, label,
        make("span", { class: "key cool" }, t("no_scaling")), scaled() ? make("span", { class: "key warm" }, name_of(state.scaling)) : null), area);
    function dials() {
      label.textContent = `${t("position")} ${state.position}`;
      const shown = Math.min(16, state.pairs);
      area.replaceChildren(...Array.from({ length: shown }, (_, n) => {
        const i = Math.floor((n * state.pairs) / shown);
        const turns = (/** @type {number[]} */ list) => `${state.position} × ${show(list[i])} = ${show(state.position * list[i])} rad`;
        const dial = make("svg", { viewBox: "-26 -26 52 66", role: "img", "aria-label": `${t("pair")} ${i + 1}` },
          make("title", {}, `${t("no_scaling")}: ${turns(answer.plain)}${scaled() ? `\n${name_of(state.scaling)}: ${turns(answer.frequencies)}` : ""}`),
          make("circle", { r: 22, fill: "none", stroke: "currentColor", "stroke-opacity": 0.3 }));
        for (const [list, colour] of scaled() ? [[answer.plain, "--cool"], [answer.frequencies, "--warm"]] : [[answer.plain, "--cool"]]) {
          const angle = state.position * list[i];
          dial.append(make("line", { x1: 0, y1: 0, x2: 21 * Math.cos(angle), y2: -21 * Math.sin(angle), stroke: `rgb(var(${colour}))`, "stroke-width": 3, "stroke-linecap": "round" }));
        }
        dial.append(make("text", { x: 0, y: 37, "text-anchor": "middle" }, `${i + 1}`));
        return dial;
      }));
    }
    dials();
  }

  function draw_chart() {
    const width = wide(), height = 300, left = 62, bottom = 40, right = 92;
    const waves = (/** @type {number[]} */ list) => list.map((f) => (f > 0 ? (2 * Math.PI) / f : Infinity));
    const every = Object.entries(all).map(([name, one]) => ({ name, waves: waves(one.frequencies) }));
    const top = Math.log10(Math.max(...every.flatMap((one) => one.waves).filter(Number.isFinite), state.length) * 1.3);
    const x = (/** @type {number} */ i) => left + ((width - left - right) * i) / Math.max(1, state.pairs - 1);
    const y = (/** @type {number} */ wave) => 12 + (height - bottom - 12) * (1 - Math.log10(Math.max(1, Number.isFinite(wave) ? wave : 10 ** top)) / top);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, class: "wide", role: "img", "aria-label": t("waves_title") });
    for (let power = 0; power <= top; ++power) {
      svg.append(make("line", { x1: left, x2: width - right, y1: y(10 ** power), y2: y(10 ** power), class: "grid" }),
        make("text", { x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, (10 ** power).toLocaleString("en")));
    }
    const level = (/** @type {number} */ value, /** @type {string} */ text) => svg.append(
      make("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "currentColor", "stroke-opacity": 0.6, "stroke-dasharray": "5 4" }),
      make("text", { x: left + 6, y: y(value) - 5 }, `${text}: ${value.toLocaleString("en")}`));
    level(state.trained, t("trained"));
    if (state.length !== state.trained) level(state.length, t("length"));
    const style = (/** @type {string} */ name) => (name === state.scaling && scaled() ? ["rgb(var(--warm))", 3, 1] : name === "none" ? ["rgb(var(--cool))", 3, 1] : ["currentColor", 1.2, 0.45]);
    /** Names at the lines' ends, not on top of each other. @type {[number, string, string][]} */
    const ends = [];
    for (const one of every) {
      const [stroke, thick, opacity] = style(one.name);
      svg.append(make("polyline", { fill: "none", stroke, "stroke-width": thick, "stroke-opacity": opacity, points: one.waves.map((wave, i) => `${x(i)},${y(wave)}`).join(" ") }, make("title", {}, name_of(one.name))));
      ends.push([y(one.waves[one.waves.length - 1]), name_of(one.name), opacity === 1 ? "strong" : "quiet-text"]);
    }
    ends.sort((a, b) => a[0] - b[0]).forEach((end, n) => { if (n > 0) end[0] = Math.max(end[0], ends[n - 1][0] + 14); });
    for (const [at, text, style_class] of ends) svg.append(make("text", { x: width - right + 8, y: at + 4, class: style_class }, text));
    for (let i = 0; i < state.pairs; i += Math.ceil(state.pairs / (width < 640 ? 8 : 16))) svg.append(make("text", { x: x(i), y: height - 22, "text-anchor": "middle" }, String(i + 1)));
    svg.append(make("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, t("pair")));
    chart.replaceChildren(make("h2", {}, t("waves_title")), make("p", { class: "quiet" }, t("waves_text"), answer.attention_factor !== 1 ? ` ${t("attention_factor")}: ${show(answer.attention_factor)}.` : ""), svg);
  }

  async function draw_alibi() {
    const { slopes } = await ask("/api/alibi", { heads: state.heads });
    const width = wide(), height = 260, left = 40, right = 62, bottom = 40, far = 32, deep = 8;
    const x = (/** @type {number} */ d) => left + (d * (width - left - right)) / far;
    const y = (/** @type {number} */ loss) => 12 + (loss * (height - bottom - 12)) / deep;
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, class: "wide", role: "img", "aria-label": "ALiBi" });
    for (let loss = 0; loss <= deep; loss += 2) svg.append(make("line", { x1: left, x2: width - right, y1: y(loss), y2: y(loss), class: "grid" }), make("text", { x: left - 8, y: y(loss) + 4, "text-anchor": "end" }, loss ? `−${loss}` : "0"));
    for (let d = 0; d <= far; d += 8) svg.append(make("text", { x: x(d), y: height - 22, "text-anchor": "middle" }, String(d)));
    slopes.forEach((/** @type {number} */ slope, /** @type {number} */ h) => {
      const end = Math.min(far, deep / slope);  // a line that leaves the picture ends at its edge
      svg.append(make("line", { x1: x(0), y1: y(0), x2: x(end), y2: y(slope * end), stroke: "rgb(var(--warm))", "stroke-opacity": 1 - (0.65 * h) / slopes.length, "stroke-width": 2.2 }, make("title", {}, `${t("head")} ${h + 1}: ${show(slope)}`)));
      if (slopes.length <= 8 && (end < far || h < 5)) svg.append(make("text", { x: x(end) + 6, y: y(slope * end) + (end < far ? -4 : 4) }, `${t("head")} ${h + 1}`));
    });
    svg.append(make("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, t("distance")));
    alibi.replaceChildren(make("div", { class: "controls" }, field(t("heads"), "number", state.heads, (v) => { state.heads = v; keep(state); draw_alibi(); }, { min: 1, max: 256 })), svg,
      make("p", { class: "quiet" }, `${t("slopes")}: ${slopes.slice(0, 16).map(show).join(", ")}${slopes.length > 16 ? ", …" : ""}`));
  }

  async function draw() {
    keep(state);
    controls.replaceChildren(
      field(t("scaling"), scalings.map(([name, text]) => [name, t(text)]), state.scaling, change("scaling", false), { id: "scaling" }),
      field(t("factor"), "number", state.factor, change("factor"), { min: 1, max: 1024, step: "any" }),
      field(t("trained"), "number", state.trained, change("trained"), { min: 1, max: 16777216 }),
      field(t("length"), "number", state.length, change("length"), { min: 1, max: 1073741824 }),
      field(t("pairs"), "number", state.pairs, change("pairs"), { min: 1, max: 128 }),
      field(t("theta"), "number", state.theta, change("theta"), { min: 1, max: 1e9, step: "any" }));
    try {
      const names = scalings.map(([name]) => name);
      const answers = await Promise.all(names.map((scaling) => ask("/api/rope", { ...state, scaling })));
      all = Object.fromEntries(names.map((name, n) => [name, answers[n]]));
      answer = all[state.scaling];
      if (!answer) throw new Error(`scaling: ${state.scaling}?`);
      draw_clocks();
      draw_chart();
      await draw_alibi();
      main.dataset.ready = "positions";
    } catch (error) {
      chart.replaceChildren(failure(error));
    }
  }
  draw();
}
