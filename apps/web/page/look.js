// @ts-check
// The attention of a model over a text: all heads, one head, one weight.
import { ask, headers } from "./api.js";
import { field, make, show } from "./dom.js";
import { head_view } from "./look_head.js";
import { t } from "./text.js";

const orders = ["layer", "entropy", "distance", "first", "previous", "duplicate", "induction"];

/** The weights as squares, darker where they are larger. @param {HTMLCanvasElement} canvas @param {number[][]} map */
export function paint(canvas, map) {
  const rows = map.length, columns = map[0].length;
  canvas.width = columns;
  canvas.height = rows;
  const brush = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const warm = getComputedStyle(document.documentElement).getPropertyValue("--warm").trim().split(" ").map(Number);
  const image = brush.createImageData(columns, rows);
  map.forEach((row, i) => row.forEach((weight, j) => {
    image.data.set([...warm, Math.round(255 * Math.sqrt(Math.min(1, weight)))], 4 * (i * columns + j));
  }));
  brush.putImageData(image, 0, 0);
}

/** Reads server-sent events as they come. @param {any} body @param {(event: any) => void} on_event */
async function stream(body, on_event) {
  const response = await fetch("/v1/completions", { method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify({ ...body, stream: true }) });
  if (!response.ok || !response.body) throw new Error((await response.json()).error?.message ?? response.statusText);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    waiting += value;
    const parts = waiting.split("\n\n");
    waiting = parts.pop() ?? "";
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") continue;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      on_event(event);
    }
  }
}

/** @type {import("./app.js").View} */
export function heads(main, settings, keep) {
  const number = (/** @type {string} */ name) => (settings.has(name) ? Number(settings.get(name)) : null);
  /** @type {Record<string, any>} */
  const state = {
    prompt: settings.get("prompt") ?? "", order: settings.get("order") ?? "layer", tokens: Number(settings.get("tokens") ?? 20), temperature: Number(settings.get("temperature") ?? 0),
    kind: settings.get("kind"), layer: number("layer"), head: number("head"), top: number("top"), left: number("left"), size: number("size"), row: number("row"), column: number("column"),
  };
  const controls = make("div", { class: "card" });
  const grid = make("div", { id: "heads" });
  const one = make("div", { id: "head" });
  main.append(make("h1", {}, t("look_title")), make("p", {}, t("look_text")), controls, one, grid);
  /** @type {any} */
  let answer = null;

  const fail = (/** @type {unknown} */ error) => grid.replaceChildren(make("div", { class: "card error", role: "alert" }, String(/** @type {Error} */ (error).message)));

  function open(/** @type {any} */ head) {
    Object.assign(state, { kind: head.kind, layer: head.layer, head: head.head, top: null, left: null, size: null, row: null, column: null });
    draw_head();
  }

  function draw_head() {
    keep(state);
    if (state.layer === null || !answer) return one.replaceChildren();
    head_view(one, answer, state, () => keep(state));
  }

  function draw_grid() {
    keep(state);
    const list = [...answer.heads];
    if (state.order !== "layer") list.sort((a, b) => b[state.order] - a[state.order]);
    const tiles = list.map((head) => {
      const canvas = make("canvas", { "aria-hidden": "true" });
      paint(canvas, head.map);
      const name = `${head.kind === "self" ? "" : t("kind_" + head.kind) + " "}${t("layer")} ${head.layer + 1} · ${t("head")} ${head.head + 1}`;
      const value = state.order === "layer" ? `${t("order_entropy")} ${show(head.entropy)}` : `${t("order_" + state.order)} ${show(head[state.order])}`;
      return make("button", { type: "button", class: "thumb", "data-name": `${head.kind}.${head.layer}.${head.head}`, onclick: () => { open(head); one.scrollIntoView({ block: "nearest" }); } }, canvas, make("span", {}, name), make("span", {}, value));
    });
    const next = answer.next.length ? make("p", { class: "tokens", id: "next" }, `${t("next_tokens")}: `, answer.next.map((/** @type {any} */ n) => make("span", { class: "token" }, `${JSON.stringify(n.text)} ${(100 * n.p).toFixed(1)} %  `))) : null;
    grid.replaceChildren(make("section", { class: "card" },
      make("div", { class: "controls" }, field(t("sort_by"), orders.map((name) => [name, t("order_" + name)]), state.order, (v) => { state.order = v; draw_grid(); }, { id: "order" })),
      next, make("div", { class: "grid-heads" }, tiles)));
    grid.dataset.ready = String(answer.heads.length);
  }

  async function look() {
    delete grid.dataset.ready;
    keep(state);
    try {
      answer = await ask("/api/look", { prompt: state.prompt });
      draw_grid();
      draw_head();
    } catch (error) { fail(error); }
  }

  async function go_on(/** @type {boolean} */ text) {
    try {
      const shown = make("p", { class: "tokens", id: "generated", "aria-live": "polite" }, text ? state.prompt : "");
      grid.replaceChildren(make("div", { class: "card" }, shown));
      const prompt = text ? state.prompt : state.prompt.split(/[\s,]+/).filter(Boolean).map(Number);
      let whole = state.prompt;
      await stream({ prompt, max_tokens: state.tokens, temperature: state.temperature }, (event) => {
        const choice = event.choices[0];
        const piece = text ? choice.text : (choice.token_ids ?? []).map((/** @type {number} */ id) => " " + id).join("");
        whole += piece;
        shown.append(make("span", { class: "token" }, piece));
      });
      state.prompt = whole;
      begin();
      await look();
    } catch (error) { fail(error); }
  }

  async function begin() {
    const model = await ask("/api/model");
    if (!model.model) return controls.replaceChildren(make("p", {}, t("look_no_model")), make("code", {}, "heed serve FOLDER"));
    const box = make("textarea", { id: "prompt", rows: 3, cols: 70, maxlength: 100000, "aria-label": t("prompt"), oninput: () => { state.prompt = box.value; } });
    box.value = state.prompt;
    controls.replaceChildren(
      make("p", { class: "quiet" }, `${t("model")}: ${model.model}. `, model.text ? t("prompt_text") : t("prompt_ids")), box,
      make("div", { class: "controls" },
        make("button", { type: "button", class: "main", id: "look", onclick: look }, t("look_button")),
        model.generates ? make("button", { type: "button", id: "go-on", onclick: () => go_on(model.text) }, t("go_on")) : null,
        field(t("tokens"), "number", state.tokens, (v) => { state.tokens = v; keep(state); }, { min: 1, max: 512 }),
        field(t("temperature"), "number", state.temperature, (v) => { state.temperature = v; keep(state); }, { min: 0, max: 5, step: 0.1 })));
  }

  begin().then(() => { if (state.prompt) look(); }, fail);
}
