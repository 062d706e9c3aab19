"""What 16 open pages of `slurmgpu web` cost a Slurm with 1,000 jobs, beside one `slurmgpu status --watch`; and the first page.

    python benchmarks/web_runs.py [--jobs N] [--pages N] [--seconds S] [--json FILE]

Starts a sandbox (`slurmgpu sandbox`), submits the jobs with Slurm's own sbatch (some run, the others wait), and lets first one
watcher and then the pages ask for as long as --seconds. Half of the pages are lists, half are jobs; each asks as its scripts do
in a browser: the list every 30 s; of a job its state and its plots every 10 s, its log every 2 s, its drawing every 30 s.

What is counted is what Slurm is asked: calls of its commands, by wrappers in front of them, and the requests that slurmctld has
answered, by sdiag. No figure of slurmgpu's counts.

Where Chromium and Selenium are there, it opens the first page, cut off from every name but this machine's, and says how long that
took until all of it was loaded, and whatever it asked of another host (which is to be nothing).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SLURMGPU = [sys.executable, "-m", "slurmgpu"]
NAME = "web-runs"
RUNNING = 16
COMMANDS = (
    "squeue",
    "sacct",
    "scontrol",
    "sinfo",
    "sstat",
    "sdiag",
    "sacctmgr",
    "sshare",
    "sbatch",
    "scancel",
)
EVERY = {
    "runs": [("/runs/rows", 30.0)],
    "run": [
        ("/run/now?job={}", 10.0),
        ("/run/metrics?job={}", 10.0),
        ("/run/log?job={}", 2.0),
        ("/run/graph?job={}", 30.0),
    ],
}
"""What the scripts of each page ask, and how often."""
LOADED = "return performance.getEntriesByType('navigation')[0].loadEventEnd"


def environment(folder: Path) -> dict[str, str]:
    """The sandbox's, with a wrapper before each of Slurm's commands."""
    argv = [*SLURMGPU, "sandbox", "exec", "--name", NAME, "--", "env", "-0"]
    told = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    env = dict(line.partition("=")[::2] for line in told.split("\0") if line)
    wrappers = folder / "bin"
    wrappers.mkdir(exist_ok=True)
    for name in COMMANDS:
        found = subprocess.run(["which", name], env=env, capture_output=True, text=True).stdout.strip()
        if found:
            path = wrappers / name
            path.write_text(f'#!/bin/sh\necho {name} >>"$CALLS"\nexec {found} "$@"\n')
            path.chmod(0o755)
    return env | {
        "PATH": f"{wrappers}:{env['PATH']}",
        "CALLS": str(folder / "calls"),
        "PYTHONPATH": str(ROOT),
    }


def rpcs(env: dict[str, str]) -> Counter[str]:
    """How many requests of each kind slurmctld has answered."""
    told = subprocess.run(["sdiag"], env=env, check=True, capture_output=True, text=True).stdout
    by_type = told.partition("statistics by message type")[2].partition("statistics by user")[0]
    return Counter(
        {name: int(count) for name, count in re.findall(r"(REQUEST_\w+)\s+\(\s*\d+\) count:(\d+)", by_type)}
    )


@contextmanager
def counted(env: dict[str, str], found: dict[str, object]) -> Iterator[dict[str, str]]:
    """What is asked meanwhile; with a cache of its own, so that nobody else's answers are shared."""
    calls = Path(env["CALLS"])
    with tempfile.TemporaryDirectory() as cache:
        before = rpcs(env)
        calls.write_text("")
        yield env | {"XDG_CACHE_HOME": cache, "XDG_RUNTIME_DIR": cache}
        found["calls"] = dict(sorted(Counter(calls.read_text().split()).items()))
        asked = rpcs(env) - before
        asked.pop("REQUEST_STATS_INFO", None)  # sdiag's own
        found["requests"] = {name: count for name, count in sorted(asked.items()) if "JOB" in name}


def submit(env: dict[str, str], jobs: int) -> list[str]:
    """The ids of the first jobs; some run, the others wait for these."""
    argv = ["sbatch", "--parsable", "-t", "60", "-o", "/dev/null", "--wrap", "sleep 3600"]
    ids = []
    for number in range(jobs):
        more = ["-c", "4"] if number < RUNNING else ["--exclusive"]
        done = subprocess.run([*argv, *more], env=env, check=True, capture_output=True, text=True)
        ids.append(done.stdout.strip().partition(";")[0])
    return ids


def watcher(env: dict[str, str], seconds: float) -> None:
    """One person with one terminal."""
    process = subprocess.Popen([*SLURMGPU, "status", "--watch"], env=env, stdout=subprocess.DEVNULL)
    time.sleep(seconds)
    process.terminate()
    process.wait()


@contextmanager
def serving(env: dict[str, str], folder: Path) -> Iterator[str]:
    """The server, and its address."""
    process = subprocess.Popen([*SLURMGPU, "web"], env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)  # fmt: skip
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate()


