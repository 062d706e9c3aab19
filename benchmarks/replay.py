"""Bits flipped in trainings, and found again: ``slurmgpu checkpoint replay`` on runs that went wrong, and on runs that did not.

    python benchmarks/replay.py [--flips N] [--clean N] [--seed N] [--only flips|cost] [--json FILE]

Each run is a tiny training of one process, or of two by DDP, fsdp2 or a pipeline. In one step, on one process, one bit flips:
in a gradient, an activation, a weight or a batch; which, is drawn. A flip is a corruption if the weights or the optimizer's
state at the end have other bits than those of the same training without it; that is compared here, without slurmgpu. One that
makes a number infinite is not silent: the training itself stops. Both are counted apart, and others drawn.

Then each run is replayed as by the command line. Found: its verdict is "differs". Dated: it names the step of the flip.
To have hundreds of them, trainings are forks of one process that has imported torch.

What it costs is measured in CPU time, by trainings in turns: a plain one, with checksum_steps, with verify_steps, and a replay.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import slurmgpu  # noqa: E402
from slurmgpu.cli.actions import checkpoint_replay  # noqa: E402
from slurmgpu.cli.group import cli  # noqa: E402
from slurmgpu.submission import replaying  # noqa: E402
from slurmgpu.training import __main__ as entrypoint  # noqa: E402
from slurmgpu.training import run as _imported_before_the_forks  # noqa: E402, F401
from slurmgpu.training.comparing import compare  # noqa: E402

STEPS, SAVED = 12, 4
KINDS = ("gradient", "activation", "weight", "batch")
Strategies = tuple[tuple[str, int], ...]
REPLICATED: Strategies = (("single", 1), ("ddp", 2))
SHARDED: Strategies = (("fsdp2", 2), ("pipeline", 2))


class Case(NamedTuple):
    """A run: how it is trained, what flips in it, and the interval that is replayed."""

    strategy: str
    processes: int
    seed: int
    after: int
    flip: str | None
    stop: int | None
    """The step at which the run was stopped and started again."""

    @property
    def step(self) -> int:
        return int((self.flip or "none:0:0").split(":")[1])

    @property
    def rank(self) -> int:
        return int((self.flip or "none:0:0").split(":")[2])


class Fork:
    """A training in a fork of this process: what ``subprocess.Popen`` would be of one that is started."""

    def __init__(self, environment: Mapping[str, str], log: IO[bytes]) -> None:
        sys.stdout.flush()
        self._code: int | None = None
        self.cpu_seconds = 0.0
        self.pid = os.fork()
        if self.pid == 0:
            _train(environment, log)
        with contextlib.suppress(OSError):  # whichever of the two comes first
            os.setpgid(self.pid, self.pid)

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        return self._reap(0)

    def _reap(self, how: int) -> int | None:
        if self._code is None:
            pid, status, used = os.wait4(self.pid, how)
            self.cpu_seconds = used.ru_utime + used.ru_stime
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def _train(environment: Mapping[str, str], log: IO[bytes]) -> None:
    """Become a training."""
    try:
        os.setpgid(0, 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        os.environ.clear()
        os.environ.update(environment)
        entrypoint.main([], os.environ)
        atexit._run_exitfuncs()  # the first of these ends the process: its own came last
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def start(_python: str, _work_dir: Path, environment: Mapping[str, str], log: IO[bytes]) -> Any:
    """In place of what a replay starts."""
    return Fork(environment, log)


def ask(_python: str, module: str, arguments: list[str], _environment: Mapping[str, str]) -> str:
    """In place of a process that compares two checkpoints."""
    assert module == "comparing"
    return json.dumps(compare(*map(Path, arguments)))


def train(run_dir: Path, case: Case) -> int:
    """Train as the case says; how it ended: 0, or the code of the process that failed."""
    run_dir.mkdir()
    settings = {
        "schema": "slurmgpu.train/1", "task": f"{ROOT / 'benchmarks' / 'replayed.py'}:Flipped", "batch_size": 10,
        "max_steps": STEPS, "log_every": 4, "checksum_steps": 1, "checkpoint_steps": SAVED, "keep": 9,
        "checkpoint_share": None, "seed": case.seed, "strategy": case.strategy, "workers": 0, "sanity": False,
    }  # fmt: skip
    (run_dir / "train.json").write_text(json.dumps(settings))
    code = 0
    for until in filter(None, (case.stop, STEPS)):
        code = once(run_dir, case, until) or code
    return code


def once(run_dir: Path, case: Case, until: int) -> int:
    common = {
        **os.environ,
        "SLURMGPU_RUN_DIR": str(run_dir), "REPLAY_FLIP": case.flip or "", "SLURMGPU_MAX_STEPS": str(until),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(case.processes),
        "LOCAL_WORLD_SIZE": str(case.processes),
    }  # fmt: skip
    with (run_dir / "log").open("ab") as log:
        started = [
            Fork({**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, log)
            for rank in range(case.processes)
        ]
        ends: list[int | None] = [None for _ in started]
        while None in ends and not any(ends):
            ends = [one.poll() for one in started]
            time.sleep(0.01)
        time.sleep(0.5 if any(ends) else 0)
        for one in started:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
    return next((int(each) for each in ends if each), 0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def outcome(run_dir: Path) -> list[bytes]:
    """The bits of all that the training has learned, at its end: weights, and the optimizer's state."""
    folder = run_dir / "checkpoints" / f"step-{STEPS}"
    found: list[bytes] = []
    for path in sorted(folder.glob("*.pt")):
        content = torch.load(path, weights_only=True)
        if path.name.startswith("rank-"):
            content = content.get("optimizer")  # of a pipeline's stages
        found += bits(content)
    return found


