"""The page of `slurmgpu web --export` in Chromium: its script against `slurmgpu render`'s, its size, and how long it takes.

    python benchmarks/web_page.py [--clusters N] [--forms N] [--parts FOLDER] [--json FILE]

For each of the clusters a page is made. One in two is opened from the disk, the other from a web server on loopback. The address
holds a form; then random forms are filled in, and what the page shows of them must be what `slurmgpu render` says, as in
tests/test_web_forms.py.

Times are from the click that opens the page until its first script is there, for a browser that has nothing of it yet, and from a
form that is filled in to the answer, with the quarter of a second that the page waits for more. Sizes are of all files, and of
what a server sends that compresses. Needs Chromium, selenium and Python for browsers (`slurmgpu web --export DIR --fetch`).
Ends with 1 where a script differs.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from slurmgpu.web.export import export  # noqa: E402
from slurmgpu.web.parts import parts  # noqa: E402
from tests.browser import chromium, until  # noqa: E402
from tests.test_web import a_form  # noqa: E402
from tests.web_forms import CLUSTERS, as_render_says, fill  # noqa: E402


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--forms", type=int, default=10)
    parser.add_argument("--parts", type=Path, default=Path("~/.cache/slurmgpu/browser").expanduser())
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measured(asked.clusters, asked.forms, asked.parts, Path(folder))
    print(json.dumps(result, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if result["scripts_that_differ"] else 0


def measured(clusters: int, forms: int, folder: Path, top: Path) -> dict[str, object]:
    work = top / "work"
    (work / ".git").mkdir(parents=True)
    os.environ |= {"XDG_CONFIG_HOME": str(top / "config"), "SLURMGPU_SITE": str(top / "site")}
    os.environ.pop("SLURMGPU_CLUSTER", None)
    os.chdir(work)
    handler = functools.partial(_Quiet, directory=str(top))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    names = CLUSTERS[:: max(1, len(CLUSTERS) // clusters)][:clusters]
    differing: list[str] = []
    scripts = refused = 0
    first: dict[str, list[float]] = {"disk": [], "server": []}
    answers: list[float] = []
    sizes: list[int] = []
    packed: list[int] = []
    for number, name in enumerate(names):
        page_folder = top / name
        sizes.append(export(page_folder, name, work, folder).size)
        files = [path.read_bytes() for path in page_folder.rglob("*") if path.is_file()]
        packed.append(sum(len(gzip.compress(data, 6)) for data in files))
        chance = random.Random(f"page {name}")
        way = ("disk", "server")[number % 2]
        base = (
            f"file://{page_folder}/index.html"
            if way == "disk"
            else f"http://127.0.0.1:{server.server_port}/{name}/"
        )
        with chromium() as page:  # one that has nothing of it yet
            drawn = [a_form(name, chance) for _ in range(forms)]
            start = time.monotonic()
            page.get(f"{base}?{urlencode(drawn[0])}")
            until(lambda page=page: page.execute_script("return slurmgpuOffline.answered()"), 400)
            if page.execute_script("return document.getElementById('script')"):
                first[way].append(time.monotonic() - start)
            for values in (*drawn[1:], drawn[0]):
                start = time.monotonic()
                shown = fill(page, values)
                answers.append(time.monotonic() - start)
                try:
                    script = as_render_says(shown, name, work)
                except AssertionError:
                    differing.append(f"{name}: {values}")
                    continue
                scripts += script
                refused += not script
        print(f"{name}: {len(differing)} differ", file=sys.stderr)
    server.shutdown()

    def seconds(values: list[float]) -> dict[str, float]:
        found = sorted(values)
        return {
            "min": round(found[0], 1),
            "median": round(statistics.median(found), 1),
            "max": round(found[-1], 1),
        }

    return {
        "clusters": len(names),
        "forms": forms * len(names),
        "scripts": scripts,
        "refused": refused,
        "scripts_that_differ": differing,
        "megabytes": round(statistics.median(sizes) / 1e6, 1),
        "megabytes_compressed": round(statistics.median(packed) / 1e6, 1),
        "seconds_to_the_first_script": {way: seconds(values) for way, values in first.items() if values},
        "seconds_from_form_to_answer": seconds(answers),
        "parts": [part.name for part in parts()],
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


if __name__ == "__main__":
    sys.exit(main())
