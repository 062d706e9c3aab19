// A page without a server: Python runs in a worker of this page, from files that lie beside it; nothing is sent anywhere.
"use strict";

const slurmgpuParts = {};
const slurmgpuOffline = (() => {
  // In the worker. Nothing of the page is seen from here.
  async function work() {
    // Pyodide asks by it whether modules can be had; here they can, and a page from a disk has no other kind of worker.
    self.importScripts = undefined;
    const bytes = async (text) => {
      const packed = Uint8Array.fromBase64
        ? Uint8Array.fromBase64(text)
        : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      return new Uint8Array(await new Response(stream).arrayBuffer());
    };
    const module = async (data) => {
      const address = URL.createObjectURL(new Blob([data], { type: "text/javascript" }));
      try {
        return await import(address);
      } finally {
        URL.revokeObjectURL(address);
      }
    };
    // What others may write does not count as a profile: folders are made as a person's umask would make them.
    const boot = `
import json, os, sys, zipfile
sys.dont_write_bytecode = True
asked = json.loads(asked)
folders = set()
for packed in ("/code.zip", "/site.zip"):
    with zipfile.ZipFile(packed) as archive:
        archive.extractall("/")
        for name in archive.namelist():
            os.chmod("/" + name, 0o644)
            while name := name.rpartition("/")[0]:
                folders.add("/" + name)
    os.remove(packed)
for name in (*folders, "/"):
    os.chmod(name, 0o755)
sys.path.insert(0, "/code")
os.makedirs(asked["folder"], exist_ok=True)
os.chdir(asked["folder"])
from slurmgpu.web.drawing import answer, differing
json.dumps(differing(asked["expected"], asked["cluster"], asked["folder"]))
`;
    let python = null, cluster = "", folder = "";
    async function start(given) {
      const names = Object.keys(given.parts);
      const parts = Object.fromEntries(
        await Promise.all(names.map(async (name) => [name, await bytes(given.parts[name])])),
      );
      // Whatever Pyodide asks for is one of the parts; anything else is nowhere.
      const types = { "pyodide.asm.wasm": "application/wasm" };
      self.fetch = async (asked) => {
        const name = String(asked.url || asked).split("/").pop();
        if (!parts[name]) return new Response("", { status: 404 });
        return new Response(parts[name], { headers: { "content-type": types[name] || "application/octet-stream" } });
      };
      const { loadPyodide } = await module(parts["pyodide.mjs"]);
      const inner = await module(parts["pyodide.asm.mjs"]);
      python = await loadPyodide({
        indexURL: "http://parts.invalid/",
        createPyodideModule: inner.default,
        lockFileContents: new TextDecoder().decode(parts["pyodide-lock.json"]),
        packageBaseUrl: "http://parts.invalid/",
        env: given.environ,
      });
      ({ cluster, folder } = given);
      for (const name of ["code.zip", "site.zip"]) python.FS.writeFile("/" + name, parts[name]);
      python.globals.set("asked", JSON.stringify({ cluster, folder, expected: given.expected }));
      const differing = python.runPython(boot);
      return { ready: true, differing: JSON.parse(differing) };
    }
    self.onmessage = async (event) => {
      const { id, start: given, form } = event.data;
      try {
        if (given) self.postMessage(await start(given));
        else {
          const answer = python.globals.get("answer");
          self.postMessage({ id, answer: JSON.parse(answer(JSON.stringify(form), cluster, folder)) });
        }
      } catch (error) {
        self.postMessage({ id, failed: String(error && error.message || error) });
      }
    };
  }

  const form = document.getElementById("job"), place = document.getElementById("answer");
  const loading = document.getElementById("loading");
  let worker = null, ready = false, asked = 0, shown = 0, files = {}, timer = 0;

  function values() {
    const found = {};
    for (const [name, value] of new FormData(form)) if (String(value).trim()) found[name] = String(value);
    return found;
  }

  function told(text, wrong) {
    loading.textContent = text;
    loading.hidden = !text;
    loading.classList.toggle("error", Boolean(wrong));
  }

  function ask() {
    asked += 1;
    if (ready) worker.postMessage({ id: asked, form: values() });
  }

  function show(id, answer) {
    if (id < asked) return; // something was typed since
    shown = id;
    files = { script: answer.script, "job-file": answer.job_file };
    place.innerHTML = answer.html;
    for (const one of form.querySelectorAll("p.error")) {
      const field = document.getElementById(one.id.replace("error-", ""));
      one.textContent = (field && answer.errors[field.name] || []).join("\n");
    }
    document.dispatchEvent(new CustomEvent("htmx:afterSettle", { detail: { target: place } }));
  }

  function heard(event) {
    const said = event.data;
    if (said.failed) {
      told("Python has stopped in this browser, and says: " + said.failed.split("\n").filter(Boolean).pop(), true);
      return;
    }
    if (!said.ready) return show(said.id, said.answer);
    if (said.differing.length) {
      told("This browser does not give what slurmgpu gives, so no script is shown: take another one, or use slurmgpu itself.",
           true);
      return;
    }
    ready = true;
    told("");
    document.body.dataset.ready = "yes";
    ask();
  }

  // What app.js asks of htmx where there is a server.
  window.htmx = { trigger: ask };

  function fill() {
    for (const [name, value] of new URLSearchParams(location.search)) {
      const field = form.elements.namedItem(name);
      if (!field || name === "cluster") continue;
      if (field.type === "checkbox") field.checked = value === "true";
      else {
        if (field.tagName === "SELECT" && ![...field.options].some((one) => one.value === value)) {
          field.append(new Option(value + " (not on this cluster)", value));
        }
        field.value = value;
      }
      const folded = field.closest("details");
      if (folded && value) folded.open = true;
    }
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, 250); });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-download]");
    if (!link) return;
    event.preventDefault();
    const file = document.createElement("a");
    file.href = URL.createObjectURL(new Blob([files[link.dataset.download]], { type: "text/plain" }));
    file.download = link.getAttribute("download");
    file.click();
    setTimeout(() => URL.revokeObjectURL(file.href), 1000);
  });

  return {
    // Called by the last file, when all are here.
    start(about) {
      fill();
      try {
        const code = new Blob(["(" + work + ")()"], { type: "text/javascript" });
        worker = new Worker(URL.createObjectURL(code));
      } catch (error) {
        told("Python cannot be started in this browser: " + error.message, true);
        return;
      }
      worker.onmessage = heard;
      worker.onerror = (event) => told("Python cannot be started in this browser: " + event.message, true);
      worker.postMessage({ start: { parts: slurmgpuParts, ...about } });
    },
    answered: () => ready && shown === asked,
  };
})();
