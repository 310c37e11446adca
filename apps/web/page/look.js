// @ts-check
// The attention of a model over a text: all heads, one head, one weight; heads switched off; two models side by side.
import { ask, headers } from "./api.js";
import { failure, field, make, visible } from "./dom.js";
import { head_grid, lens_view, next_tokens, orders } from "./look_grid.js";
import { head_view } from "./look_head.js";
import { name_of, place_of, Run } from "./look_run.js";
import { t } from "./text.js";

/** Reads server-sent events as they come. @param {any} body @param {(event: any) => void} on_event @param {AbortSignal} signal */
async function stream(body, on_event, signal) {
  const response = await fetch("/v1/completions", { method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify({ ...body, stream: true }), signal });
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
    kind: settings.get("kind"), layer: number("layer"), head: number("head"), step: number("step"), cells: number("cells"), top: number("top"), left: number("left"), row: number("row"), column: number("column"),
    off: settings.get("off") ?? "", beside: settings.get("beside") === "true" || null, lens: number("lens"),
  };
  const controls = make("div", { class: "card" });
  const grid = make("div", { id: "heads" }), lens = make("div", {});
  const one = make("div", { id: "head" }), other = make("div", { id: "head-beside" });
  main.append(make("h1", {}, t("look_title")), make("p", {}, t("look_text")), controls, make("div", { class: "beside" }, one, other), grid, lens);
  /** @type {any} */
  let model = null;
  /** @type {Run | null} */
  let run = null;
  /** The second model, or the same one with all its heads. @type {Run | null} */
  let second = null;

  const fail = (/** @type {unknown} */ error) => { if (!(error instanceof DOMException && error.name === "AbortError")) grid.replaceChildren(failure(error)); };
  const chosen = () => (state.layer === null ? "" : name_of({ kind: state.kind, layer: state.layer, head: state.head ?? 0 }));
  /** Ends what is asked for, when something else is. */
  let busy = new AbortController();
  const begin_anew = () => { busy.abort(); busy = new AbortController(); return busy.signal; };
  /** @returns {string[]} */
  const off = () => state.off.split(",").filter(Boolean);

  function open(/** @type {any} */ head) {
    Object.assign(state, { kind: head.kind, layer: head.layer, head: head.head, step: null, cells: null, top: null, left: null, row: null, column: null });
    grid.querySelectorAll(".thumb").forEach((/** @type {HTMLElement} */ thumb) => thumb.setAttribute("aria-pressed", String(thumb.dataset.name === chosen())));
    draw_head().then(() => one.scrollIntoView({ block: "nearest" }), fail);
  }

  async function draw_head() {
    keep(state);
    one.replaceChildren();
    other.replaceChildren();
    if (state.layer === null || !run) return;
    const [title, other_title] = !second ? ["", ""] : state.beside ? [run.answer.model, second.answer.model] : [t("heads_off"), t("heads_on")];
    await head_view(one, run, state, { keep: () => keep(state), suffix: "", title });
    const there = second?.answer.heads.some((/** @type {any} */ h) => h.kind === state.kind && h.layer === state.layer && h.head === state.head);
    if (second && there) await head_view(other, second, { ...state }, { keep: () => {}, suffix: "-beside", title: other_title });
  }

  function toggle(/** @type {string} */ name) {
    const list = off();
    state.off = (list.includes(name) ? list.filter((x) => x !== name) : [...list, name]).join(",");
    look();
  }

  function draw_grid() {
    if (!run) return;
    keep(state);
    const rows = run.answer.heads[0]?.rows ?? 0, tokens = (run.answer.target.length && run.answer.heads[0]?.kind !== "encoder" ? run.answer.target : run.answer.texts).length;
    const how = { order: state.order, off: off(), chosen: chosen(), open };
    const beside = second && state.beside;
    const columns = [make("div", {}, beside ? make("h3", {}, run.answer.model) : null, head_grid(run, { ...how, toggle }))];
    if (second && beside) columns.push(make("div", {}, make("h3", {}, second.answer.model), head_grid(second, { ...how, off: [] })));
    const next = [next_tokens(run, second && !beside ? `${t("next_tokens")}: ${t("heads_off")}` : `${t("next_tokens")}${beside ? ": " + run.answer.model : ""}`),
      second ? next_tokens(second, `${t("next_tokens")}: ${beside ? second.answer.model : t("heads_on")}`) : null];
    grid.replaceChildren(next[0] ? make("section", { class: "card" }, make("div", { class: "beside", id: "next" }, next)) : "", make("section", { class: "card" },
      make("div", { class: "controls" }, field(t("sort_by"), orders.map((name) => [name, t("order_" + name)]), state.order, (v) => { state.order = v; draw_grid(); }, { id: "order" }),
        state.off ? make("button", { type: "button", id: "all-on", onclick: () => { state.off = ""; look(); } }, t("all_on")) : null),
      make("p", { class: "quiet small", id: "order-text" }, t("means_" + state.order)),
      rows < tokens ? make("p", { class: "quiet", id: "sampled" }, `${t("from_rows")} ${rows} / ${tokens}`) : null,
      make("div", { class: "beside" }, columns)));
    grid.dataset.ready = String(run.answer.heads.length);
  }

  async function look() {
    delete grid.dataset.ready;
    keep(state);
    grid.setAttribute("aria-busy", "true");
    const signal = begin_anew();
    if (!run) grid.replaceChildren(make("p", { class: "working", role: "status" }, t("looking")));
    try {
      const first = new Run({ prompt: state.prompt, off: off().map(place_of) });
      const beside = state.beside && model.models.length > 1;
      const also = beside ? new Run({ prompt: state.prompt, model: 1 }) : state.off ? new Run({ prompt: state.prompt }) : null;
      await first.look(signal);
      if (also) await also.look(signal);
      [run, second] = [first, also];
      draw_grid();
      if (run.answer.next.length) await lens_view(lens, run, state, () => keep(state));
      await draw_head();
    } catch (error) { fail(error); }
    if (!signal.aborted) grid.removeAttribute("aria-busy");
  }

  async function go_on(/** @type {boolean} */ text) {
    const signal = begin_anew();
    try {
      const shown = make("p", { class: "tokens", id: "generated", "aria-live": "polite" }, make("span", { class: "quiet" }, text ? visible(state.prompt) : state.prompt));
      const stop = make("button", { type: "button", id: "stop", onclick: () => begin_anew() }, t("stop"));
      grid.removeAttribute("aria-busy");
      grid.replaceChildren(make("div", { class: "card" }, make("div", { class: "row" }, make("span", { class: "working", role: "status" }, t("writing")), stop), shown));
      const prompt = text ? state.prompt : state.prompt.split(/[\s,]+/).filter(Boolean).map(Number);
      const asked = { prompt, max_tokens: state.tokens, temperature: state.temperature };
      try {
        await stream(asked, (event) => {
          const choice = event.choices[0];
          const piece = text ? choice.text : (choice.token_ids ?? []).map((/** @type {number} */ id) => " " + id).join("");
          state.prompt += piece;
          shown.append(make("span", { class: "token" }, text ? visible(piece) : piece));
        }, signal);
      } catch (error) { if (!signal.aborted) throw error; }  // stopped: what has come stays
      await begin();
      await look();
    } catch (error) { fail(error); }
  }

  async function begin() {
    model = await ask("/api/model");
    if (!model.model) {
      return controls.replaceChildren(make("h2", {}, t("no_model_title")), make("p", {}, t("look_no_model")),
        make("pre", { class: "commands" }, "heed serve models/gpt2"),
        make("p", {}, t("no_model_train")), make("pre", { class: "commands" }, "heed train --task dates --out dates\nheed serve dates"),
        make("p", { class: "quiet" }, t("no_model_learn"), " ", make("a", { href: "#/learn/example" }, t("area_learn"))));
    }
    const box = make("textarea", { id: "prompt", rows: 3, cols: 70, maxlength: 1000000, placeholder: model.text ? t("prompt_text") : "3 5 7 3 5", oninput: () => { state.prompt = box.value; },
      onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); look(); } } });
    box.value = state.prompt;
    controls.replaceChildren(
      make("label", { for: "prompt" }, make("b", {}, t("prompt")), make("span", { class: "quiet" }, ` ${model.models.length > 1 ? t("for_models") : t("for_model")} ${model.models.join(" · ")}${model.text ? "" : ". " + t("prompt_ids")}`)), box,
      make("div", { class: "controls" },
        make("button", { type: "button", class: "main", id: "look", onclick: look }, t("look_button")),
        model.generates ? make("button", { type: "button", id: "go-on", onclick: () => go_on(model.text) }, t("go_on")) : null,
        model.models.length > 1 ? field(t("side_by_side"), "tick", Boolean(state.beside), (v) => { state.beside = v || null; if (run) look(); }, { id: "beside" }) : null,
        model.generates ? field(t("new_tokens"), "number", state.tokens, (v) => { state.tokens = v; keep(state); }, { min: 1, max: 512 }) : null,
        model.generates ? field(t("temperature"), "number", state.temperature, (v) => { state.temperature = v; keep(state); }, { min: 0, max: 5, step: 0.1 }) : null));
  }

  begin().then(() => { if (state.prompt) look(); }, fail);
}
