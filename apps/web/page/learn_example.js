// @ts-check
// The worked example: every step of attention with its numbers, and where each number comes from.
import { ask } from "./api.js";
import { failure, field, make, show } from "./dom.js";
import { matrix } from "./matrix.js";
import { t } from "./text.js";

/** @param {number[]} a @param {number[]} b */
const dot_text = (a, b) => a.map((x, n) => `${show(x)}·${show(b[n])}`).join(" + ");

/**
 * What every step is made of: given the whole answer, a head and a cell, a line of arithmetic.
 * @type {Record<string, (all: any, h: number, i: number, j: number) => string>}
 */
const reasons = {
  input: (all, h, i, j) => `x[${i + 1}][${j + 1}] = ${show(all.of.input[i][j])}`,
  queries: (all, h, i, j) => project(all, "queries", i, j),
  keys: (all, h, i, j) => project(all, "keys", i, j),
  values: (all, h, i, j) => project(all, "values", i, j),
  query_heads: (all, h, i, j) => `q[${i + 1}][${h * all.of.query_heads[0][0].length + j + 1}] = ${show(all.of.query_heads[h][i][j])}`,
  key_heads: (all, h, i, j) => `k[${i + 1}][${h * all.of.key_heads[0][0].length + j + 1}] = ${show(all.of.key_heads[h][i][j])}`,
  value_heads: (all, h, i, j) => `v[${i + 1}][${h * all.of.value_heads[0][0].length + j + 1}] = ${show(all.of.value_heads[h][i][j])}`,
  scores: (all, h, i, j) => `q${i + 1} · k${j + 1} = ${dot_text(all.of.query_heads[h][i], all.of.key_heads[kv(all, h)][j])} = ${show(all.of.scores[h][i][j])}`,
  scaled: (all, h, i, j) => `${show(all.of.scores[h][i][j])} · ${show(all.scale)} = ${show(all.of.scaled[h][i][j])}`,
  softcap: (all, h, i, j) => `${show(all.softcap)} · tanh(${show(all.of.scaled[h][i][j])} / ${show(all.softcap)}) = ${show(all.of.softcap[h][i][j])}`,
  bias: (all, h, i, j) => `${show((all.of.softcap ?? all.of.scaled)[h][i][j])} − ${show(all.slopes[h] ?? 0)} · |${i + 1} − ${j + 1}| = ${show(all.of.bias[h][i][j])}`,
  mask: (all, h, i, j) => (all.visible[h][i][j] ? `${t("visible")}: ${show(all.of.mask[h][i][j])}` : t("hidden")),
  weights: (all, h, i, j) => {
    const row = all.of[before_softmax(all)];
    const parts = row[h][i].map((/** @type {number | null} */ x) => (x === null ? "0" : `e^${show(x)}`));
    return row[h][i][j] === null ? `0: ${t("hidden")}` : `e^${show(row[h][i][j])} / (${parts.join(" + ")}) = ${show(all.of.weights[h][i][j])}`;
  },
  dropout: (all, h, i, j) => (all.kept[h][i][j] ? `${show(all.of.weights[h][i][j])} / (1 − ${show(all.dropout)}) = ${show(all.of.dropout[h][i][j])}` : t("dropped")),
  mixed: (all, h, i, j) => {
    const weights = (all.of.dropout ?? all.of.weights)[h][i];
    const column = all.of.value_heads[kv(all, h)].map((/** @type {number[]} */ row) => row[j]);
    return `${dot_text(weights, column)} = ${show(all.of.mixed[h][i][j])}`;
  },
  joined: (all, h, i, j) => {
    const size = all.of.mixed[0][0].length;
    return `${t("head")} ${Math.floor(j / size) + 1}, ${t("number")} ${(j % size) + 1}: ${show(all.of.joined[i][j])}`;
  },
  output: (all, h, i, j) => project(all, "output", i, j, "joined"),
};

/** Cells that a number was made from: a matrix by name and head, a row, a column; null is all of them. @typedef {[string, number, number | null, number | null]} Source */

/**
 * The numbers that stand in the line of arithmetic above, as places on the page.
 * @type {Record<string, (all: any, h: number, i: number, j: number) => Source[]>}
 */
