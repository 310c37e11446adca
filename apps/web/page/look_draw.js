// @ts-check
// Maps and lines of weights as pictures.
import { make, show, visible } from "./dom.js";

export const largest_of = (/** @type {number[][]} */ map) => Math.max(...map.map((row) => Math.max(...row)), 1e-30);
const darkness = (/** @type {number} */ weight, /** @type {number} */ full) => Math.sqrt(Math.min(1, weight / full));

/**
 * The weights as squares, darker where they are larger.
 * @param {HTMLCanvasElement} canvas
 * @param {number[][]} map
 * @param {number} [full]  the weight that has the full colour
 */
export function paint(canvas, map, full = 1) {
  const rows = map.length, columns = map[0].length;
  canvas.width = columns;
  canvas.height = rows;
  const brush = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const warm = getComputedStyle(document.documentElement).getPropertyValue("--warm").trim().split(" ").map(Number);
  const image = brush.createImageData(columns, rows);
  map.forEach((row, i) => row.forEach((weight, j) => {
    image.data.set([...warm, Math.round(255 * darkness(weight, full))], 4 * (i * columns + j));
  }));
  brush.putImageData(image, 0, 0);
}

/** The same map as shapes. @param {number[][]} map @param {string} title */
export function drawing(map, title) {
  const rows = map.length, columns = map[0].length, side = 8, full = largest_of(map);
  const cells = map.flatMap((row, i) => row.map((weight, j) =>
    weight > 0 ? `<rect x="${j * side}" y="${i * side}" width="${side}" height="${side}" fill="#d67010" fill-opacity="${darkness(weight, full).toFixed(3)}"/>` : ""));
  const name = title.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${columns * side} ${rows * side}"><title>${name}</title>${cells.join("")}</svg>`;
}

/** Puts a file into the person's downloads. @param {string} name @param {string} address */
export function save(name, address) {
  make("a", { href: address, download: name }).click();
}

const largest_text = 14;
export const short = (/** @type {string} */ text) => visible(text).slice(0, largest_text);

/**
 * Weights over the tokens as a line; its largest are named below.
 * @param {import("./look_run.js").Profile} profile
 * @param {string} title
 * @param {number} chosen  the token that is marked
 */
export function profile_chart(profile, title, chosen) {
  const width = 600, height = 70, count = profile.values.length;
  const most = Math.max(...profile.values, 1e-30);
  const x = (/** @type {number} */ n) => (count > 1 ? (n * width) / (count - 1) : width / 2);
  const points = profile.values.map((w, n) => `${x(n).toFixed(1)},${(height - 2 - (height - 6) * (w / most)).toFixed(1)}`).join(" ");
  const mark = x(chosen / profile.step).toFixed(1);
  return make("figure", { class: "profile-chart" }, make("figcaption", {}, title),
    make("svg", { viewBox: `0 0 ${width} ${height}`, class: "wide", role: "img", "aria-label": title },
      make("line", { x1: mark, x2: mark, y1: 0, y2: height, class: "mark" }),
      make("polyline", { points, fill: "none", stroke: "rgb(var(--warm))", "stroke-width": 1.5 })),
    make("ul", { class: "profile" }, profile.best.slice(0, 5).map((peak) => {
      const bar = make("span", { class: "bar" });
      bar.style.width = `${(100 * peak.weight).toFixed(2)}%`;
      return make("li", {}, make("span", { class: "formula" }, `${peak.at + 1} ${short(peak.text)} ${show(peak.weight)}`), make("span", { class: "track" }, bar));
    })));
}

/** Products of a query and a key, dimension by dimension. @param {number[]} products @param {string} title */
export function products_chart(products, title) {
  const width = 600, height = 60, step = width / products.length;
  const most = Math.max(...products.map(Math.abs), 1e-30);
  return make("svg", { viewBox: `0 0 ${width} ${height}`, class: "wide", role: "img", "aria-label": title, id: "products" },
    make("line", { x1: 0, x2: width, y1: height / 2, y2: height / 2, stroke: "var(--line)" }),
    products.map((product, d) => {
      const size = (Math.abs(product) / most) * (height / 2 - 1);
      return make("rect", { x: (d * step).toFixed(2), y: (product > 0 ? height / 2 - size : height / 2).toFixed(2), width: Math.max(0.5, step * 0.8).toFixed(2), height: size.toFixed(2), fill: `rgb(var(--${product > 0 ? "warm" : "cool"}))` },
        make("title", {}, `${d + 1}: ${show(product)}`));
    }));
}
