// @ts-check
// Which part of the page is shown: the address after # says it, so a link brings back the same view.
import { make } from "./dom.js";
import { language, set_language, t } from "./text.js";
import { example } from "./learn_example.js";
import { kinds } from "./learn_kinds.js";
import { positions } from "./learn_positions.js";
import { patterns } from "./learn_patterns.js";
import { memories } from "./learn_memories.js";
import { sizes } from "./learn_sizes.js";
import { heads } from "./look.js";

/**
 * A view draws itself into `main`. `settings` come from the address and go back into it.
 * @typedef {(main: HTMLElement, settings: URLSearchParams, keep: (settings: Record<string, any>) => void) => void} View
 */

/** @type {Record<string, Record<string, View>>} */
export const areas = {
  learn: { example, kinds, positions, patterns, memories, sizes },
  look: { heads },
};

function place() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  const [, area, chapter] = path.split("/");
  const views = areas[area] ?? areas.learn;
  const name = views[chapter] ? chapter : Object.keys(views)[0];
  return { area: areas[area] ? area : "learn", chapter: name, settings: new URLSearchParams(query ?? "") };
}

function links(/** @type {string} */ id, /** @type {[string, string, boolean][]} */ list) {
  const nav = /** @type {HTMLElement} */ (document.getElementById(id));
  nav.replaceChildren(...(list.length === 0 ? [] : [make("ul", {}, list.map(([href, text, current]) =>
    make("li", {}, make("a", { href, "aria-current": current ? "page" : false }, text))))]));
}

function draw() {
  const { area, chapter, settings } = place();
  document.documentElement.lang = language();
  links("areas", Object.keys(areas).map((name) => [`#/${name}`, t("area_" + name), name === area]));
  const views = Object.keys(areas[area]);
  links("chapters", views.length < 2 ? [] : views.map((name) => [`#/${area}/${name}`, t(`${area}_${name}`), name === chapter]));
  const main = /** @type {HTMLElement} */ (document.getElementById("main"));
  main.replaceChildren();
  delete main.dataset.ready;
  document.title = `heed: ${t(`${area}_${chapter}`)}`;
  const keep = (/** @type {Record<string, any>} */ values) => {
    const query = new URLSearchParams(Object.entries(values).filter(([, v]) => v !== null && v !== undefined && v !== "").map(([k, v]) => [k, String(v)]));
    history.replaceState(null, "", `#/${area}/${chapter}?${query}`);
  };
  areas[area][chapter](main, settings, keep);
}

const chooser = /** @type {HTMLSelectElement} */ (document.getElementById("language"));
chooser.value = language();
chooser.addEventListener("change", () => { set_language(chooser.value); draw(); });
addEventListener("hashchange", draw);
draw();
