"use strict";
const trim = (value, digits) => String(+value.toFixed(digits));
const format = {
  seconds: v => trim(v, 2) + " s",
  millis: v => trim(v, 1) + " ms",
  rate: v => Math.round(v).toLocaleString("en") + "/s",
  latency: v => v < 1e3 ? trim(v, 0) + " µs" : v < 1e6 ? trim(v / 1e3, v < 1e4 ? 2 : 1) + " ms" : trim(v / 1e6, 2) + " s",
  nines: v => "p" + trim((1 - 10 ** -v) * 100, 5),
  connections: v => v + (v === 1 ? " connection" : " connections"),
  round: v => "round " + v,
};
for (const figure of document.querySelectorAll(".chart")) {
  const data = JSON.parse(figure.dataset.chart);
  const svg = figure.querySelector("svg"), cursor = figure.querySelector(".cursor"), tip = figure.querySelector("output");
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * data.width;
    const nearest = points => points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a);
    const drawn = data.series.filter(series => series.points.length);
    const [x, value] = nearest(drawn.flatMap(series => series.points));
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.style.visibility = "visible";
    tip.replaceChildren();
    tip.append(Object.assign(document.createElement("b"), { textContent: format[data.x](value) }));
    for (const series of drawn) {
      const point = nearest(series.points);
      if (Math.abs(point[0] - x) > 1) continue;
      const line = document.createElement("div");
      line.append(Object.assign(document.createElement("i"), { className: series.class }), `${series.name} ${format[data.y](point[2])}`);
      tip.append(line);
    }
    tip.style.display = "block";
    const card = figure.getBoundingClientRect();
    const left = x / data.width * box.width + box.left - card.left;
    tip.style.left = (left + 14 + tip.offsetWidth > figure.clientWidth ? left - tip.offsetWidth - 14 : left + 14) + "px";
    tip.style.top = box.top - card.top + 20 + "px";
  });
  svg.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    tip.style.display = "none";
  });
}
