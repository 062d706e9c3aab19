// Lines over steps: what the pages of one job, and of several, draw alike.
"use strict";

const colours = ["#2a6fdb", "#c2571a", "#1a8f5a", "#9a3fb5", "#b3861a", "#c43d6b", "#3a8fa8", "#6b6b6b"];
const plots = {};

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function axis() {
  return { stroke: colour("--text"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
}

function draw(name, data, labels, scales) {
  const place = document.getElementById("plot-" + name);
  const figure = place.closest("figure");
  const some = data.length > 1 && data[0].length > 1 && data.slice(1).some((one) => one.some((value) => value !== null));
  figure.hidden = !some;
  if (!some) return;
  const width = Math.max(240, place.clientWidth);
  if (plots[name] && plots[name].labels === labels.join()) {
    plots[name].plot.setData(data);
    return;
  }
  if (plots[name]) plots[name].plot.destroy();
  const series = [{ label: scales.x }, ...labels.map((label, index) => ({
    label, stroke: colours[index % colours.length], width: 2, points: { show: data[0].length < 40 }, spanGaps: true,
  }))];
  const options = { width, height: 220, scales: { x: { time: false }, y: scales.y || {} }, axes: [axis(), { ...axis(), size: 64 }],
    series, legend: { show: true }, cursor: { drag: { x: true, y: false } } };
  plots[name] = { plot: new uPlot(options, data, place), labels: labels.join() };
}

function tell(name, words) {
  document.getElementById("said-" + name).textContent = words;
}

function last(values) {
  for (let index = values.length - 1; index >= 0; index--) if (values[index] !== null) return values[index];
  return null;
}

function short(value) {
  return Number(value.toPrecision(4)).toString();
}

addEventListener("resize", () => {
  for (const [name, one] of Object.entries(plots)) {
    one.plot.setSize({ width: Math.max(240, document.getElementById("plot-" + name).clientWidth), height: 220 });
  }
});
