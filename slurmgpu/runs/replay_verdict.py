"""Hold what a run has written of an interval against a replay of it, and judge whether they agree."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.runs.checkpoints import Checkpoint, damage
from slurmgpu.runs.directory import ask_entrypoint, read_plan
from slurmgpu.runs.replay import folder_of_job, lay_out, link_parts, train_again
from slurmgpu.training.formats.checkpoint import CHECKPOINTS, MANIFEST, step_folder
from slurmgpu.training.formats.metrics import METRICS_FILE, METRICS_SCHEMA, MetricsRow, metrics_rows
from slurmgpu.training.formats.rows import all_rows
from slurmgpu.training.formats.settings import CHANGE_NO_BIT

__all__ = [
    "CODES", "Interval", "compare_here", "find_interval", "judge_replay", "replay_in_words", "train_here",
]  # fmt: skip

CODES = {"equal": 0, "differs": 1, "within the band": 0, "unknown": 3}
_BAND, _SURE = 3.0, 30.0
"""A run as far from two replays as three times their own distance is as they are; from thirty times on it is not."""
_MAY_CHOOSE = (
    "two replays are the same and the run is not, but without deterministic: true a GPU may compute in another way in "
    "another start, and two replays do not tell how far apart these are"
)
_COMPARED = ("loss", "gradient_norm", "learning_rate")
_WHERE = {
    "losses": "its loss: its batch, its weights, or its forward pass",
    "gradients": "its gradients: its backward pass",
    "weights": "its weights after the step: averaging gradients, or the update",
    "optimizer": "its optimizer's state after the step",
}
"""Things that have a checksum, in the order in which a step computes it."""
_NOT_SUMMED = (
    "the checksums are equal in all steps: it is in what they are not of, such as an average of weights or a random state, or "
    "it came when the checkpoint was written"
)
# What tells on which process it was, by strategy, where several work on one model: the others' values are in all else.
_LOCAL = {"fsdp2": (), "pipeline": ("weights", "optimizer")}
_SHARED = {
    "fsdp2": "the processes compute with each other's pieces of weights and gradients",
    "pipeline": "the stages compute with what they hand each other",
}


Settings = Mapping[str, Any]
"""Of a training, by name."""


class Interval(NamedTuple):
    """The interval to train again: from a checkpoint (None: from the beginning) to a step, which may have one."""

    run_dir: Path
    begin: Checkpoint | None
    until: int
    end: Checkpoint | None

    @property
    def after(self) -> int:
        """Return the last step that is not trained again."""
        return 0 if self.begin is None else self.begin.step


class Steps(NamedTuple):
    """Records of a run by step: means over all ranks, and each rank's checksums."""

    lines: Mapping[int, Mapping[str, Any]]
    sums: Mapping[int, Mapping[int, Mapping[str, Any]]]
    """By step, then by rank."""


class Difference(NamedTuple):
    """The first difference: it came in one of the steps ``earliest`` to ``latest``."""

    earliest: int
    latest: int
    what: str
    """The first difference there."""
    ranks: list[int] | None
    """None: it cannot be told, and ``why`` says why."""
    why: str | None = None


class Replay(NamedTuple):
    """The interval, trained again."""

    folder: Path
    steps: Steps
    elsewhere: str | None
    """The machine's difference from the run's."""


class _Unknown(Exception):
    """It cannot be told; why is its text."""


Train = Callable[[Interval, Settings, int, "int | None", "list[Path]"], Path]
"""Trains an interval with so many processes, each with so many threads where that is known, up to a checkpoint that is to be
compared with the last ones; returns the new run directory. RunFailed where the training ended before its last step."""
Compare = Callable[[Path, Path, int], "dict[str, Any]"]
"""Compares a checkpoint that was to be compared with that of a step in a new run directory, part by part."""


def train_here(
    python: str,
    scratch: Path,
    interval: Interval,
    settings: Settings,
    processes: int,
    threads: int | None,
    _against: list[Path],
) -> Path:
    """Train an interval on this machine, in a new folder within ``scratch``."""
    folder, begin = Path(tempfile.mkdtemp(dir=scratch)), interval.begin
    checkpoints = {} if begin is None else {f"{CHECKPOINTS}/{begin.path.name}": begin.path}
    lay_out(folder, interval.run_dir, settings, checkpoints, interval.until, link_parts)
    plan = folder_of_job(interval.run_dir)
    work_dir = Path.cwd() if plan is None else Path(read_plan(plan).work_dir)
    environ = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    train_again(python, folder, work_dir, processes, interval.until, environ)
    return folder


