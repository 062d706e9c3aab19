// The plots of one job, and its log as it grows.
"use strict";

const box = document.getElementById("plots");
const text = document.getElementById("log");
const query = "job=" + encodeURIComponent(text.dataset.job);

function withEvals(told) {
  const steps = [...new Set([...told.steps, ...told.evals.map((one) => one[0])])].sort((a, b) => a - b);
  const loss = new Map(told.steps.map((step, index) => [step, told.loss[index]]));
  const evals = new Map(told.evals);
  const row = (of) => steps.map((step) => (of.has(step) ? of.get(step) : null));
  return evals.size ? [[steps, row(loss), row(evals)], ["training", "evaluation"]] : [[told.steps, told.loss], ["training"]];
}

async function look() {
  const told = await asked("run/metrics?" + query);
  if (!told) return false;
  box.hidden = !(told.steps.length > 1 || told.gpus.some((one) => one.use.length > 1));
  if (!box.hidden) {
    const [data, labels] = withEvals(told);
    draw("loss", data, labels, { x: "step" });
    draw("speed", [told.steps, told.speed], ["samples/s"], { x: "step", from0: true });
    const longest = Math.max(0, ...told.gpus.map((one) => one.use.length));
    const uses = told.gpus.map((one) => [...Array(longest - one.use.length).fill(null), ...one.use]);
    draw("gpus", [[...Array(longest).keys()], ...uses], told.gpus.map((one) => one.name), { x: "sample", share: true });
    const loss = last(told.loss), speed = last(told.speed);
    if (loss !== null) tell("loss", `${short(loss)} at step ${told.steps[told.steps.length - 1]}`);
    if (speed !== null) tell("speed", `${short(speed)} samples/s ${told.final ? "at the end" : "now"}`);
    const now = told.gpus.map((one) => `${one.name} ${Math.round(100 * last(one.use))}%`);
    if (now.length) tell("gpus", now.join(", "));
  }
  return told.final;
}

const log = { number: "0", position: "" };

async function more() {
  const number = log.number;
  const told = await asked(`run/log?${query}&log=${number}&position=${log.position}`);
  if (!told || number !== log.number) return false;
  const said = document.getElementById("log-said");
  const words = told.absent || (told.position === 0 && !told.text ? (told.final ? "It is empty." : "It is empty so far.") : "");
  if (said.textContent !== words) said.textContent = words;
  if (told.anew) text.textContent = "";
  if (told.text) {
    text.hidden = false;
    text.append(told.text);
    // What is far above is dropped: a browser holds a long log badly.
    if (text.textContent.length > 2000000) text.textContent = text.textContent.slice(-1000000);
    if (document.getElementById("follow").checked) text.scrollTop = text.scrollHeight;
  }
  const grown = told.text !== "" && !told.absent;
  if (!told.absent) log.position = String(told.position);
  return told.final && !grown;
}

const which = document.getElementById("which");
if (which) {
  which.addEventListener("change", () => {
    log.number = which.value;
    log.position = "";
    text.textContent = "";
    more();
  });
}
again(look, 10000);
again(more, 2000);
