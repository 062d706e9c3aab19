"""The questions of `slurmgpu init` on the terminal: account, partition, PyTorch, folders."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from slurmgpu.cli.terminal import echo_error
from slurmgpu.clusters.discover import can_be_made, places_for_runs
from slurmgpu.clusters.pytorch import (
    Candidate,
    Tried,
    candidates,
    cannot_be_tried,
    chosen_by_name,
    try_environment,
)
from slurmgpu.clusters.text import accounts_here, gpu_partitions, in_short
from slurmgpu.clusters.writing import has_gpus
from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.files.data import read_templates
from slurmgpu.files.settings import LoadedSettings, expand_here
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment


def _is_terminal() -> bool:
    return sys.stdin.isatty()


class Questions:
    """Asks on the terminal; without one, and without ``yes``, InvalidInput."""

    def __init__(self, *, yes: bool, asker: str) -> None:
        if not yes and not _is_terminal():
            raise InvalidInput(
                f"{asker} asks questions, and there is no terminal to ask on",
                hint=f"{asker} --yes takes every default; each question has an option, too: {asker} --help",
            )
        self.yes = yes

    def confirm(self, question: str, default: bool) -> bool:
        """Yes or no."""
        if self.yes:
            echo_error(f"{question} {'yes' if default else 'no'}")
            return default
        return click.confirm(question, default=default, err=True)

    def choose(self, question: str, entries: Sequence[str], default: int = 0) -> int:
        """One of the entries, by its number or its first word; its index."""
        if self.yes:
            echo_error(f"{question} {entries[default]}")
            return default
        echo_error(question)
        for number, entry in enumerate(entries, 1):
            echo_error(f"  {number}  {entry}")
        names = [entry.split(" ")[0].rstrip(":") for entry in entries]

        def check(answer: str) -> None:
            if answer not in numbered and names.count(answer) != 1:
                raise InvalidInput(f"{answer!r} is not one of them: 1 to {len(entries)}, or a name")

        numbered = [str(number) for number in range(1, len(entries) + 1)]
        answer = self.text("number", check, str(default + 1))
        return numbered.index(answer) if answer in numbered else names.index(answer)

    def text(self, question: str, check: Callable[[str], None], default: str | None = None) -> str:
        """Return a text that ``check`` does not refuse (by InvalidInput); asked again until it is one."""
        while True:
            answer: str = click.prompt(question, default=default, err=True)
            try:
                check(answer.strip())
            except InvalidInput as error:
                echo_error(f"  {error.message}" + (f" ({error.hint})" if error.hint else ""))
                continue
            return answer.strip()


ENVIRONMENT = "pytorch"
"""The environment's name in every profile, so that one job file runs on several clusters."""
NONE = "none"
# Each takes a first import of torch on a login node.
_MOST_TRIES = 4
_CPU_ONLY = "built for the CPU: jobs would not use the GPUs"
_NO_TORCH = (
    "no PyTorch was found here. To make an environment with it, where quotas are large:\n"
    "    python3 -m venv FOLDER && FOLDER/bin/pip install torch\n"
    "  and then: slurmgpu init --environment FOLDER"
)


def choose_base(given: str | None, likely: Sequence[tuple[str, str]], questions: Questions) -> str | None:
    """Return the documented profile below the new one."""
    if given is not None:
        return None if given == NONE else given
    for name, why in likely[:1]:
        echo_error(f"this seems to be {name}: {why}")
        if questions.confirm("Keep its documented rules below what Slurm said?", True):
            return name
    return None


def choose_account(
    given: str | None, found: Cluster, rules: Cluster, partition: str | None, questions: Questions
) -> str | None:
    """Return the account to charge; None: none is named, and Slurm takes the user's default one."""
    legal = accounts_here(found, partition)
    given = None if given is None else given.lower()  # as Slurm keeps them

    if given is not None:
        if legal and given not in legal:
            raise InvalidInput(
                f"account {given!r} is not one that you may charge here", hint=f"one of: {', '.join(legal)}"
            )
        return given
    needed = "account" in rules.dialect.required
    if not legal and questions.yes:
        if needed:
            raise InvalidInput(
                "jobs must name an account here, and Slurm does not list yours",
                hint="name it: --account NAME",
            )
        return None
    if not legal:
        question = "Account to charge (Slurm lists none of yours)"
        name = questions.text(question, lambda _: None, None if needed else NONE)
        return None if name == NONE else name
    if len(legal) == 1:
        echo_error(f"account: {legal[0]}, your only one")
        return legal[0]
    if questions.yes and found.default_account not in legal:
        raise InvalidInput(
            f"--yes cannot choose an account: you have {', '.join(legal)}, and none is your default",
            hint="name the one to charge: --account NAME",
        )
    default = legal.index(found.default_account) if found.default_account in legal else 0
    return legal[questions.choose("Which account do your jobs charge?", legal, default)]