const sources = {
  input: () => [],
  queries: (all, h, i, j) => [["input", 0, i, null], ["queries.projection", 0, null, j]],
  keys: (all, h, i, j) => [["input", 0, i, null], ["keys.projection", 0, null, j]],
  values: (all, h, i, j) => [["input", 0, i, null], ["values.projection", 0, null, j]],
  query_heads: (all, h, i, j) => [["queries", 0, i, h * all.of.query_heads[0][0].length + j]],
  key_heads: (all, h, i, j) => [["keys", 0, i, h * all.of.key_heads[0][0].length + j]],
  value_heads: (all, h, i, j) => [["values", 0, i, h * all.of.value_heads[0][0].length + j]],
  scores: (all, h, i, j) => [[cut(all, "query_heads", "queries"), h, i, null], [cut(all, "key_heads", "keys"), kv(all, h), j, null]],
  scaled: (all, h, i, j) => [["scores", h, i, j]],
  softcap: (all, h, i, j) => [["scaled", h, i, j]],
  bias: (all, h, i, j) => [[all.of.softcap ? "softcap" : "scaled", h, i, j]],
  mask: (all, h, i, j) => [[all.of.bias ? "bias" : all.of.softcap ? "softcap" : "scaled", h, i, j]],
  weights: (all, h, i) => [[before_softmax(all), h, i, null]],
  dropout: (all, h, i, j) => [["weights", h, i, j]],
  mixed: (all, h, i, j) => [[all.of.dropout ? "dropout" : "weights", h, i, null], [cut(all, "value_heads", "values"), kv(all, h), null, j]],
  joined: (all, h, i, j) => [["mixed", Math.floor(j / all.of.mixed[0][0].length), i, j % all.of.mixed[0][0].length]],
  output: (all, h, i, j) => [[cut(all, "joined", "mixed"), 0, i, null], ["output.projection", 0, null, j]],
};

const before_softmax = (/** @type {any} */ all) => ["mask", "bias", "softcap", "scaled"].find((name) => all.of[name]) ?? "scaled";
/** With one head nothing is cut or joined, and those steps are not drawn. */
const cut = (/** @type {any} */ all, /** @type {string} */ name, /** @type {string} */ whole) => (all.heads > 1 ? name : whole);

/** The key/value head that query head h reads. */
function kv(/** @type {any} */ all, /** @type {number} */ h) {
  return Math.floor(h / (all.heads / all.kv_heads));
}

/** A row of x times a column of a projection; where there is none, the number itself. */
function project(/** @type {any} */ all, /** @type {string} */ name, /** @type {number} */ i, /** @type {number} */ j, source = "input") {
  const result = all.of[name][i][j];
  const projection = all.projections[name];
  const row = all.of[source][i];
  if (!projection) return `${source === "input" ? "x" : t("joined_row")}[${i + 1}][${j + 1}] = ${show(result)} (${t("identity")})`;
  return `${dot_text(row, projection.map((/** @type {number[]} */ w) => w[j]))} = ${show(result)}`;
}

const shares = new Set(["weights", "dropout"]);
const square = new Set(["scores", "scaled", "softcap", "bias", "mask", "weights", "dropout"]);
/** Steps that belong together stand side by side. @type {[string, string[]][]} */
const groups = [
  ["group_project", ["input", "queries", "keys", "values"]],
  ["group_cut", ["query_heads", "key_heads", "value_heads"]],
  ["group_weights", ["scores", "scaled", "softcap", "bias", "mask", "weights", "dropout"]],
  ["group_out", ["mixed", "joined", "output"]],
];
const of_several_heads = new Set(["query_heads", "key_heads", "value_heads", "joined"]);
/** @type {Record<string, string>} */
const projection_names = { queries: "Wq", keys: "Wk", values: "Wv", output: "Wo" };

