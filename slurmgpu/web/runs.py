"""The pages of the jobs: the list, and one job with its plots, its log and its report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from slurmgpu.errors import InvalidInput, SlurmGpuError, SlurmUnreachable
from slurmgpu.jobs.live import ACTIONS, Snapshot, Source, error_text, perform, question, refusal
from slurmgpu.jobs.log_files import next_piece
from slurmgpu.jobs.table import FACT_NAMES, MOST, How, cell, facts_of, shown
from slurmgpu.jobs.view import JobView, Line, kind_of, reason
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import JobStatus, Progress
from slurmgpu.runs.metrics import curves
from slurmgpu.runs.samples import gpu_series
from slurmgpu.web.http import Questions, form_of, page, query_of
from slurmgpu.web.related import Related

__all__ = ["Runs"]

_TITLES = {"job": "Job", "name": "Name", "state": "State", "partition": "Partition", "gpus": "GPUs",
           "elapsed": "Elapsed", "when": "When"}  # fmt: skip
_VERBS = {act.verb: act for act in ACTIONS}
_BUTTONS = {"resume": "Submit again"}


_MOST_COMPARED = 8
_MOST_POINTS = 2000
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


class Runs:
    """The pages around the jobs; ``report`` makes the lines of a job's report."""

    def __init__(self, source: Source, report: Callable[[JobStatus], list[str]]) -> None:
        self.source = source
        self.related = Related(source)
        self._report = report
        self._questions: Questions[tuple[str, str]] = Questions()

    @property
    def routes(self) -> list[Route]:
        """The addresses of the pages."""
        return [
            Route("/runs", self.list),
            Route("/runs/rows", self.rows),
            Route("/compare", self.compare),
            Route("/run", self.one),
            Route("/run/now", self.now),
            Route("/run/metrics", self.metrics),
            Route("/run/log", self.log),
            Route("/run/report", self.report),
            Route("/run/why", self.why),
            Route("/run/tasks", self.tasks),
            Route("/run/tasks/metrics", self.tasks_metrics),
            Route("/run/graph", self.graph),
            Route("/run/ask", self.ask),
            Route("/run/do", self.do, methods=["POST"]),
        ]

    def list(self, request: Request) -> Response:
        """Return the jobs of today and those that wait."""
        return page("runs.html", page="runs", **self._rows(query_of(request)))

    def rows(self, request: Request) -> Response:
        """Return the same as a part of the page, which asks for it again and again."""
        return page("rows.html", **self._rows(query_of(request)))

    def _rows(self, asked: dict[str, str]) -> dict[str, Any]:
        words, each_task = asked.get("words", ""), asked.get("tasks") == "true"
        base = {"words": words, "tasks": each_task, "titles": _TITLES, "trouble": "", "most": MOST}
        try:
            seen = self.source.seen(anew=asked.get("anew") == "true")
        except SlurmUnreachable as error:
            return {**base, "trouble": error_text(error), "rows": [], "count": 0, "more": 0, "age": ""}
        now = datetime.now(timezone.utc)
        found = shown(seen.report.jobs, How(each_task, words=words), now, seen.report.since)
        rows = [
            {
                "id": view.job.job_id,
                "cells": {key: cell(key, view) or "-" for key in _TITLES},
                "kind": kind_of(view.job),
                "doing": view.doing or "-",
            }
            for view in (JobView(line, now) for line in found[:MOST])
        ]
        more = max(0, len(found) - MOST)
        return {**base, "rows": rows, "count": len(found), "more": more, "age": _age(seen)}

    def compare(self, request: Request) -> Response:
        """Return some jobs beside each other: Slurm's facts, the plans where they differ, and the losses."""
        names = list(dict.fromkeys(value for key, value in parse_qsl(request.url.query) if key == "job"))
        if not 2 <= len(names) <= _MOST_COMPARED:
            raise InvalidInput(
                f"{len(names)} jobs are chosen, and 2 to {_MOST_COMPARED} can be compared",
                hint="tick them in the list of runs",
            )
        found = [self._facts(self._known(name)) for name in names]
        known = [name for name in FACT_NAMES if any(name in one["facts"] for one in found)]
        rows = list(_settings([one["plan"] for one in found]))
        rows += [(name, [one["facts"].get(name, "-") for one in found]) for name in known]
        return page("compare.html", page="runs", found=found, rows=rows)

    def one(self, request: Request) -> Response:
        """Return the page of one job."""
        line = self._line(request)
        logs = self.source.logs(line.job)
        return page("run.html", page="runs", logs=logs[:64], **self._facts(line))

    def now(self, request: Request) -> Response:
        """Return the part of a job's page that may have changed."""
        return page("now.html", **self._facts(self._line(request)))

    def _facts(self, line: Line) -> dict[str, Any]:
        job, now = line.job, datetime.now(timezone.utc)
        detail = self.source.detail(job)
        known = JobView(Line(detail.job, line.tasks), now)
        speed = detail.job.progress.samples_per_second if known.progress and detail.job.progress else None
        facts = facts_of(JobView(line, now))
        facts.pop("user", None)  # the pages are one user's own
        acts = [act.verb for act in ACTIONS if not refusal(act, job, self.source.user)]
        return {
            "job": job,
            "kind": kind_of(job),
            "facts": facts,
            "told": self.source.cause(job) if known.failed else [],
            "reason": reason(job) or "",
            "tasks": line.tasks or "",
            "run_dir": detail.run.run_dir if detail.run else "",
            "plan": detail.plan,
            "progress": known.progress or "",
            "speed": _short(speed) if speed else "",
            "sampled": None if line.tasks else detail.job.sampled,
            "acts": [(verb, _BUTTONS.get(verb, verb.capitalize())) for verb in acts],
            "final": job.state.is_final,
            "waiting": job.state.is_waiting,
            "age": _age(self.source.seen()),
        }

    def metrics(self, request: Request) -> Response:
        """Return what a page draws: loss and samples per second by step, and each GPU's use, sample by sample."""
        job = self._line(request).job
        run, final = self.source.run_of(job), job.state.is_final
        if run is None:
            return JSONResponse(
                {"steps": [], "loss": [], "speed": [], "evals": [], "gpus": [], "final": final}
            )
        series = gpu_series(Path(run.run_dir), job.raw_id) if job.raw_id is not None else []
        gpus = [{"name": f"{one.host}:{one.gpu}", "use": one.use[-_MOST_POINTS:]} for one in series[:16]]
        return JSONResponse({**curves(Path(run.run_dir), job), "gpus": gpus, "final": final})

    def log(self, request: Request) -> Response:
        """Return what has come to one of its logs."""
        line, asked = self._line(request), query_of(request)
        logs = self.source.logs(line.job)
        number, position = asked.get("log", "0"), asked.get("position", "")
        numbers = _NUMBER.fullmatch(number) and _NUMBER.fullmatch(position or "0")
        if not numbers or int(number) >= len(logs):
            raise InvalidInput("there is no such log of this job", hint="load the page of the job again")
        piece = next_piece(logs[int(number)], int(position) if position else None)
        return JSONResponse({**piece._asdict(), "final": line.job.state.is_final})

    def report(self, request: Request) -> Response:
        """Return the job's use of what it asked for."""
        job = self._line(request).job
        return page("report.html", lines=self._report(job))

    def why(self, request: Request) -> Response:
        """Return why it waits, in the figures of this moment."""
        job = self._line(request).job
        lines = self.source.why(job) if job.state.is_waiting else ["It does not wait."]
        return page("report.html", lines=lines)

    def tasks(self, request: Request) -> Response:
        """Return the tasks of an array beside each other."""
        line, best_first = self._line(request), query_of(request).get("order") == "loss"
        if line.tasks is None:
            raise InvalidInput(f"job {line.job.job_id} is no array")
        now = datetime.now(timezone.utc)
        found = self.related.tasks(line, best_first=best_first)
        rows = [
            {
                "id": one.job.job_id,
                "task": (one.job.array_tasks or "").strip("[]").partition("%")[0],
                "state": one.job.state.value,
                "kind": kind_of(one.job),
                "elapsed": cell("elapsed", JobView(Line(one.job), now)) or "-",
                "steps": _steps(one.progress),
                "loss": _short(one.progress.loss if one.progress else None),
                "results": [_short(one.results.get(name)) for name in found["results"]],
                "reason": reason(one.job) or "",
            }
            for one in found["trials"]
        ]
        return page("tasks.html", job=line.job, best_first=best_first, **{**found, "rows": rows})

    def tasks_metrics(self, request: Request) -> Response:
        """Return the numbers of the plots of an array."""
        return JSONResponse(self.related.metrics(self._line(request)))

    def graph(self, request: Request) -> Response:
        """Return the jobs that wait for one another."""
        return page("graph.html", graph=self.related.graph(self._line(request)), kind=kind_of)

    def ask(self, request: Request) -> Response:
        """Return the question before something is done with it."""
        line, verb = self._line(request), query_of(request).get("verb", "")
        act = _VERBS.get(verb)
        if act is None:
            raise InvalidInput(f"{verb!r} is nothing that can be done with a job")
        if barred := refusal(act, line.job, self.source.user):
            raise InvalidInput(barred)
        key = self._questions.ask((verb, line.job.job_id))
        words = _BUTTONS.get(verb, verb.capitalize())
        return page("ask_act.html", question=question(act, line).split("\n"), key=key, words=words)

    async def do(self, request: Request) -> Response:
        """Do what was asked about, once."""
        given = await form_of(request)
        answered = self._questions.answered(given.get("key", ""))
        if answered is None:
            raise InvalidInput("this was answered before, or long ago", hint="ask for it again")
        verb, job_id = answered

        def do() -> Response:
            line = self._known(job_id)
            outcome = perform(_VERBS[verb], line.job, self.source)
            with suppress(SlurmGpuError):  # the next look says so
                self.source.seen(anew=True)
            return page("done.html", outcome=outcome, job=line.job)

        return await run_in_threadpool(do)

    def _line(self, request: Request) -> Line:
        return self._known(query_of(request).get("job", ""))

    def _known(self, job_id: str) -> Line:
        line = self.source.line(job_id)
        if line is None:
            raise InvalidInput(
                f"job {job_id!r} is not among your jobs here",
                hint="the list has those that wait or run, and those that ended within --since (default: a day)",
            )
        return line


def _settings(plans: Sequence[Plan | None]) -> Iterator[tuple[str, list[str]]]:
    """Yield what the jobs were planned to be, as far as they differ."""
    found: list[dict[str, str]] = []
    for plan in plans:
        train = plan.train or {} if plan else {}
        texts = {
            f"train.{key}": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in train.items()
        }
        command = {"command": " ".join(plan.command)} if plan and plan.command else {}
        found.append({**command, **texts})
    for name in dict.fromkeys(name for one in found for name in one):
        values = [one.get(name, "-") for one in found]
        if len(set(values)) > 1:
            yield name, values


def _steps(progress: Progress | None) -> str:
    if progress is None:
        return "-"
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step)


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if 1000 <= value < 1e9 else f"{value:.4g}"


def _age(seen: Snapshot) -> str:
    if seen.why_old:
        return f"as it was {seen.report.age:.0f} s ago: {seen.why_old}"
    return f"{seen.report.time.astimezone():%H:%M:%S}"