def bits(value: Any) -> Iterable[bytes]:
    if isinstance(value, torch.Tensor):
        yield bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
    elif isinstance(value, dict):
        for each in value.values():
            yield from bits(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from bits(each)


def replay(run_dir: Path, case: Case) -> dict[str, Any]:
    command = ["checkpoint", "replay", str(run_dir), "--from", str(case.after), "--to", str(STEPS), "--json"]
    done = CliRunner().invoke(cli, [*command, "--python", sys.executable])
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"{case}: {done.output} {done.exception!r}") from None
    return {**found, "code": done.exit_code}


def drawn(dice: random.Random, number: int, strategies: Strategies, *, flips: bool) -> Case:
    """A case; strategies and kinds take turns, all else is drawn."""
    strategy, processes = strategies[number % len(strategies)]
    after = dice.choice((0, SAVED))
    step, rank = dice.randint(after + 1, STEPS), dice.randrange(processes)
    kind = KINDS[number // len(strategies) % len(KINDS)]
    flip = f"{kind}:{step}:{rank}:{dice.randrange(1 << 20)}:{dice.randrange(32)}" if flips else None
    stop = None if flips or dice.random() < 0.6 else dice.randint(1, STEPS - 1)
    return Case(strategy, processes, dice.randrange(40), after, flip, stop)


def flips(wanted: int, seed: int, folder: Path, strategies: Strategies) -> dict[str, Any]:
    """Corruptions, each replayed; until there are as many as wanted."""
    dice, counted, by = random.Random(seed), Counter[str](), Counter[str]()
    missed: list[dict[str, Any]] = []
    clean: dict[tuple[str, int], list[bytes]] = {}
    number = 0
    while counted["corruptions"] < wanted:
        case = drawn(dice, number, strategies, flips=True)
        number += 1
        run_dir = folder / f"flip-{number}"
        key = (case.strategy, case.seed)
        if key not in clean:
            if train(folder / "clean", case._replace(flip=None)):
                raise SystemExit(f"{case}: {(folder / 'clean' / 'log').read_text()}")
            clean[key] = outcome(folder / "clean")
            shutil.rmtree(folder / "clean")
        if code := train(run_dir, case):
            log = (run_dir / "log").read_text()
            if "not finite" not in log:
                raise SystemExit(f"{case}: ended with {code}: {log}")
            counted["stopped by itself, not finite"] += 1
            shutil.rmtree(run_dir)
            continue
        wrong = outcome(run_dir) != clean[key]
        found = replay(run_dir, case)
        shutil.rmtree(run_dir)
        difference = found["difference"] or {}
        alarmed = found["verdict"] == "differs"
        if not wrong:
            counted["without effect on the outcome"] += 1
            counted["without effect, yet seen (in a loss that was logged)"] += alarmed
            if found["verdict"] not in ("equal", "differs"):
                raise SystemExit(f"{case}: {found}")
            continue
        counted["corruptions"] += 1
        dated = alarmed and difference["earliest"] == difference["latest"] == case.step
        named = dated and difference["ranks"] == [case.rank]
        wrongly = dated and difference["ranks"] not in ([case.rank], None)
        for what, holds in (("found", alarmed), ("dated", dated), ("rank named", named)):
            counted[what] += holds
            by[f"{case.strategy}, {str(case.flip).split(':')[0]}: {what}"] += holds
        by[f"{case.strategy}, {str(case.flip).split(':')[0]}: all"] += 1
        counted["another rank named"] += wrongly
        if not dated or wrongly:
            missed.append({"case": case._asdict(), "found": found})
            print("MISSED", missed[-1], flush=True)
        if not counted["corruptions"] % 10:
            print(dict(counted), flush=True)
    return {"drawn": number, **counted, "by kind": dict(sorted(by.items())), "missed": missed}


def clean(wanted: int, seed: int, folder: Path, strategies: Strategies) -> dict[str, Any]:
    """Runs that nothing has happened to, some of them stopped and started again in between."""
    dice, counted, alarms = random.Random(seed), Counter[str](), []
    for number in range(wanted):
        case, run_dir = drawn(dice, number, strategies, flips=False), folder / f"clean-{number}"
        if code := train(run_dir, case):
            log = (run_dir / "log").read_text()
            if case.stop is None:
                raise SystemExit(f"{case}: ended with {code}: {log}")
        found = replay(run_dir, case)
        shutil.rmtree(run_dir)
        counted["replays"] += 1
        counted["stopped and gone on in between"] += case.stop is not None
        counted[found["verdict"]] += 1
        if found["verdict"] != "equal":
            alarms.append({"case": case._asdict(), "found": found})
            print("ALARM", alarms[-1], flush=True)
    return {**counted, "alarms": alarms}


def flips_and_clean(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Any]]:
    """All of them, of replicated and of sharded models."""
    for name, strategies, share in (("replicated", REPLICATED, 1.0), ("sharded", SHARDED, options.sharded)):
        for what, act, wanted in (("flips", flips, options.flips), ("clean", clean, options.clean)):
            began = time.monotonic()
            found = act(round(wanted * share), options.seed, folder, strategies)
            yield f"{what}, {name}", {**found, "seconds": round(time.monotonic() - began, 1)}


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "checksum_steps: 1": {"checksum_steps": 1},
    "checksum_steps: 100": {"checksum_steps": 100},
    "verify_steps: 1": {"verify_steps": 1},
    "verify_steps: 100": {"verify_steps": 100},
}


