"""Kills loops of one's own, as docs/own-script.md has them, at random moments, and holds each against an undisturbed run.

    python benchmarks/soak_own_loops.py [--kills N] [--seed N] [--json FILE]

The loops are the scripts of examples/own_loop, unchanged: batches alone, epochs with a schedule and a best model, and two
processes with DDP. A disturbance is a signal (KILL, TERM, USR1) to one rank or to all, at a random moment. Each run must end
with the same weights, optimizer, schedule and random state as the undisturbed one, and with the same best model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.soak import _free_port, _kill, _pieces  # noqa: E402
from slurmgpu.training import Run  # noqa: E402

LOOPS = {"train.py": 1, "epochs.py": 1, "ddp.py": 2}
"""The scripts, and in how many processes each runs."""
PATIENCE = 300.0


def digest(script: str) -> str:
    """Run a script in this process, and return a hash of all that it has at its end."""
    left = runpy.run_path(str(ROOT / "examples" / "own_loop" / script), run_name="__main__")
    run: Run = left["run"]
    kept = {name: left[name].state_dict() for name in ("model", "optimizer", "scheduler") if name in left}
    best = Path(os.environ["SLURMGPU_RUN_DIR"], "best.pt")
    kept |= {"best": torch.load(best, weights_only=True)} if best.exists() else {}
    found = hashlib.sha256(repr((run.step, torch.get_rng_state().tolist())).encode())
    for piece in _pieces(kept):
        found.update(piece)
    return found.hexdigest()


def start(script: str, folder: Path, number: int, fault: tuple[int, str, float] | None) -> list[int]:
    """Start all ranks, disturb them, and wait for the end; the ranks' exit codes."""
    port, processes, pids = _free_port(), LOOPS[script], list[int]()
    for rank in range(processes):
        pid = os.fork()
        if not pid:
            _rank(script, folder, number, rank, port)
        pids.append(pid)
    ended: dict[int, int] = {}
    began, failed_at = time.monotonic(), 0.0
    while len(ended) < processes:
        now = time.monotonic()
        if fault is not None and now - began > fault[2]:
            for rank, pid in enumerate(pids):
                if fault[1] in ("all", str(rank)) and pid not in ended:
                    _kill(pid, fault[0])
            fault = None
        for pid in pids:
            if pid not in ended and (done := os.waitpid(pid, os.WNOHANG))[0]:
                ended[pid] = os.waitstatus_to_exitcode(done[1])
        failed_at = failed_at or (now if any(code not in (0, 75) for code in ended.values()) else 0.0)
        if (failed_at and now - failed_at > 2) or now - began > PATIENCE:  # as srun ends the rest of a step
            for pid in set(pids) - set(ended):
                _kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return [ended[pid] for pid in pids]


def _rank(script: str, folder: Path, number: int, rank: int, port: int) -> None:
    """One rank, in a process of its own, which ends here."""
    code = 99
    try:
        log = os.open(folder / f"log-{number}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        ranks = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": LOOPS[script],
            "LOCAL_WORLD_SIZE": LOOPS[script],
        }
        os.environ |= {name: str(value) for name, value in ranks.items()}
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "SLURMGPU_RUN_DIR": str(folder),
            "SLURM_RESTART_COUNT": str(number),
        }
        torch.set_num_threads(1)
        (folder / f"digest-{rank}").write_text(digest(script))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def digests(folder: Path) -> list[str]:
    """What the ranks of a finished run have come to."""
    return [path.read_text() for path in sorted(folder.glob("digest-*"))]


def faults(dice: random.Random, processes: int, longest: float) -> Iterator[tuple[int, str, float]]:
    """Draw disturbances for ever: the signal, a rank or all, and the seconds after which it comes."""
    while True:
        number = dice.choice([signal.SIGKILL] * 3 + [signal.SIGTERM, signal.SIGUSR1])
        yield number, dice.choice(["all", str(dice.randrange(processes))]), dice.uniform(0.0, longest)


def main() -> None:
    """Soak, print, and keep the figures when asked to; exit code 1 where a run came to something else."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=90)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    dice, did, results, failures = random.Random(given.seed), Counter[str](), dict[str, Any](), list[str]()
    with tempfile.TemporaryDirectory(prefix="soak-own-", ignore_cleanup_errors=True) as place:
        for script, processes in LOOPS.items():
            whole = Path(place, script, "undisturbed")
            whole.mkdir(parents=True)
            began = time.monotonic()
            if set(start(script, whole, 0, None)) != {0}:
                raise SystemExit(
                    f"{script}: the undisturbed run failed: {(whole / 'log-0-0').read_text()[-1500:]}"
                )
            drawn, kills, runs, starts = faults(dice, processes, time.monotonic() - began), 0, 0, 0
            while kills < given.kills // len(LOOPS):
                folder = Path(place, script, f"run-{runs}")
                folder.mkdir()
                number, codes = 0, list[int]()
                while not codes or set(codes) != {0}:
                    fault = next(drawn) if kills < given.kills // len(LOOPS) else None
                    codes = start(script, folder, number, fault)
                    number += 1
                    if set(codes) != {0} and fault is not None:
                        kills += 1
                        did[
                            f"{signal.Signals(fault[0]).name} to {fault[1] if fault[1] == 'all' else 'one rank'}"
                        ] += 1
                    elif set(codes) != {0} or number > 60:
                        failures.append(
                            f"{folder}: ended with {codes}: {(folder / f'log-{number - 1}-0').read_text()[-800:]}"
                        )
                        break
                runs, starts = runs + 1, starts + number
                if digests(folder) != digests(whole):
                    failures.append(
                        f"{script}, run {runs}: differs from the undisturbed run after {number} starts"
                    )
            results[script] = {"processes": processes, "runs": runs, "starts": starts, "kills": kills}
            print(f"{script}: {kills} kills, {runs} runs, {starts} starts", flush=True)
    document = {
        "schema": "slurmgpu.benchmark/1",
        "benchmark": "soak_own_loops",
        "setting": {"seed": given.seed, "kills": given.kills},
        "machine": {
            "machine": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version(),
            "load": [round(each, 1) for each in os.getloadavg()],  # over 1, 5, 15 minutes, with its own
        },
        "versions": {"torch": torch.__version__},
        "results": {"loops": results, "disturbances": dict(sorted(did.items())), "failures": failures},
    }  # fmt: skip
    print(json.dumps(document["results"], indent=1))
    if given.json:
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
