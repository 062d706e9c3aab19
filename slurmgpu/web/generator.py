"""The generator's pages: the form, the script beside it, import, saving and submission."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.files.job_text import job_text
from slurmgpu.files.settings import PROJECT_FILE
from slurmgpu.files.trust import write_atomically
from slurmgpu.files.yaml import read_yaml
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.job import Job
from slurmgpu.runs.request_checks import facts_here
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.check import check_script
from slurmgpu.script.importing import import_script
from slurmgpu.web.drawing import answer_values, form_values, is_begun
from slurmgpu.web.form import FIELDS, JOB_FILE, check_form, to_form
from slurmgpu.web.http import Questions, form_of, page, query_of
from slurmgpu.web.planned import Planned, planned, site

__all__ = ["Generator", "Submitted", "free_name", "save_job", "take_back"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.ya?ml", re.ASCII)


def free_name(folder: Path, like: str = "job.yaml") -> str:
    """Return a name for a new job file that nothing in the folder has: ``job.yaml``, ``job-2.yaml``."""
    stem, ending = Path(like).stem, Path(like).suffix
    stem = re.sub(r"-\d\d?$", "", stem)
    names = (like, *(f"{stem}-{number}{ending}" for number in range(2, 100)))
    return next((name for name in names if not os.path.lexists(folder / name)), names[0])


def save_job(folder: Path, name: str, text: str, *, write: bool = True) -> Path:
    """Return the file of a job, written unless the same is there already; InvalidInput where it may not be written.

    Without ``write`` only what would be in the way is said.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"file: {name!r} is not a name for a job file",
            hint="write letters, digits, . _ and -, without a folder, ending in .yaml, such as job.yaml",
        )
    if name == PROJECT_FILE:
        raise InvalidInput(
            f"file: {name!r} is not a name for a job file: the project's settings have it",
            hint="give the job file another name, such as job.yaml",
        )
    path = folder / name
    try:
        there = path.read_text(encoding="utf-8") if path.exists() or path.is_symlink() else None
        if there is not None and there != text:
            raise InvalidInput(
                f"file: {path} is there, and has other lines",
                hint=f"give the job file another name, such as {free_name(folder, name)}",
            )
        if write and there is None:
            write_atomically(path, text)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidInput(
            f"file: {path} cannot be written: {why}", hint="give the job file another name"
        ) from None
    return path


def take_back(path: Path, text: str) -> None:
    """Remove a job file that no job came of, unless somebody has changed it: it would be in the way of the next try."""
    with suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            path.unlink()


_LONGEST_SCRIPT = 1 << 16
"""Letters: what is looked at within a second or two."""
_IN_USE = "-"
"""The cluster that is in use here where it has no name to choose it by, such as a sandbox's."""


class Submitted(NamedTuple):
    """The outcome of a submission."""

    job_id: str
    """Empty: there is none, or nobody knows of one."""
    said: str
    unknown: bool = False
    """True if Slurm may have the job all the same."""


class _Wanted(NamedTuple):
    text: str
    name: str
    cluster: str