def compare_here(python: str, other: Path, replayed: Path, step: int) -> dict[str, Any]:
    """Compare the checkpoint of a step in a run directory with another one, part by part."""
    folders = [str(other.absolute()), str(step_folder(replayed / CHECKPOINTS, step))]
    found: dict[str, Any] = json.loads(ask_entrypoint(python, "comparing", folders, os.environ))
    return found


def find_interval(run_dir: Path, found: list[Checkpoint], begin: int | None, end: int | None) -> Interval:
    """Return the interval to train again; InvalidInput if there is no such one."""
    intact = [one for one in found if one.state == "complete"]
    if end is None and not intact:
        raise InvalidInput(
            f"{run_dir} has no checkpoint", hint="name the last step of the interval: --to STEP"
        )
    until = intact[0].step if end is None else end
    if end is not None and intact:
        total = _manifest(intact[0].path).get("total_steps")
        if isinstance(total, int) and end > total and not read_steps(run_dir, total, end).lines:
            raise InvalidInput(
                f"--to {end}: the run has {total} steps",
                hint=f"give a step up to {total}, or leave --to out: the newest checkpoint is that of step {intact[0].step}",
            )
    most = until - 1 if begin is None else begin
    if most >= until:
        raise InvalidInput(
            f"--from {most}: the interval ends at step {until}",
            hint="give an earlier --from, or a later --to",
        )
    first = next((one for one in intact if one.step <= most), None)
    last = next((one for one in intact if one.step == until), None)
    for one in filter(None, (first, last)):
        problems = damage(one)
        if problems is None or problems:
            raise InvalidInput(
                f"step-{one.step} is not intact: {'; '.join(problems or ['it was pruned meanwhile'])}",
                hint="take another interval: slurmgpu checkpoint verify shows what is intact",
            )
    return Interval(run_dir, first, until, last)


def _manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
    return found


def _rows(file: Path) -> list[MetricsRow]:
    """Return all rows of a file; none where there is no such file."""
    return list(metrics_rows(all_rows(file, METRICS_SCHEMA)))


def starts(run_dir: Path) -> list[MetricsRow]:
    """Return the lines of the run's starts, in the order in which they were written."""
    return [row for row in _rows(run_dir / METRICS_FILE) if row.kind == "start"]


def read_steps(run_dir: Path, after: int, until: int) -> Steps:
    """Return what there is of the steps after ``after``, up to ``until``; of a step that was repeated, the last."""
    lines: dict[int, Mapping[str, Any]] = {}
    for row in _rows(run_dir / METRICS_FILE):
        if row.kind == "train" and after < row.step <= until:
            values = row.values.items()
            lines[row.step] = {name: value for name, value in values if name.partition(".")[0] in _COMPARED}
    sums: dict[int, dict[int, Mapping[str, Any]]] = {}
    for file in (run_dir / "checksums").glob("rank-*.jsonl"):
        number = file.stem.removeprefix("rank-")
        for row in _rows(file) if number.isdecimal() else ():
            if after < row.step <= until:
                sums.setdefault(row.step, {})[int(number)] = row.values
    return Steps(lines, sums)


def _lines_of_both(run: Steps, again: Steps) -> list[int]:
    """Return the steps whose lines are means over the same steps in both: where a run has ended in between, some are not."""
    one, other = (dict(zip(sorted(of.lines), [0, *sorted(of.lines)], strict=False)) for of in (run, again))
    return [step for step, begin in one.items() if step in other and other[step] == begin]


