// What the pages do beside htmx: copying, dropping, the nearest fits, and what is said to screen readers.
"use strict";

const form = document.getElementById("job");

function say(text) {
  const place = document.getElementById("announcer");
  if (place.textContent !== text) place.textContent = text;
}

// A link reproduces the form: only what is filled in is in it.
function address() {
  const asked = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (name !== "file" && String(value).trim()) asked.append(name, value);
  }
  return "?" + asked;
}

async function copy(button) {
  const text = document.getElementById(button.dataset.copy).textContent;
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const range = document.createRange();
    range.selectNodeContents(document.getElementById(button.dataset.copy));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    done = false;
  }
  const before = button.textContent;
  button.textContent = done ? "Copied" : "Selected";
  say(done ? "Copied" : "It is selected, and can be copied now");
  setTimeout(() => { button.textContent = before; }, 1500);
}

function take(values) {
  let last = null;
  for (const [name, value] of Object.entries(values)) {
    const field = form.elements.namedItem(name);
    if (!field) continue;
    if (field.type === "checkbox") field.checked = value === "true";
    else field.value = value;
    const folded = field.closest("details");
    if (folded && value) folded.open = true;
    last = field;
  }
  if (last) {
    last.focus();
    htmx.trigger(form, "again");
  }
}

function read(file, into) {
  if (file.size > 1000000) {
    say("This file is too large for a batch script");
    return;
  }
  file.text().then((text) => {
    into.value = text;
    into.focus();
    say(file.name + " is in the field");
    if (into.form) htmx.trigger(into.form, "submit");
  });
}

document.addEventListener("click", (event) => {
  const on = event.target.closest("button");
  if (!on) return;
  if (on.dataset.copy) copy(on);
  if (on.dataset.values) take(JSON.parse(on.dataset.values));
  if (on.dataset.close !== undefined) {
    on.closest("form").remove();
    say("Nothing was done");
  }
});

document.addEventListener("change", (event) => {
  if (event.target.dataset.reload !== undefined) location.assign(address());
  if (event.target.dataset.into && event.target.files.length) {
    read(event.target.files[0], document.getElementById(event.target.dataset.into));
  }
});

for (const place of document.querySelectorAll("[data-drop]")) {
  place.addEventListener("dragover", (event) => { event.preventDefault(); place.classList.add("over"); });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    place.classList.remove("over");
    if (event.dataTransfer.files.length) {
      event.preventDefault();
      read(event.dataTransfer.files[0], place);
    }
  });
}

function mark() {
  for (const wrong of form.querySelectorAll("p.error")) {
    const field = document.getElementById(wrong.id.replace("error-", ""));
    if (!field) continue;
    if (wrong.textContent) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
    const folded = field.closest("details");
    if (folded && wrong.textContent) folded.open = true;
  }
}

document.addEventListener("htmx:afterSettle", (event) => {
  if (form && event.detail.target && event.detail.target.id === "answer") {
    mark();
    const submission = document.getElementById("submission");
    if (submission) submission.hidden = !document.getElementById("script");
    try {
      history.replaceState(null, "", address());
    } catch {
      // A page that lies on a disk keeps its address; its link has the form.
    }
    const told = document.querySelector("#answer .problem, #answer .summary");
    if (told) say(told.textContent.trim().replace(/\s+/g, " "));
  }
  if (!event.detail.target || event.detail.target.id !== "question") return;
  const asked = document.querySelector("#question form button"), now = document.getElementById("now");
  if (asked) asked.focus();
  else if (now && document.querySelector("#question p")) htmx.trigger(now, "again"); // something was done
});

// A list that is read anew keeps what is ticked.
let ticked = new Set();
document.addEventListener("htmx:beforeSwap", (event) => {
  if (!["rows", "tasks"].includes(event.detail.target.id)) return;
  ticked = new Set([...event.detail.target.querySelectorAll("[data-row]:checked")].map((one) => one.dataset.row));
});
document.addEventListener("htmx:afterSwap", (event) => {
  if (!["rows", "tasks"].includes(event.detail.target.id)) return;
  for (const one of document.querySelectorAll("[data-row]")) one.checked = ticked.has(one.dataset.row);
});

// A drawing or table that is wider than the page stays where it was moved to; a drawing begins where this page's job is.
let moved = {};
document.addEventListener("htmx:beforeSwap", (event) => {
  const wide = event.detail.target.querySelector(".scrolled");
  if (wide) moved[event.detail.target.id] = [wide.scrollLeft, wide.scrollTop];
});
document.addEventListener("htmx:afterSwap", (event) => {
  const wide = event.detail.target.querySelector(".scrolled"), here = event.detail.target.querySelector(".box.here rect");
  if (!wide) return;
  const before = moved[event.detail.target.id];
  if (before) [wide.scrollLeft, wide.scrollTop] = before;
  else if (here) wide.scrollLeft = here.x.baseVal.value - (wide.clientWidth - here.width.baseVal.value) / 2;
});

// A question is about the form as it was.
if (form) form.addEventListener("input", () => document.getElementById("question")?.replaceChildren());

// A page that nobody looks at asks nothing.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.detail.elt.dataset.polls !== undefined) event.preventDefault();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) for (const one of document.querySelectorAll("[data-polls]")) htmx.trigger(one, "again");
});

document.addEventListener("htmx:sendError", () => {
  say("The server does not answer; slurmgpu web may have ended");
  document.body.classList.add("gone");
});
document.addEventListener("htmx:afterOnLoad", () => document.body.classList.remove("gone"));
