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
  const answer = await fetch("run/metrics?" + query);
  if (!answer.ok) return true;
  const told = await answer.json();
  box.hidden = !(told.steps.length > 1 || told.gpus.some((one) => one.use.length > 1));
  if (!box.hidden) {
    const [data, labels] = withEvals(told);
    draw("loss", data, labels, { x: "step" });
    draw("speed", [told.steps, told.speed], ["samples/s"], { x: "step", y: { range: (_, low, high) => [0, high * 1.05 || 1] } });
    const longest = Math.max(0, ...told.gpus.map((one) => one.use.length));
    const uses = told.gpus.map((one) => [...Array(longest - one.use.length).fill(null), ...one.use]);
    draw("gpus", [[...Array(longest).keys()], ...uses], told.gpus.map((one) => one.name), { x: "sample", y: { range: [0, 1] } });
    const loss = last(told.loss), speed = last(told.speed);
    if (loss !== null) tell("loss", `${short(loss)} at step ${told.steps[told.steps.length - 1]}`);
    if (speed !== null) tell("speed", `${short(speed)} samples/s now`);
    const now = told.gpus.map((one) => `${one.name} ${Math.round(100 * last(one.use))}%`);
    if (now.length) tell("gpus", now.join(", "));
  }
  return told.final;
}

const log = { number: "0", position: "" };

async function more() {
  const asked = log.number;
  const answer = await fetch(`run/log?${query}&log=${asked}&position=${log.position}`);
  if (!answer.ok || asked !== log.number) return false;
  const told = await answer.json();
  const said = document.getElementById("log-said");
  if (said.textContent !== told.absent) said.textContent = told.absent;
  if (told.anew) text.textContent = "";
  if (told.text) {
    text.append(told.text);
    // What is far above is dropped: a browser holds a long log badly.
    if (text.textContent.length > 2000000) text.textContent = text.textContent.slice(-1000000);
    if (document.getElementById("follow").checked) text.scrollTop = text.scrollHeight;
  }
  const grown = told.text !== "" && !told.absent;
  if (!told.absent) log.position = String(told.position);
  return told.final && !grown;
}

async function again(work, pace) {
  let done = false;
  try {
    if (document.visibilityState === "visible") done = await work();
  } catch {
    document.body.classList.add("gone");
  }
  if (!done) setTimeout(() => again(work, pace), pace);
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