def client(address: str) -> tuple[urllib.request.OpenerDirector, str]:
    """A browser of its own, as far as cookies go, that has been let in."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    deadline = time.monotonic() + 30
    while True:
        try:
            opener.open(address, timeout=30).read()
            return opener, f"http://{urlsplit(address).netloc}"
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def page(address: str, kind: str, job: str, until: float, times: list[float]) -> None:
    """One page that stays open."""
    opener, base = client(address)
    asked = [(base + path.format(job), pace) for path, pace in EVERY[kind]]
    opener.open(base + ("/runs" if kind == "runs" else f"/run?job={job}"), timeout=60).read()
    due = [time.monotonic() + pace for _, pace in asked]
    while (now := time.monotonic()) < until:
        for index, (url, pace) in enumerate(asked):
            if now >= due[index]:
                begun = time.monotonic()
                opener.open(url, timeout=60).read()
                times.append(time.monotonic() - begun)
                due[index] = time.monotonic() + pace
        time.sleep(0.05)


def pages(address: str, count: int, jobs: list[str], seconds: float) -> dict[str, object]:
    """All of them at once; how often they asked, and how long an answer took."""
    times: list[float] = []
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(
            target=page, args=(address, "runs" if n % 2 else "run", jobs[n % len(jobs)], until, times)
        )
        for n in range(count)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    ordered = sorted(times)
    return {
        "questions_to_the_server": len(times),
        "seconds_median": round(statistics.median(ordered), 4),
        "seconds_99_of_100": round(ordered[len(ordered) * 99 // 100], 4),
    }


def first_page(env: dict[str, str], folder: Path) -> dict[str, object]:
    """The first page by HTTP, of a server that nobody has asked yet and afterwards; in a browser where there is one."""
    found: dict[str, object] = {}
    cold = []
    for _ in range(5):
        with serving(env, folder) as address:
            opener, base = client(address)
            begun = time.monotonic()
            opener.open(base + "/", timeout=30).read()
            cold.append(time.monotonic() - begun)
    found["http_seconds_of_a_new_server"] = [round(one, 3) for one in cold]
    with serving(env, folder) as address:
        client(address)
        found |= in_browser(address)
    return found


def in_browser(address: str) -> dict[str, object]:
    """Until everything of the page is loaded, each time in a browser that has nothing of it yet."""
    try:
        from tests.browser import chromium, until
    except ImportError:
        return {}
    base = f"http://{urlsplit(address).netloc}"
    loads, foreign, first_script = [], set(), []
    with chromium("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1") as browser:
        browser.get(address)
        until(lambda: browser.current_url == f"{base}/")
        for _ in range(10):
            browser.execute_cdp_cmd("Network.clearBrowserCache", {})
            browser.get(f"{base}/")
            loads.append(until(lambda: browser.execute_script(LOADED)) / 1000)
            names = browser.execute_script(
                "return performance.getEntriesByType('resource').map((one) => one.name)"
            )
            foreign |= {name for name in names if not name.startswith((base, "data:"))}
        for _ in range(5):
            begun = time.monotonic()
            browser.get(
                f"{base}/?cluster=uva-afton&command=python+train.py&resources.gpus=2&resources.account=mine"
            )
            until(lambda: browser.find_elements("id", "script"))
            first_script.append(time.monotonic() - begun)
    return {
        "browser": browser.capabilities["browserVersion"],
        "browser_seconds_until_loaded": [round(one, 3) for one in loads],
        "browser_seconds_until_a_link_shows_its_script": [round(one, 3) for one in first_script],
        "asked_of_other_hosts": sorted(foreign),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pages", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    up = [*SLURMGPU, "sandbox", "up", "--name", NAME, "--nodes", "1", "--for", "1h"]
    subprocess.run(up, check=True, stdout=subprocess.DEVNULL)
    try:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            (folder / "project").mkdir()
            env = environment(folder)
            jobs = submit(env, given.jobs)
            told = subprocess.run(
                ["squeue", "-h", "-r", "-o", "%T"], env=env, capture_output=True, text=True
            ).stdout
            found: dict[str, object] = {
                "slurm": subprocess.run(
                    ["squeue", "-V"], env=env, capture_output=True, text=True
                ).stdout.split()[1],
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
                "jobs": dict(Counter(told.split())),
                "seconds": given.seconds,
            }
            one: dict[str, object] = {}
            with counted(env, one) as own:
                watcher(own, given.seconds)
            found["one_watcher"] = one
            many: dict[str, object] = {"pages": given.pages}
            with counted(env, many) as own, serving(own, folder / "project") as address:
                many |= pages(address, given.pages, jobs, given.seconds)
            found["pages"] = many
            found["first_page"] = first_page(env, folder / "project")
    finally:
        subprocess.run([*SLURMGPU, "sandbox", "down", NAME], stdout=subprocess.DEVNULL)
    text = json.dumps(found, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
