// The losses of several jobs in one plot.
"use strict";

const compared = document.getElementById("plots");
const jobs = JSON.parse(compared.dataset.jobs);

function together(lines) {
  const steps = [...new Set(lines.flatMap((one) => one.map((point) => point[0])))].sort((a, b) => a - b);
  return [steps, ...lines.map((one) => {
    const known = new Map(one);
    return steps.map((step) => (known.has(step) ? known.get(step) : null));
  })];
}

function show(name, lines, options) {
  draw(name, together(lines), jobs, { x: "step", ...options });
  const ends = lines.map((one, index) => (one.length && last(one.map((point) => point[1])) !== null
    ? `${jobs[index]}: ${short(last(one.map((point) => point[1])))}` : "")).filter(Boolean);
  tell(name, ends.length ? "at the end: " + ends.join(", ") : "");
}

async function lookAll() {
  const told = await Promise.all(jobs.map(async (job) => {
    const answer = await fetch("run/metrics?job=" + encodeURIComponent(job));
    return answer.ok ? answer.json() : { steps: [], loss: [], speed: [], evals: [], final: true };
  }));
  compared.hidden = !told.some((one) => one.steps.length > 1);
  if (!compared.hidden) {
    show("loss", told.map((one) => one.steps.map((step, index) => [step, one.loss[index]])));
    show("evals", told.map((one) => one.evals));
    show("speed", told.map((one) => one.steps.map((step, index) => [step, one.speed[index]])),
      { y: { range: (_, low, high) => [0, high * 1.05 || 1] } });
  }
  return told.every((one) => one.final);
}

async function lookAgain() {
  let done = false;
  try {
    if (document.visibilityState === "visible") done = await lookAll();
  } catch {
    document.body.classList.add("gone");
  }
  if (!done) setTimeout(lookAgain, 15000);
}

lookAgain();