def choose_partition(given: str | None, found: Cluster, questions: Questions) -> str | None:
    """Return the partition of all jobs; None: the planner chooses one for each."""
    if given is not None:
        if found.partitions and given not in found.partitions:
            raise InvalidInput(
                f"partition {given!r} is not shown to you here", hint=f"one of: {', '.join(found.partitions)}"
            )
        return None if given == NONE else given
    names = gpu_partitions(found)
    if len(names) < 2:
        return None
    entries = ["the best one for each job, chosen by the planner", *(in_short(name, found) for name in names)]
    number = questions.choose("Which partition do your jobs go to?", entries)
    return names[number - 1] if number else None


def choose_qos(
    given: str | None, found: Cluster, rules: Cluster, account: str | None, questions: Questions
) -> str | None:
    """Return the QOS of all jobs, asked for only where one must be named and the profile names none; None: none for all.

    Where the QOS are known, the planner takes one for each job that starts it: one for all may be legal in no partition.
    """
    rows = [row for row in found.associations if account in (None, row.account)]
    legal = list(dict.fromkeys(name for row in rows for name in row.qos))
    if given is not None:
        if given == NONE and NONE not in legal:
            return None
        if legal and given not in legal:
            raise InvalidInput(
                f"QOS {given!r} is not one that you may use here", hint=f"one of: {', '.join(legal)}"
            )
        return given
    if "qos" not in rules.dialect.required or rules.dialect.qos is not None or not legal:
        return None
    question = "Which QOS do your jobs have?"
    if found.qos:
        entries = ["the one that starts each job, chosen by the planner", *legal]
        number = questions.choose(question, entries)
        return legal[number - 1] if number else None
    own = next((row.default_qos for row in rows if row.default_qos in legal), None)
    return legal[questions.choose(question, legal, legal.index(own) if own else 0)]