def cost(rounds: int, steps: int, folder: Path) -> dict[str, Any]:
    """CPU milliseconds of a step, without the start; medians of some rounds in which all take turns."""
    taken: dict[str, list[float]] = {name: [] for name in (*VARIANTS, "replay of steps 1 to the last")}
    again: list[Fork] = []

    def remembered(_python: str, _work_dir: Path, environment: Mapping[str, str], log: IO[bytes]) -> Any:
        again.append(Fork(environment, log))
        return again[-1]

    for number in range(rounds):
        for name, more in VARIANTS.items():
            run_dir = folder / f"cost-{number}-{len(more)}"
            start_alone = cpu_of(run_dir, 1, more)
            taken[name].append((cpu_of(run_dir, steps + 1, more) - start_alone) / steps * 1000)
            if name != "plain":
                shutil.rmtree(run_dir)
        plain = folder / f"cost-{number}-0"
        start_alone = cpu_of(folder / "start", 1, {})
        replaying._start = remembered
        command = ["checkpoint", "replay", str(plain), "--from", "0", "--python", sys.executable]
        done = CliRunner().invoke(cli, command)
        replaying._start = start  # type: ignore[assignment]
        if done.exit_code:
            raise SystemExit(done.output)
        taken["replay of steps 1 to the last"].append((again[-1].cpu_seconds - start_alone) / steps * 1000)
        shutil.rmtree(plain)
        shutil.rmtree(folder / "start")
    return {
        "parameters": 1_058_817, "batch_size": 10, "steps": steps, "rounds": rounds,
        "cpu_milliseconds_a_step": {name: round(statistics.median(each), 3) for name, each in taken.items()},
    }  # fmt: skip


def cpu_of(run_dir: Path, steps: int, more: Mapping[str, Any]) -> float:
    """CPU seconds of a training of so many steps."""
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir()
    settings = {
        "schema": "slurmgpu.train/1", "task": f"{ROOT / 'benchmarks' / 'replayed.py'}:Wide", "batch_size": 10,
        "max_steps": steps, "log_every": 10, "checkpoint_every": 10**6, "workers": 0, "sanity": False, **more,
    }  # fmt: skip
    (run_dir / "train.json").write_text(json.dumps(settings))
    with (run_dir / "log").open("ab") as log:
        training = Fork({**os.environ, "SLURMGPU_RUN_DIR": str(run_dir)}, log)
        if training.wait():
            raise SystemExit((run_dir / "log").read_text())
    return training.cpu_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--flips", type=int, default=100, help="corruptions")
    parser.add_argument("--clean", type=int, default=100)
    parser.add_argument("--sharded", type=float, default=0.4, help="so many times as many in sharded runs")
    parser.add_argument("--rounds", type=int, default=5, help="of what is measured of the cost")
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--only", choices=("flips", "cost"), help="leaves the rest of FILE as it is")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.pop("REPLAY_FLIP", None)
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    replaying._start = start  # type: ignore[assignment]
    vars(checkpoint_replay)["ask_entrypoint"] = ask
    results: dict[str, Any] = {}
    if options.only and options.json is not None and options.json.exists():
        results = json.loads(options.json.read_text())["results"]
    with tempfile.TemporaryDirectory(prefix="slurmgpu-replay-") as temporary:
        if options.only != "flips":
            results["cost"] = cost(options.rounds, 100, Path(temporary))
            write(options, results)
        if options.only != "cost":
            for name, found in flips_and_clean(options, Path(temporary)):
                results[name] = found
                write(options, results)


def write(options: argparse.Namespace, results: Mapping[str, Any]) -> None:
    """Print and write what there is so far."""
    document = {
        "schema": "slurmgpu.benchmark/1",
        "benchmark": "replay",
        "setting": {"seed": options.seed, "steps": STEPS, "checkpoint_steps": SAVED, "checksum_steps": 1},
        "machine": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
        "versions": {"torch": torch.__version__, "slurmgpu": slurmgpu.__version__},
        "results": results,
    }
    print(json.dumps(document, indent=1), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
