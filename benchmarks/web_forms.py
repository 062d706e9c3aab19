"""The generator in a real browser beside `slurmgpu render`: 20 clusters x 10 random forms, compared byte for byte.

    python benchmarks/web_forms.py [--clusters N] [--forms N] [--seed TEXT] [--json FILE]

`slurmgpu web` runs as a person starts it. Each form is filled in at once in Chromium. The script that the page shows is held
against what `slurmgpu render` prints of the job file that the page shows, in the same folder. Where there is no script, render
has to refuse, and the page has to say what is wrong. Ends with 1 where one differs. tests/test_web_browser.py tries eight.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from click.testing import CliRunner  # noqa: E402

from slurmgpu.cli.group import cli  # noqa: E402
from slurmgpu.files.data import data_folder  # noqa: E402
from tests.browser import chromium, fill, text_of, until  # noqa: E402
from tests.test_web import a_form  # noqa: E402


def rendered(text: str, cluster: str) -> tuple[int, str]:
    file = Path("job.yaml")
    file.write_text(text, encoding="utf-8")
    done = CliRunner().invoke(cli, ["render", "job.yaml", "--cluster", cluster])
    file.unlink()
    return done.exit_code, done.stdout


def compare(page: Any, values: dict[str, str], cluster: str) -> str:
    """What came of one form."""
    fill(page, values)
    script = text_of(page, "script")
    said = page.execute_script(
        "return [...document.querySelectorAll('#job p.error, #answer .problem')].some((one) => one.textContent.trim())"
    )
    code, expected = rendered(text_of(page, "job-file"), cluster)
    if script != expected or (code == 0) != bool(script):
        return "differs"
    if script:
        return "the same script"
    return "refused by both" if said else "refused without a word"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--forms", type=int, default=10)
    parser.add_argument("--seed", default="browser")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = sorted(path.stem for path in data_folder("clusters").glob("*.yaml"))
    chosen = names[:: max(1, len(names) // given.clusters)][: given.clusters]
    counts: Counter[str] = Counter()
    different = []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as made, chromium() as browser:
        os.chdir(made)
        Path(".git").mkdir()  # no settings of anybody around it
        Path("train.py").write_text("print('hello')\n")
        os.environ |= {"XDG_CONFIG_HOME": f"{made}/config", "SLURMGPU_SITE": f"{made}/site"}
        argv = [sys.executable, "-m", "slurmgpu", "web"]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        server = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            base = f"http://{urlsplit(address).netloc}"
            browser.get(address)
            until(lambda: browser.current_url == f"{base}/")
            for cluster in chosen:
                browser.get(f"{base}/?{urlencode({'cluster': cluster})}")
                chance = random.Random(f"{given.seed} {cluster}")
                for _ in range(given.forms):
                    values = a_form(cluster, chance)
                    found = compare(browser, values, cluster)
                    counts[found] += 1
                    if found not in ("the same script", "refused by both"):
                        different.append({"cluster": cluster, "form": values, "what": found})
        finally:
            server.terminate()
            server.communicate()
        version = browser.capabilities["browserVersion"]
    found_all = {
        "clusters": chosen,
        "forms": sum(counts.values()),
        "outcomes": dict(sorted(counts.items())),
        "different": different,
        "browser": version,
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - begun, 1),
    }
    text = json.dumps(found_all, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
