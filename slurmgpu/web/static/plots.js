// Lines over steps: what the pages of one job, and of several, draw alike.
"use strict";

const colours = ["#2a6fdb", "#c2571a", "#1a8f5a", "#9a3fb5", "#b3861a", "#c43d6b", "#3a8fa8", "#6b6b6b"];
const plots = {};
const high = 240;
// Between the marks of steps, samples and tasks, which are whole.
const whole = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power));

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function axis(size) {
  return { stroke: colour("--text"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, size };
}

// From 0 up to a little more than the highest; of shares, up to 1.
function range(scales) {
  if (scales.from0) return { range: (_, low, top) => [0, top * 1.05 || 1] };
  return scales.share ? { range: [0, 1] } : {};
}

function wide(place) {
  return Math.max(200, Math.floor(place.getBoundingClientRect().width));
}

// More than a few lines begin with the same colours again, dashed.
function series(labels, scales, count) {
  return labels.map((label, index) => ({
    label, stroke: colours[index % colours.length], width: scales.points ? 0 : 2, spanGaps: true,
    dash: index < colours.length ? [] : [6, 4], points: { show: scales.points || count < 40, ...(scales.points ? { size: 9, fill: colours[index] } : {}) },
    value: (_, value) => (value === null || value === undefined ? "" : scales.share ? Math.round(100 * value) + "%" : short(value)),
  }));
}

function draw(name, data, labels, scales) {
  const place = document.getElementById("plot-" + name);
  const figure = place.closest("figure");
  const some = data.length > 1 && data[0].length > 1 && data.slice(1).some((one) => one.some((value) => value !== null));
  figure.hidden = !some;
  if (!some) return;
  const known = plots[name];
  if (known && known.labels === labels.join()) {
    known.plot.setData(data);
    return;
  }
  if (known) known.plot.destroy();
  const made = () => new uPlot({
    width: wide(place), height: high, scales: { x: { time: false }, y: range(scales) },
    axes: [{ ...axis(40), incrs: whole, values: (_, ticks) => ticks.map((one) => one.toLocaleString("en")) }, { ...axis(64), values: (_, ticks) => ticks.map((one) => (one === null ? "" : short(one))) }],
    series: [{ label: scales.x, value: (_, value) => (value === null ? "" : String(value)) }, ...series(labels, scales, data[0].length)],
    legend: { show: true, live: true }, cursor: { drag: { x: true, y: false } },
  }, data, place);
  plots[name] = { plot: made(), labels: labels.join(), made, place };
  sizes.observe(place);
}

// A cell is as wide as its neighbours leave it: they come and go, and the window changes.
const sizes = new ResizeObserver((seen) => {
  for (const { target } of seen) {
    const one = Object.values(plots).find((known) => known.place === target);
    if (one && target.offsetParent && one.plot.width !== wide(target)) one.plot.setSize({ width: wide(target), height: high });
  }
});

// The colours of the axes are those of the page.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const one of Object.values(plots)) {
    const data = one.plot.data;
    one.plot.destroy();
    one.plot = one.made();
    one.plot.setData(data);
  }
});

// What the server answers; null where it says no, or does not answer.
async function asked(place) {
  try {
    const answer = await fetch(place);
    document.body.classList.remove("gone");
    return answer.ok ? await answer.json() : null;
  } catch {
    document.body.classList.add("gone");
    return null;
  }
}

// As long as somebody looks at the page, and until there is nothing more to come.
async function again(work, pace) {
  let done = false;
  try {
    if (!document.hidden) done = await work();
  } finally {
    if (!done) setTimeout(() => again(work, pace), pace);
  }
}

function tell(name, words) {
  document.getElementById("said-" + name).textContent = words;
}

function last(values) {
  for (let index = values.length - 1; index >= 0; index--) if (values[index] !== null) return values[index];
  return null;
}

function short(value) {
  return value >= 1000 && value < 1e9 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(4)).toString();
}