def first_difference(
    run: Steps,
    again: Steps,
    after: int,
    until: int,
    ranks: int,
    weights_differ: bool,
    strategy: str = "ddp",
) -> Difference | None:
    """Return the first difference between a run and its replay; ``weights_differ``: whether their checkpoints do at the end."""
    same = after
    line = next((one for one in _lines_of_both(run, again) if run.lines[one] != again.lines[one]), None)
    for step in sorted(run.sums.keys() & again.sums.keys()):
        one, other = run.sums[step], again.sums[step]
        both = sorted(one.keys() & other.keys())
        wrong_by = {
            what: [rank for rank in both if one[rank].get(what) != other[rank].get(what)] for what in _WHERE
        }
        what = next((what for what, wrong in wrong_by.items() if wrong), None)
        if what is None:
            same = step
            continue
        if line is not None and step > line:
            break
        wrong, why = wrong_by[what], None
        if ranks > 1 and what not in _LOCAL.get(strategy, _WHERE):
            why = f"{_SHARED[strategy]}; it shows first on rank {', '.join(map(str, wrong))}"
        elif ranks > 1 and len(wrong) == len(both):
            why = "all processes differ at once, as after an average of gradients of which one was wrong"
        return Difference(same + 1, step, _WHERE[what], None if why else wrong, why)
    alone = [0] if ranks == 1 else None
    unclear = (
        None if alone else "metrics have means over all processes: with checksum_steps, each is compared"
    )
    if line is not None:
        return Difference(min(same + 1, line), line, "the line of metrics", alone, unclear)
    if not weights_differ:
        return None
    if same >= until:
        return Difference(after + 1, until, "the checkpoint", alone, _NOT_SUMMED)
    return Difference(same + 1, until, "the checkpoint", alone, unclear)


def judge_replay(interval: Interval, train: Train, compare: Compare) -> dict[str, Any]:
    """Train the interval again, twice where something differs, and return the verdict with what it rests on."""
    try:
        return _judge(interval, train, compare)
    except (_Unknown, RunFailed) as error:
        return {"verdict": "unknown", "why": str(error)}


def _judge(interval: Interval, train: Train, compare: Compare) -> dict[str, Any]:
    run_dir, after, until = interval.run_dir, interval.after, interval.until
    known = [_manifest(one.path) for one in (interval.begin, interval.end) if one is not None]
    of_run = [row for row in starts(run_dir) if row.step < until]
    if any("settings" not in each for each in known):
        raise _Unknown(
            "this run has a loop of its own, in a script, and only what train: describes can be trained again"
        )
    if not of_run:
        raise _Unknown("metrics.jsonl has no start of this run: it says on what the run was trained")
    _require_one_setting(known, interval)
    settings: Any = known[-1]["settings"] if known else of_run[-1].values["settings"]
    since = [row for row in of_run if row.step >= after] or of_run[-1:]
    if since[0].step > after:
        since = [*[row for row in of_run if row.step < after][-1:], *since]
    sizes = {row.values.get("world_size") for row in since}
    if len(sizes) != 1:
        raise _Unknown(
            f"the interval was trained with different numbers of processes: {sorted(map(str, sizes))}"
        )
    processes = int(str(sizes.pop()))
    places: Any = since[-1].values.get("ranks")
    threads = places[0].get("threads") if isinstance(places, list) and places else None

    def replay(against: list[Path]) -> Replay:
        folder = train(interval, settings, processes, threads, against)
        end = _manifest(step_folder(folder / CHECKPOINTS, until))
        if known and end["task_sha256"] != known[-1]["task_sha256"]:
            raise _Unknown(f"the text of {settings['task']} is not what it was when the run was trained")
        return Replay(folder, read_steps(folder, after, until), _elsewhere(since, starts(folder)[0]))

    ends = [] if interval.end is None else [interval.end.path]
    first = replay(ends)
    run = read_steps(run_dir, after, until)
    if not ends and not (run.lines or run.sums):
        raise _Unknown(f"the run has neither metrics nor a checkpoint of steps up to {until}")
    parts = compare(ends[0], first.folder, until) if ends else None
    differ = any(part["count"] for part in (parts or {}).values())
    span = after, until, processes
    difference = first_difference(run, first.steps, *span, differ, settings["strategy"])
    if difference is None:
        return {"verdict": "equal", "parts": parts}
    if first.elsewhere is not None:
        raise _Unknown(f"something differs, but {first.elsewhere}: replay it on the same kind of machine")
    end_of_first = step_folder(first.folder / CHECKPOINTS, until)
    second = replay([end_of_first])
    between = compare(end_of_first, second.folder, until)
    apart = {name: part["distance"] for name, part in between.items() if part["count"]}
    if first_difference(first.steps, second.steps, *span, bool(apart), settings["strategy"]) is not None:
        return _judge_by_band(run, first, second, parts, apart)
    found = {"parts": parts, "difference": difference._asdict()}
    if since[-1].values.get("device_name") == "CPU" or settings["deterministic"]:
        # What two replays agree on to the last bit, the run should have done too.
        return {"verdict": "differs", **found}
    return {"verdict": "unknown", "why": _MAY_CHOOSE, **found}