/** @type {import("./app.js").View} */
export function example(main, settings, keep) {
  const state = {
    example: settings.get("example") ?? "teaching",
    tokens: Number(settings.get("tokens") ?? 4),
    d_model: Number(settings.get("d_model") ?? 8),
    heads: Number(settings.get("heads") ?? 2),
    kv_heads: Number(settings.get("kv_heads") ?? 2),
    causal: settings.get("causal") === "true",
    alibi: settings.get("alibi") === "true",
    scale: settings.get("scale") ? Number(settings.get("scale")) : null,
    softcap: Number(settings.get("softcap") ?? 0),
    dropout: Number(settings.get("dropout") ?? 0),
    seed: Number(settings.get("seed") ?? 1),
  };
  const steps = make("div", { id: "steps" });
  const panel = make("div", { class: "explain", "aria-live": "polite", role: "status" }, t("choose_a_cell"));
  const controls = make("div", { class: "card controls" });
  main.append(make("h1", {}, t("example_title")), make("p", {}, t("example_text")), controls, steps, panel);
  /** The drawn matrices: name -> heads -> rows -> cells. @type {Record<string, HTMLElement[][][]>} */
  let drawn = {};

  const change = (/** @type {string} */ name) => (/** @type {any} */ value) => {
    Object.assign(state, { [name]: value });
    if (name === "heads" && state.heads % state.kv_heads !== 0) state.kv_heads = state.heads;
    keep(state);
    draw();
  };
  function draw_controls() {
    const random = state.example === "random";
    const divisors = (/** @type {number} */ n) => Array.from({ length: n }, (_, i) => i + 1).filter((d) => n % d === 0 && d <= 8);
    controls.replaceChildren(
      field(t("which_example"), [["teaching", t("teaching")], ["random", t("random")]], state.example, change("example"), { id: "which" }),
      ...(random ? [
        field(t("tokens"), "number", state.tokens, change("tokens"), { min: 1, max: 24 }),
        field(t("d_model"), [4, 8, 12, 16, 24, 32].map((n) => [n, String(n)]), state.d_model, (v) => { state.d_model = Number(v); if (state.d_model % state.heads) { state.heads = 1; state.kv_heads = 1; } keep(state); draw(); }),
        field(t("heads"), divisors(state.d_model).map((n) => [n, String(n)]), state.heads, (v) => change("heads")(Number(v)), { id: "heads" }),
        field(t("kv_heads"), divisors(state.heads).map((n) => [n, String(n)]), state.kv_heads, (v) => change("kv_heads")(Number(v))),
        field(t("seed"), "number", state.seed, change("seed"), { min: 0, max: 9999 }),
      ] : []),
      field(t("causal"), "tick", state.causal, change("causal"), { id: "causal" }),
      field("ALiBi", "tick", state.alibi, change("alibi")),
      field(t("scale"), "number", state.scale ?? "", change("scale"), { step: "any", placeholder: "1/√D", min: -100, max: 100, empty: null }),
      field(t("softcap"), "number", state.softcap, change("softcap"), { step: "any", min: 0, max: 1000 }),
      field(t("dropout"), "number", state.dropout, change("dropout"), { step: 0.05, min: 0, max: 0.95 }));
  }

  async function draw() {
    draw_controls();
    let all;
    try {
      all = await ask("/api/walkthrough", state);
    } catch (error) {
      steps.replaceChildren(failure(error));
      return;
    }
    all.of = Object.fromEntries(all.steps.map((/** @type {any} */ step) => [step.name, step.values]));
    drawn = {};
    const shown = all.steps.filter((/** @type {any} */ step) => all.heads > 1 || !of_several_heads.has(step.name));
    const number = (/** @type {any} */ step) => shown.indexOf(step) + 1;
    steps.replaceChildren(...groups.map(([title, names]) => {
      const members = shown.filter((/** @type {any} */ step) => names.includes(step.name));
      return members.length ? make("section", { class: "group" }, make("h2", {}, t(title)), make("div", { class: "steps-row" }, members.map((/** @type {any} */ step) => draw_step(all, step, number(step))))) : null;
    }).filter(Boolean));
    panel.replaceChildren(t("choose_a_cell"));
    steps.dataset.ready = String(Date.now());
  }

  /** Dashes around the numbers that a number was made from. */
  function mark(/** @type {Source[]} */ list) {
    document.querySelectorAll("td.used").forEach((cell) => cell.classList.remove("used"));
    for (const [name, head, row, column] of list) {
      (drawn[name]?.[head] ?? []).forEach((line, i) => line.forEach((cell, j) => {
        if ((row === null || row === i) && (column === null || column === j)) cell.classList.add("used");
      }));
    }
  }

  function draw_step(/** @type {any} */ all, /** @type {any} */ step, /** @type {number} */ n) {
    const title = t("step_" + step.name);
    const per_head = step.values.length > 0 && Array.isArray(step.values[0]?.[0]);
    const heads = per_head ? step.values : [step.values];
    const say = (/** @type {Node | string} */ text) => panel.replaceChildren(text);
    const line = (/** @type {string} */ name, /** @type {string} */ text) => make("span", {}, make("strong", {}, `${name}: `), make("code", {}, text));
    const formula = step.formula.replace("^T", "ᵀ").replace("-inf", "−∞");
    const parts = [];
    const projection = all.projections[step.name];
    if (projection) {
      const name = projection_names[step.name];
      const figure = matrix(projection, { caption: `${name}: ${t("learned")}`, say,
        explain: (i, j) => { mark([]); return line(name, `${name}[${i + 1}][${j + 1}] = ${show(projection[i][j])}: ${t("learned_number")}`); } });
      drawn[step.name + ".projection"] = [figure.cells];
      parts.push(figure);
    }
    drawn[step.name] = [];
    heads.forEach((/** @type {any} */ values, /** @type {number} */ h) => {
      const figure = matrix(values, {
        caption: per_head && heads.length > 1 ? `${t("head")} ${h + 1}` : projection ? formula : undefined,
        row: square.has(step.name) ? t("query") : t("token"),
        column: square.has(step.name) ? t("key") : "",
        kind: shares.has(step.name) ? "share" : "signed",
        say,
        explain: (i, j) => { mark(sources[step.name]?.(all, h, i, j) ?? []); return line(title, reasons[step.name]?.(all, h, i, j) ?? show(values[i][j])); },
      });
      drawn[step.name].push(figure.cells);
      parts.push(figure);
    });
    return make("section", { class: "card step", id: "step-" + step.name },
      make("h3", {}, make("span", { class: "step-number" }, String(n)), title),
      make("div", { class: "formula", title: `${t("shape")}: ${step.shape.join(" × ")}` }, formula, make("span", { class: "shape" }, step.shape.join(" × "))),
      make("div", { class: "matrices" }, parts));
  }
  draw();
}