class Generator:
    """The pages around the form; ``submit`` submits a job file for a cluster as ``slurmgpu submit`` does."""

    def __init__(self, folder: Path, submit: Callable[[Path, str], Submitted]) -> None:
        self.folder = folder
        self._submit = submit
        self._questions: Questions[_Wanted] = Questions()

    @property
    def routes(self) -> list[Route]:
        """The addresses of the pages."""
        return [
            Route("/", self.form),
            Route("/plan", self.plan, methods=["POST"]),
            Route("/script", self.script),
            Route("/job-file", self.job_file),
            Route("/import", self.import_page),
            Route("/import", self.imported, methods=["POST"]),
            Route("/ask-submit", self.ask, methods=["POST"]),
            Route("/submit", self.submit, methods=["POST"]),
        ]

    def form(self, request: Request) -> Response:
        """Return the form, filled in as the address says."""
        values = query_of(request)
        asked = values.pop("cluster", None)
        trouble = ""
        try:
            check_form(values)
            at = site(asked, self.folder)
        except SlurmGpuError as error:
            trouble = f"{error.message}; {error.hint}" if error.hint else error.message
            at = site("generic", self.folder)
        made = planned(values, at.chosen, self.folder) if is_begun(values) else None
        filled = {**form_values(values, at), **answer_values(made, values, at.chosen)}
        return page(
            "generator.html", page="generator", trouble=trouble, file=free_name(self.folder), **filled
        )

    async def plan(self, request: Request) -> Response:
        """Return the planner's answer to the form as it is now: a part of the page, and the errors at their fields."""
        values, chosen = await self._form(request)
        made = await run_in_threadpool(planned, values, chosen, self.folder)
        return page("answer.html", fields=FIELDS, part=True, **answer_values(made, values, chosen))

    def script(self, request: Request) -> Response:
        """Return the script as a file."""
        return self._download(request, lambda made: made.script, "script.sbatch")

    def job_file(self, request: Request) -> Response:
        """Return the job file as a file."""
        return self._download(request, lambda made: made.job_file, JOB_FILE)

    def _download(self, request: Request, of: Callable[[Planned], str], name: str) -> Response:
        values = query_of(request)
        check_form(values)
        made = planned(values, site(values.pop("cluster", None), self.folder).chosen, self.folder)
        if made.problems and not (name == JOB_FILE and made.job_file):
            return PlainTextResponse("\n".join(one.text for one in made.problems) + "\n", 422)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(of(made).encode(), media_type="text/plain; charset=utf-8", headers=headers)

    def import_page(self, request: Request) -> Response:
        """Return the page on which a script is dropped."""
        at = site(None, self.folder)
        chosen = "" if at.chosen == GENERIC.name else at.chosen or _IN_USE
        return page("import.html", page="import", clusters=at.known, chosen=chosen, in_use=at.cluster.name)

    async def imported(self, request: Request) -> Response:
        """Return the findings of ``check`` on a script, and the job file that ``import`` makes of it."""
        given = await form_of(request)
        text = given.get("script", "").replace("\r\n", "\n")
        return await run_in_threadpool(self._imported, text, given.get("cluster") or None)

    def _imported(self, text: str, chosen: str | None) -> Response:
        if not text.strip():
            raise InvalidInput("no script is here yet", hint="drop one on the field, or paste it")
        if len(text) > _LONGEST_SCRIPT:
            raise InvalidInput(
                f"the script has {len(text)} letters, and this page takes {_LONGEST_SCRIPT}",
                hint="slurmgpu check FILE and slurmgpu import FILE take larger ones",
            )
        cluster = None if chosen == _IN_USE else chosen
        at = site(cluster, self.folder) if chosen else None
        job = None
        if not re.search(r"^#(?:!|SBATCH)", text, re.MULTILINE):
            with suppress(InvalidInput):
                job = read_yaml(text, JOB_FILE).data
        if job and set(job) <= set(Job.model_fields):
            link = "./?" + urlencode(to_form(job) | ({"cluster": cluster} if cluster else {}))
            return page("imported.html", findings=None, error=None, job_file=text, notes=(), link=link)
        script = parse_batch_script(text)
        facts = facts_here(script, self.folder, at.cluster if at else None)
        findings = check_script(script, facts, ignore=(), least="hint")
        try:
            made = import_script(text, "the script")
        except SlurmGpuError as error:
            return page("imported.html", findings=findings, error=error, job_file="", notes=(), link="")
        link = "./?" + urlencode(to_form(made.data) | ({"cluster": cluster} if cluster else {}))
        job_file = job_text(made.data, head=made.head, before=made.before, beside=made.beside)
        return page(
            "imported.html", findings=findings, error=None, job_file=job_file, notes=made.notes, link=link
        )

    async def ask(self, request: Request) -> Response:
        """Return the question before the job is submitted."""
        values, chosen = await self._form(request)
        name = values.pop("file", "").strip() or JOB_FILE
        return await run_in_threadpool(self._ask, values, chosen, name)

    def _ask(self, values: dict[str, str], chosen: str, name: str) -> Response:
        made = planned(values, chosen, self.folder)
        if made.problems or made.plan is None:
            raise InvalidInput("the job does not fit yet", hint="mend what is said at the fields first")
        path = save_job(self.folder, name, made.job_file, write=False)
        key = self._questions.ask(_Wanted(made.job_file, name, chosen))
        cluster = chosen or made.plan.cluster
        return page("ask_submit.html", key=key, plan=made.plan, path=path, cluster=cluster, notes=made.notes)

    async def submit(self, request: Request) -> Response:
        """Submit what was asked about, once."""
        given = await form_of(request)
        wanted = self._questions.answered(given.get("key", ""))
        if wanted is None:
            raise InvalidInput("this was answered before, or long ago", hint="ask for it again")

        def do() -> Submitted:
            was_there = os.path.lexists(self.folder / wanted.name)
            path = save_job(self.folder, wanted.name, wanted.text)
            done = self._submit(path, wanted.cluster)
            if not (done.job_id or done.unknown or was_there):
                take_back(path, wanted.text)
            return done

        submitted = await run_in_threadpool(do)
        # The next job is another one: its file needs another name.
        file = free_name(self.folder, wanted.name) if submitted.job_id else ""
        return page("submitted.html", submitted=submitted, file=file)

    async def _form(self, request: Request) -> tuple[dict[str, str], str]:
        values = await form_of(request)
        chosen = values.pop("cluster", "")
        file = values.pop("file", None)
        check_form(values)
        at = await run_in_threadpool(site, chosen or None, self.folder)
        return values | ({"file": file} if file is not None else {}), at.chosen