def _require_one_setting(known: list[dict[str, Any]], interval: Interval) -> None:
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


def _elsewhere(of_run: list[MetricsRow], started: MetricsRow) -> str | None:
    """Return why bits may differ without a fault: another device, torch or, on the CPU, another machine."""
    ranks_here: Any = started.values.get("ranks")
    here = " + ".join(map(str, Counter(each["host"] for each in ranks_here).values()))
    for row in of_run:
        for name in ("device_name", "torch", "world_size"):
            if row.values.get(name) != started.values.get(name):
                return f"the run had {name} {row.values.get(name)}, and the replay {started.values.get(name)}"
        ranks: Any = row.values.get("ranks")
        # A line of an earlier version has no model: the same host counts as the same CPU.
        key = "cpu" if all("cpu" in each for each in (*ranks, *ranks_here)) else "host"
        then, now = ([(each[key], each.get("threads")) for each in of] for of in (ranks, ranks_here))
        if row.values.get("device_name") == "CPU" and then != now:
            was, is_now = (_machines_in_words(of) for of in (ranks, ranks_here))
            return f"the run was trained on the CPU of {was}, and the replay on that of {is_now}"
        # Processes by node, such as 4 + 4.
        if (before := " + ".join(map(str, Counter(each["host"] for each in ranks).values()))) != here:
            return f"the run had {before} processes on its nodes, and the replay {here}: sums over them go other ways"
    return None


def _machines_in_words(ranks: Any) -> str:
    model = "{cpu}, " if all("cpu" in each for each in ranks) else ""
    found = {f"{each['host']} ({model.format(**each)}{each.get('threads')} threads)" for each in ranks}
    return ", ".join(sorted(found))


def _judge_by_band(
    run: Steps,
    one: Replay,
    other: Replay,
    parts: Mapping[str, Any] | None,
    apart: Mapping[str, float | None],
) -> dict[str, Any]:
    """Return the verdict where two replays differ: how far the run is from them, by how far they are from each other."""
    found: dict[str, float | None] = {}
    three = (run, one.steps, other.steps)
    shared = [step for step in _lines_of_both(run, one.steps) if step in other.steps.lines]
    losses = [
        [math.nan if (loss := of.lines[step].get("loss")) is None else float(loss) for of in three]
        for step in shared
    ]
    if losses and (spread := _largest(b - c for _, b, c in losses)):
        found["losses"] = _times(_largest(a - (b + c) / 2 for a, b, c in losses), spread)
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


def _largest(distances: Iterable[float]) -> float:
    """Return the largest of some distances; that of a number that is none is the largest of all."""
    return max(map(abs, distances), key=lambda value: math.inf if math.isnan(value) else value)


def _times(distance: float, spread: float) -> float | None:
    """Return how many times the spread a distance is; infinite if the run alone is not finite, None if the replays are not."""
    if not math.isfinite(spread):
        return None
    return distance / spread if math.isfinite(distance) else math.inf


def _distance(parts: Mapping[str, float | None]) -> float:
    """Return that of the weights; sharded ones, with their optimizer's state, lie in a file for each process."""
    found = [each for name, each in parts.items() if name == "model.pt" or name.startswith("shard-")]
    return math.hypot(*(math.inf if each is None else each for each in found))


def replay_in_words(document: Mapping[str, Any]) -> list[str]:
    """Return the lines of a verdict for people."""
    head = f"steps {document['from'] + 1} to {document['to']}: {document['verdict']}"
    lines = [head if document["why"] is None else f"{head}: {document['why']}"]
    if (found := document["difference"]) is not None:
        when = f"one of the steps {found['earliest']} to {found['latest']}"
        if found["earliest"] == found["latest"]:
            when = f"step {found['latest']}"
        ranks = found["ranks"]
        who = "it cannot be told on which rank" if ranks is None else f"rank {', '.join(map(str, ranks))}"
        why = f" ({found['why']})" if found["why"] else ""
        lines.append(f"first in {when}, {who}: {found['what']}{why}")
    for name, part in (document["parts"] or {}).items():
        if part["count"]:
            lines.append(f"{name}: {part['count']} differ, such as {', '.join(part['differing'])}")
    if document["verdict"] == "equal" and document["parts"] is None:
        lines.append(
            f"there is no checkpoint of step {document['to']}: only what was logged was compared, losses and, if the run has "
            "some, checksums"
        )
    return lines