@dataclass
class EnvironmentQuestion:
    """The question for PyTorch: candidates are shown, one is chosen, and tried."""

    rules: Cluster
    found: Cluster
    questions: Questions
    settings: LoadedSettings
    no_try: bool
    folder: Path
    environ: Mapping[str, str]

    def ask(self, given: str | None) -> Environment | None:
        """Return the environment; None: none was found, or none is wanted."""
        if given == NONE:
            return None
        known = candidates(self.environ, self.found.software, self.folder, documented=self.rules.environments)
        if given is not None:
            one = chosen_by_name(given, known, self.folder)
            tried = self._try(one)
            if tried.why:
                raise RunFailed(
                    f"--environment {one.name}: torch could not be imported: {tried.why}",
                    hint="choose another, or take it as it is with --no-try; nothing was written",
                )
            return self._described(one, tried)
        if not known:
            echo_error(f"environment: {_NO_TORCH}")
            return None
        return self._first_that_works(known) if self.questions.yes else self._choose(known)

    def _first_that_works(self, known: Sequence[Candidate]) -> Environment | None:
        """With --yes: the likeliest that can be shown to work here; one for the CPU only where there is no other."""
        # What needs a plug-in of Slurm's, or a word before the command, is for a person to choose.
        known = [one for one in known if cannot_be_tried(one.environment) is None]
        if self.no_try:
            likely = next((one for one in known if one.likely), None)
            echo_error(f"environment: {f'{self._entry(likely)}, not tried' if likely else _NO_TORCH}")
            return self._described(likely, Tried(None)) if likely else None
        on_cpu: tuple[Candidate, Tried] | None = None
        for one in known[:_MOST_TRIES]:
            tried = self._try(one)
            if tried.version and not self._wastes_gpus(tried):
                return self._described(one, tried)
            if tried.version:
                on_cpu = on_cpu or (one, tried)
        if on_cpu:
            echo_error(
                f"environment: {on_cpu[0].name}, for want of another; its torch is {_CPU_ONLY}.\n"
                "  To use them, make an environment with a torch built for CUDA or ROCm "
                "(https://pytorch.org/get-started/locally),\n  and then: slurmgpu init --force --environment FOLDER"
            )
            return self._described(*on_cpu)
        if known[_MOST_TRIES:]:
            echo_error(f"  {len(known) - _MOST_TRIES} more were not tried; --environment names one")
        echo_error(f"environment: {_NO_TORCH}")
        return None

    def _choose(self, known: Sequence[Candidate]) -> Environment | None:
        entries = [self._entry(one) for one in known]
        while True:
            number = self.questions.choose("How do your jobs get PyTorch?", [*entries, "none of these"])
            if number == len(known):
                echo_error(f"  {_NO_TORCH.partition('. ')[2]}")
                return None
            one = known[number]
            tried = self._try(one)
            surprise = self._wastes_gpus(tried) and not one.cpu_only  # else the list has said so
            if not (tried.why or surprise) or self.questions.confirm("Take it all the same?", False):
                return self._described(one, tried)

    def _entry(self, one: Candidate) -> str:
        """Return a candidate in the list of choices."""
        remark = "" if one.likely else "; no sign of torch in it"
        if self._wastes_gpus(one):
            remark = f"; its torch is {_CPU_ONLY}"
        return f"{one.name} ({one.what}{remark})"

    def _wastes_gpus(self, one: Candidate | Tried) -> bool:
        """Return whether its torch cannot use the cluster's GPUs."""
        return one.cpu_only and has_gpus(self.found)

    def _try(self, one: Candidate) -> Tried:
        """Say what became of the try; without a version and a reason it was not tried."""
        if self.no_try:
            return Tried(None)
        untried = cannot_be_tried(one.environment)
        if untried:
            echo_error(f"environment: {one.name} ({one.what}): not tried: {untried}; the first job will show")
            return Tried(None)
        echo_error(f"environment: trying {one.name} ({one.what}) ...")
        templates = read_templates(*self.settings.template_sources(self.environ))
        done = try_environment(one.environment, self.rules, templates, self.folder, self.environ)
        built = f", {_CPU_ONLY}" if self._wastes_gpus(done) else ""
        echo_error(f"  torch {done.version}{built}" if done.version else f"  does not work: {done.why}")
        return done

    def _described(self, one: Candidate, tried: Tried) -> Environment:
        today = datetime.date.today()
        what = one.what.removeprefix("in the profile: ")
        built = ", built for the CPU" if one.cpu_only or tried.cpu_only else ""
        known = f"torch {tried.version}{built}, tried" if tried.version else f"not tried{built},"
        return one.environment.model_copy(
            update={"description": f"{what[:1].upper()}{what[1:]}; {known} {today}"}
        )


def choose_runs(given: str | None, user: str, questions: Questions) -> str | None:
    """Return the folder of run directories, as settings hold it; None: runs/ beside each job file."""
    beside = "runs/ beside each job file"
    if given is not None:
        if given != NONE:
            check_runs(given)
        return None if given == NONE else given
    places = places_for_runs(os.environ, user)
    if questions.yes and not places:
        echo_error(
            f"runs: {beside}; no scratch folder of yours was found (checkpoints are large: mind home's quota)"
        )
        return None
    entries = [f"{place.text} ({place.why})" for place in places]
    entries += [f"{beside} (mind the quota, if that is in your home)"]
    entries += [] if questions.yes else ["another folder"]
    question = "Where do run directories go? (checkpoints are large: prefer scratch to home)"
    number = questions.choose(question, entries)
    if number < len(places):
        return places[number].text
    return None if number == len(places) else questions.text("Folder", check_runs)


def check_runs(text: str) -> None:
    """Raise InvalidInput when no run directory could be made there."""
    folder = expand_here(text, os.environ, "runs")
    if not folder.is_absolute():
        raise InvalidInput(f"runs: {text!r} is not a whole path", hint="begin it with / or $SCRATCH or ~")
    if not can_be_made(folder):
        raise InvalidInput(
            f"runs: {text!r}: {folder} is not there and cannot be made by you, or not written to"
        )
