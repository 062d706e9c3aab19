"""Hold what a run has written of an interval against a replay of it, and judge whether they agree."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.runs.checkpoints import Checkpoint, damage
from slurmgpu.runs.directory import ask_entrypoint, read_plan
from slurmgpu.runs.replay import (
    Again,
    Told,
    first_difference,
    folder_of_job,
    lay_out,
    lines_of_both,
    starts,
    told,
    train_again,
)
from slurmgpu.training.formats.metrics import MetricsRow
from slurmgpu.training.formats.settings import CHANGE_NO_BIT

if TYPE_CHECKING:
    from slurmgpu.runs.checkpoints import Checkpoint


CODES = {"equal": 0, "differs": 1, "within the band": 0, "unknown": 3}


_BAND, _SURE = 3.0, 30.0
"""A run as far from two replays as three times their own distance is as they are; from thirty times on it is not."""


_MAY_CHOOSE = (
    "two replays are the same and the run is not, but without deterministic: true a GPU may compute in another way in "
    "another start, and two replays do not tell how far apart these are"
)


class _Unknown(Exception):
    """It cannot be told; why is its text."""


class _Interval(NamedTuple):
    """The interval to train again: from a checkpoint (None: from the beginning) to a step, which may have one."""

    run_dir: Path
    begin: Checkpoint | None
    until: int
    end: Checkpoint | None

    @property
    def after(self) -> int:
        return 0 if self.begin is None else self.begin.step


class Trainer(Protocol):
    """A trainer of an interval."""

    def train(self, what: Again) -> Path:
        """Train it; the new run directory. RunFailed where the training ended before its last step."""

    def compare(self, other: Path, replayed: Path, step: int) -> dict[str, Any]:
        """Compare the checkpoint of that step in a new run directory with one that it was to be held against."""


class Here:
    """This machine, in a temporary folder."""

    def __init__(self, python: str, folder: Path) -> None:
        self._python, self._folder = python, folder
        self._number = 0

    def train(self, what: Again) -> Path:
        """Train it in a folder of its own."""
        self._number += 1
        scratch = self._folder / str(self._number)
        lay_out(scratch, what.run_dir, what.settings, what.checkpoint, what.until)
        plan = folder_of_job(what.run_dir)
        work_dir = Path.cwd() if plan is None else Path(read_plan(plan).work_dir)
        environ = {**os.environ, **({"OMP_NUM_THREADS": str(what.threads)} if what.threads else {})}
        train_again(self._python, scratch, work_dir, what.processes, what.until, environ)
        return scratch

    def compare(self, other: Path, replayed: Path, step: int) -> dict[str, Any]:
        """Compare with the Python that trains."""
        own = replayed / "checkpoints" / f"step-{step}"
        answer = ask_entrypoint(self._python, "comparing", [str(other.absolute()), str(own)], os.environ)
        found: dict[str, Any] = json.loads(answer)
        return found


def find_interval(run_dir: Path, found: list[Checkpoint], begin: int | None, end: int | None) -> _Interval:
    """Return the interval to train again; InvalidInput if there is no such one."""
    whole = [one for one in found if one.state == "complete"]
    if end is None and not whole:
        raise InvalidInput(
            f"{run_dir} has no checkpoint", hint="name the last step of the interval: --to STEP"
        )
    until = whole[0].step if end is None else end
    last = next((one for one in whole if one.step == until), None)
    if end is not None and whole:
        total = _manifest(whole[0]).get("total_steps")
        if isinstance(total, int) and end > total and not told(run_dir, total, end).lines:
            raise InvalidInput(
                f"--to {end}: the run has {total} steps",
                hint=f"give a step up to {total}, or leave --to out: the newest checkpoint is that of step {whole[0].step}",
            )
    most = until - 1 if begin is None else begin
    if most >= until:
        raise InvalidInput(
            f"--from {most}: the interval ends at step {until}",
            hint="give an earlier --from, or a later --to",
        )
    first = next((one for one in whole if one.step <= most), None)
    for one in filter(None, (first, last)):
        problems = damage(one)
        if problems is None or problems:
            raise InvalidInput(
                f"step-{one.step} is not intact: {'; '.join(problems or ['it was pruned meanwhile'])}",
                hint="take another interval: slurmgpu checkpoint verify shows what is intact",
            )
    return _Interval(run_dir, first, until, last)


def _manifest(one: Checkpoint | None) -> dict[str, Any]:
    return {} if one is None else json.loads((one.path / "manifest.json").read_bytes())


def judge_replay(interval: _Interval, trainer: Trainer) -> dict[str, Any]:
    """Train the interval again, and return the verdict with what it rests on."""
    try:
        return _replayed(interval, trainer)
    except (_Unknown, RunFailed) as error:
        return {"verdict": "unknown", "why": str(error)}


def _replayed(interval: _Interval, trainer: Trainer) -> dict[str, Any]:
    """Return the verdict, with what it rests on."""
    known = [each for each in (_manifest(interval.begin), _manifest(interval.end)) if each]
    of_run = [row for row in starts(interval.run_dir) if row.step < interval.until]
    if any("settings" not in each for each in known):
        raise _Unknown(
            "this run has a loop of its own, in a script, and only what train: describes can be trained again"
        )
    if not of_run:
        raise _Unknown("metrics.jsonl has no start of this run: it says on what the run was trained")
    settings: Any = known[-1]["settings"] if known else of_run[-1].values["settings"]
    _require_one_setting(known, interval)
    since = [row for row in of_run if row.step >= interval.after] or of_run[-1:]
    before = [row for row in of_run if row.step < interval.after]
    of_run = before[-1:] + since if since[0].step > interval.after else since
    sizes = {row.values.get("world_size") for row in of_run}
    if len(sizes) != 1:
        raise _Unknown(
            f"the interval was trained with different numbers of processes: {sorted(map(str, sizes))}"
        )
    processes = int(str(sizes.pop()))
    places: Any = of_run[-1].values.get("ranks")
    threads = places[0].get("threads") if isinstance(places, list) and places else None
    ends = [] if interval.end is None else [interval.end.path]
    begin = None if interval.begin is None else interval.begin.path
    what = Again(interval.run_dir, settings, begin, interval.until, ends, processes, threads)
    first = _again(interval, what, trainer, of_run)
    run = told(interval.run_dir, interval.after, interval.until)
    if interval.end is None and not (run.lines or run.sums):
        raise _Unknown(f"the run has neither metrics nor a checkpoint of steps up to {interval.until}")
    parts = trainer.compare(ends[0], first.folder, interval.until) if ends else None
    differing = sorted(name for name, part in (parts or {}).items() if part["count"])
    span = interval.after, interval.until, processes
    difference = first_difference(run, first.told, *span, bool(differing), settings["strategy"])
    if difference is None:
        return {"verdict": "equal", "parts": parts}
    if first.elsewhere is not None:
        raise _Unknown(f"something differs, but {first.elsewhere}: replay it on the same kind of machine")
    end_of_first = first.folder / "checkpoints" / f"step-{interval.until}"
    second = _again(interval, replace(what, against=[end_of_first]), trainer, of_run)
    between = trainer.compare(end_of_first, second.folder, interval.until)
    apart = {name: part["distance"] for name, part in between.items() if part["count"]}
    same = first_difference(first.told, second.told, *span, bool(apart), settings["strategy"])
    if same is None:
        told_of = {"parts": parts, "difference": difference.__dict__}
        if of_run[-1].values.get("device_name") == "CPU" or settings["deterministic"]:
            # What two replays agree on to the last bit, the run should have done too.
            return {"verdict": "differs", **told_of}
        return {"verdict": "unknown", "why": _MAY_CHOOSE, **told_of}
    return _by_band(run, first, second, parts, apart)


def _require_one_setting(known: list[dict[str, Any]], interval: _Interval) -> None:
    if len(known) < 2:
        return
    one, other = (each["settings"] for each in known)
    changed = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    changed = [name for name in changed if name not in CHANGE_NO_BIT]
    if known[0]["task_sha256"] != known[1]["task_sha256"]:
        changed.append("the text of the task")
    if changed:
        raise _Unknown(
            f"between step {interval.after} and {interval.until} the run has changed: {', '.join(changed)}"
        )


class _Replay(NamedTuple):
    folder: Path
    told: Told
    elsewhere: str | None
    """The machine's difference from the run's."""


def _again(interval: _Interval, what: Again, trainer: Trainer, of_run: list[MetricsRow]) -> _Replay:
    folder = trainer.train(what)
    end = _manifest_at(folder, interval.until)
    was = _manifest(interval.end or interval.begin)
    if was and end["task_sha256"] != was["task_sha256"]:
        raise _Unknown(f"the text of {what.settings['task']} is not what it was when the run was trained")
    (started, *_) = starts(folder)
    return _Replay(folder, told(folder, interval.after, interval.until), _elsewhere(of_run, started))


def _manifest_at(folder: Path, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (folder / "checkpoints" / f"step-{step}" / "manifest.json").read_bytes()
    )
    return found


def _elsewhere(of_run: list[MetricsRow], started: MetricsRow) -> str | None:
    """Return why bits may differ without a fault: another device, torch or, on the CPU, another machine."""
    for row in of_run:
        for name in ("device_name", "torch", "world_size"):
            if row.values.get(name) != started.values.get(name):
                return f"the run had {name} {row.values.get(name)}, and the replay {started.values.get(name)}"
        if row.values.get("device_name") == "CPU" and _cpus(row, started) != _cpus(started, row):
            then, now = (", ".join(_told(each)) for each in (row, started))
            return f"the run was trained on the CPU of {then}, and the replay on that of {now}"
        if (before := _spread(row)) != (here := _spread(started)):
            return f"the run had {before} processes on its nodes, and the replay {here}: sums over them go other ways"
    return None


def _spread(row: MetricsRow) -> str:
    """Processes by node, such as 4 + 4."""
    places: Any = row.values.get("ranks")
    return " + ".join(map(str, Counter(each["host"] for each in places).values()))


def _cpus(row: MetricsRow, other: MetricsRow) -> list[object]:
    """By rank, the model of CPU and the threads; the host where a line of an earlier version has no model."""
    places: Any = row.values.get("ranks")
    others: Any = other.values.get("ranks")
    known = all("cpu" in each for each in (*places, *others))
    return [(each["cpu"] if known else each["host"], each.get("threads")) for each in places]


def _told(row: MetricsRow) -> list[str]:
    places: Any = row.values.get("ranks")
    model = "{cpu}, " if all("cpu" in each for each in places) else ""
    return sorted(
        {f"{each['host']} ({model.format(**each)}{each.get('threads')} threads)" for each in places}
    )


def _by_band(
    run: Told,
    one: _Replay,
    other: _Replay,
    parts: Mapping[str, Any] | None,
    apart: Mapping[str, float | None],
) -> dict[str, Any]:
    """Return the verdict where two replays differ: how far the run is from them, by how far they are from each other."""
    found: dict[str, float | None] = {}
    losses = [
        tuple(_loss(each.lines[step]) for each in (run, one.told, other.told))
        for step in lines_of_both(run, one.told)
        if step in other.told.lines
    ]
    if losses and (spread := max((abs(b - c) for _, b, c in losses), key=_nan_last)):
        found["losses"] = _times(max((abs(a - (b + c) / 2) for a, b, c in losses), key=_nan_last), spread)
    if parts and (between := _distance(apart)):
        from_run = {name: part["distance"] for name, part in parts.items() if part["count"]}
        found["weights"] = _times(_distance(from_run), between)
    ratios = {name: ratio for name, ratio in found.items() if ratio is not None}
    if not ratios:
        return {
            "verdict": "unknown",
            "why": "two replays differ from each other, and neither losses nor weights say by how much",
        }
    worst = max(ratios.values())
    # A few losses of two replays may be close by chance; all weights are not.
    sure = ratios.get("weights", 0.0) > _SURE or math.isinf(worst)
    verdict = "differs" if sure else "within the band" if worst <= _BAND else "unknown"
    listed = ", ".join(f"{name} {ratio:.2g} times" for name, ratio in ratios.items())
    why = f"two replays differ from each other; the run is as far from them as they are, times: {listed}"
    return {"verdict": verdict, "why": why, "parts": parts}


def _loss(line: Mapping[str, Any]) -> float:
    found = line.get("loss")
    return math.nan if found is None else float(found)


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _times(distance: float, spread: float) -> float | None:
    """Return how many times the spread a distance is; infinite if the run alone is not finite, None if the replays are not."""
    if not math.isfinite(spread):
        return None
    return distance / spread if math.isfinite(distance) else math.inf


def _distance(parts: Mapping[str, float | None]) -> float:
    """That of the weights; sharded ones, with their optimizer's state, lie in a file for each process."""
    found = [each for name, each in parts.items() if name == "model.pt" or name.startswith("shard-")]
    return math.hypot(*(math.inf if each is None else each for each in found))


def replay_in_words(document: Mapping[str, Any]) -> list[str]:
    """Return the lines of a verdict for people."""
    head = f"steps {document['from'] + 1} to {document['to']}: {document['verdict']}"
    lines = [head if document["why"] is None else f"{head}: {document['why']}"]
    if (found := document["difference"]) is not None:
        one = found["earliest"] == found["latest"]
        when = (
            f"step {found['latest']}" if one else f"one of the steps {found['earliest']} to {found['latest']}"
        )
        ranks = found["ranks"]
        who = "it cannot be told on which rank" if ranks is None else f"rank {', '.join(map(str, ranks))}"
        lines.append(
            f"first in {when}, {who}: {found['what']}{' (' + found['why'] + ')' if found['why'] else ''}"
        )
    for name, part in (document["parts"] or {}).items():
        if part["count"]:
            lines.append(f"{name}: {part['count']} differ, such as {', '.join(part['differing'])}")
    if document["verdict"] == "equal" and document["parts"] is None:
        lines.append(
            f"there is no checkpoint of step {document['to']}: only what was logged was compared, losses and, if the run has "
            "some, checksums"
        )
    return lines
