// @ts-check
// One weight, taken apart: the steps of attention with this pair's numbers.
import { make, show, visible } from "./dom.js";
import { products_chart, profile_chart } from "./look_draw.js";
import { t } from "./text.js";

/** The largest products, and the sum of the rest. @param {number[]} products */
function largest(products) {
  const shown = 6;
  const order = products.map((p, d) => ({ p, d })).sort((a, b) => Math.abs(b.p) - Math.abs(a.p));
  const rest = order.slice(shown).reduce((sum, x) => sum + x.p, 0);
  const list = order.slice(0, shown).map((x) => `${show(x.p)} (${x.d + 1})`);
  return list.join(" + ") + (order.length > shown ? ` + ${show(rest)} (${t("other_dimensions")})` : "");
}

/** Exponents keep their decimals, or a share near 1 would look like a quotient of equals. @param {number} x */
const fixed = (x) => x.toFixed(4).replace("-", "−");

/** The text itself, each token as dark as the row looks at it; only of texts that can be read at a glance. */
function attended(/** @type {any} */ c, /** @type {string[]} */ columns) {
  const most = 600;
  if (columns.length > most || c.row_profile.step !== 1) return null;
  const full = Math.max(...c.row_profile.values, 1e-30);
  return make("figure", { class: "profile-chart" }, make("figcaption", {}, t("row_over_text")), make("p", { class: "tokens attended" }, columns.map((text, j) => {
    const weight = c.row_profile.values[j];
    const token = make("span", { class: j === c.column ? "token here" : "token", title: `${j + 1} ${visible(text)}: ${show(weight)}` }, visible(text));
    token.style.background = `rgb(var(--warm) / ${(0.75 * Math.sqrt(weight / full)).toFixed(3)})`;
    return token;
  })));
}

/**
 * @param {HTMLElement} place
 * @param {any} c  the answer of /api/look/cell
 * @param {string[]} columns  token texts
 * @param {string} suffix  of ids
 */
export function cell_view(place, c, columns, suffix) {
  const p = c.parts;
  const step = (/** @type {string} */ name, /** @type {string} */ text) => make("li", {}, make("b", {}, name), " ", make("span", { class: "formula" }, text));
  const steps = [step("q · k", `${largest(p.products)} = ${show(p.dot)}`), step(t("scale"), `${show(p.scale)} × ${show(p.dot)} = ${show(p.scaled)}`)];
  if (p.softcap > 0) steps.push(step(t("softcap"), `${show(p.softcap)} tanh(${show(p.scaled)} / ${show(p.softcap)}) = ${show(p.capped)}`));
  if (p.relative) steps.push(step(t("relative_bias"), `${show(p.capped)} + ${show(p.relative)} = ${show(p.capped + p.relative)}`));
  if (p.alibi !== 0) steps.push(step("ALiBi", `${show(p.capped + p.relative)} ${show(p.alibi)} = ${show(p.score)}`));
  steps.push(step(t("mask"), p.hidden_by ? `${t("hidden_by_" + p.hidden_by)} → −∞` : t("visible")));
  if (!p.hidden_by) steps.push(step("softmax", `e^${fixed(p.score)} / e^${fixed(p.log_sum)} = ${show(p.weight)}`));
  if (c.sink !== null) steps.push(step(t("sink"), show(c.sink)));
  const percent = `${(100 * c.weight).toFixed(c.weight < 0.1 ? 2 : 1)} %`;
  const text = attended(c, columns);
  place.replaceChildren(
    make("h3", {}, make("code", {}, visible(c.row_text)), ` (${c.row + 1}) → `, make("code", {}, visible(c.column_text)), ` (${c.column + 1})`),
    make("p", {}, make("span", { class: "big", id: "weight" + suffix, "data-value": c.weight, "data-parts": p.weight, title: String(c.weight) }, show(c.weight)), " ",
      make("span", { class: "quiet" }, p.hidden_by ? t("hidden_by_" + p.hidden_by) : `${percent} ${t("of_the_row")} · ${t("rank")} ${c.rank} / ${c.seen} · ${t("row_entropy")} ${show(c.row_entropy)}`)),
    make("ol", { class: "steps" }, steps),
    make("figure", { class: "profile-chart" }, make("figcaption", {}, t("products_text")), products_chart(p.products, t("products_text"))),
    ...(text ? [text] : []),
    profile_chart(c.row_profile, t("row_sees"), c.column), profile_chart(c.column_profile, t("column_seen"), c.row));
}
