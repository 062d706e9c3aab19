// The losses of several jobs, or of an array's tasks, in one plot.
"use strict";

const compared = document.getElementById("plots");
const array = compared.dataset.array;
const chosen = array ? [] : JSON.parse(compared.dataset.jobs);

function together(lines) {
  const steps = [...new Set(lines.flatMap((one) => one.map((point) => point[0])))].sort((a, b) => a - b);
  return [steps, ...lines.map((one) => {
    const known = new Map(one);
    return steps.map((step) => (known.has(step) ? known.get(step) : null));
  })];
}

function show(name, jobs, lines, options, before = "") {
  draw(name, together(lines), jobs, { x: "step", ...options });
  const ends = lines.map((one, index) => (one.length && last(one.map((point) => point[1])) !== null
    ? `${jobs[index]}: ${short(last(one.map((point) => point[1])))}` : "")).filter(Boolean);
  tell(name, ends.length ? before + "at the end: " + ends.join(", ") : "");
}

// Of some jobs one by one; of an array in one answer, which also has where each task is.
async function answers() {
  if (array) {
    return asked("run/tasks/metrics?job=" + encodeURIComponent(array));
  }
  const jobs = await Promise.all(chosen.map(async (job) => {
    const told = await asked("run/metrics?job=" + encodeURIComponent(job));
    return { job, ...(told || { steps: [], loss: [], speed: [], evals: [], final: false }) };
  }));
  return { jobs, tasks: [], final: jobs.every((one) => one.final) };
}

async function lookAll() {
  const told = await answers();
  if (!told) return false;
  const jobs = told.jobs.map((one) => one.job);
  compared.hidden = !told.jobs.some((one) => one.steps.length > 1);
  if (!compared.hidden) {
    if (array) {
      const evaluated = told.results.some((one) => one !== null);
      draw("ends", [told.tasks, told.losses, ...(evaluated ? [told.results] : [])], ["training", ...(evaluated ? ["evaluation"] : [])],
        { x: "task", points: true });
      const best = told.losses.map((loss, index) => [evaluated ? told.results[index] : loss, told.tasks[index]])
        .filter((one) => one[0] !== null).sort((a, b) => a[0] - b[0])[0];
      tell("ends", best ? `lowest: ${short(best[0])}, of task ${best[1]}` : "");
    }
    const some = told.tasks.length > jobs.length ? `of the ${jobs.length} tasks with the lowest loss; ` : "";
    show("loss", jobs, told.jobs.map((one) => one.steps.map((step, index) => [step, one.loss[index]])), {}, some);
    show("evals", jobs, told.jobs.map((one) => one.evals));
    show("speed", jobs, told.jobs.map((one) => one.steps.map((step, index) => [step, one.speed[index]])), { from0: true });
  }
  return told.final;
}

again(lookAll, 15000);
