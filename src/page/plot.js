// Plots, as the load report draws them.

import { el } from "./dom.js";

const WIDTH = 640, HEIGHT = 220, RIGHT = 28, TOP = 12, BOTTOM = 30;

/**
 * Creates a plot of points `[x, y]` in ascending order. `x` and `y` turn a value into a text, `tick` one for the axis;
 * `logarithmic` draws the x axis by ratios. A point is read with the pointer, or with the arrow keys once the plot has
 * the focus.
 */
export function plot({ title, note, points, x, y, tick = y, colour = "s1", logarithmic = false }) {
  const scaleX = logarithmic ? Math.log : (value) => value;
  const xs = points.map(([at]) => scaleX(at)), ys = points.map(([, value]) => value);
  const [lowX, highX] = [Math.min(...xs), Math.max(...xs)];
  const ticks = niceTicks(Math.min(0, ...ys), Math.max(0, ...ys));
  // The labels take about nine units a letter.
  const LEFT = 20 + 9 * Math.max(...ticks.map((value) => tick(value).length));
  const [lowY, highY] = [ticks[0], ticks[ticks.length - 1]];
  const left = (value) => LEFT + (WIDTH - LEFT - RIGHT) * (highX > lowX ? (scaleX(value) - lowX) / (highX - lowX) : 0.5);
  const top = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - lowY) / (highY - lowY || 1));
  const cursor = el("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM });
  const tip = el("output", { "aria-live": "off" });
  const marks = [el("path", { class: "line", d: points.map(([at, value], index) => `${index ? "L" : "M"}${left(at).toFixed(1)} ${top(value).toFixed(1)}`).join("") }), points.length < 60 ? points.map(([at, value]) => el("circle", { class: "dot", cx: left(at), cy: top(value), r: 3 })) : []];
  const labels = points.length ? [points[0], points[Math.floor((points.length - 1) / 2)], points[points.length - 1]] : [];
  const svg = el("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: colour, role: "img", tabindex: 0, "aria-label": summary(title, points, x, y) },
    ticks.map((value) => [el("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: top(value), y2: top(value) }), el("text", { class: "tick y", x: LEFT - 8, y: top(value) + 4 }, tick(value))]),
    [...new Set(labels)].map(([at]) => el("text", { class: "tick x", x: left(at), y: HEIGHT - 10 }, x(at))),
    marks, cursor);
  const figure = el("figure", { class: "chart" }, el("h3", {}, title), el("p", {}, note ?? ""), svg, tip);
  let shown = -1;
  const show = (index) => {
    shown = index;
    const [at, value] = points[index];
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, left(at));
    cursor.style.visibility = "visible";
    tip.replaceChildren(el("b", {}, x(at)), y(value));
    tip.style.display = "block";
    const box = svg.getBoundingClientRect(), card = figure.getBoundingClientRect();
    const place = (left(at) / WIDTH) * box.width + box.left - card.left;
    tip.style.left = `${place + 14 + tip.offsetWidth > figure.clientWidth ? place - tip.offsetWidth - 14 : place + 14}px`;
    tip.style.top = `${box.top - card.top + 20}px`;
  };
  const hide = () => {
    cursor.style.visibility = "hidden";
    tip.style.display = "none";
  };
  svg.addEventListener("pointermove", ({ clientX }) => {
    if (!points.length) return;
    const box = svg.getBoundingClientRect(), at = ((clientX - box.left) / box.width) * WIDTH;
    show(points.reduce((best, [value], index) => (Math.abs(left(value) - at) < Math.abs(left(points[best][0]) - at) ? index : best), 0));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !points.length) return;
    event.preventDefault();
    tip.setAttribute("aria-live", "polite");
    show(Math.max(0, Math.min(points.length - 1, shown + step)));
  });
  return figure;
}

function summary(title, points, x, y) {
  if (!points.length) return `${title}: nothing yet`;
  const best = points.reduce((a, b) => (b[1] > a[1] ? b : a));
  const [last] = points.slice(-1);
  return `${title}: ${points.length} points; highest ${y(best[1])} at ${x(best[0])}, last ${y(last[1])}. Arrow keys read them.`;
}

/** Returns about five round numbers that span two values. */
function niceTicks(low, high) {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  if (low === high) high = low + (Math.abs(low) || 1);
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const first = Math.floor(low / step), last = Math.ceil(high / step);
  return Array.from({ length: last - first + 1 }, (_, index) => +((first + index) * step).toPrecision(12));
}
