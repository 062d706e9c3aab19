"""Every step safe: a copy of each on the nodes themselves, beside the checkpoints that all nodes see.

Each rank writes what it would put into a checkpoint into one file on its own node, and into one on another node where the run
has several. Nothing is synced, nothing goes over the shared folder: the copies are there for the start after a kill, not for
good. A step counts once all ranks have written theirs, and only then does any rank go on. The start after a kill makes a
checkpoint of the newest step whose files are all there, and goes on from it as from any other.

The files lie in a folder that this user alone may enter, under a name drawn by the start that writes them. The run directory
knows the name of the last start: what another run, another user or an earlier start has left is never gone on from.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import stat
import string
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch
import torch.distributed as dist

from ..errors import NotFinite, TrainingError
from ..files import TEMPORARY, Facts, is_there, patiently, sync_folder, write_json, write_whole
from ..formats.checkpoint import step_folder
from ..processes.group import Group
from . import checkpoint

__all__ = ["Replicas", "neighbour"]

SCHEMA = "slurmgpu.replica/1"
_RECORD = "replicas.json"
_NAME = re.compile(r"step-(\d+)\.rank-(\d+)-of-(\d+)\.by-\d+")
_OLD = 7 * 86400.0  # seconds after which nobody comes back for what a killed run has left on a node


class _Key(NamedTuple):
    """Content of a file: a rank's share of a step."""

    step: int
    world_size: int
    rank: int


class _Head(NamedTuple):
    """Header of a file: its parts, and on rank 0 the rest of the manifest."""

    parts: dict[str, Facts]
    facts: dict[str, Any]


class Replicas:
    """The copies of one run; the same calls in the same order on every rank.

    Args:
        folder: That of the checkpoints.
        group: All ranks.
        environment: Names the folders of a node.
        place: The folder on each node, in which ``$NAME`` stands for a variable; None: memory (``/dev/shm``), else what
            the node has for temporary files.
    """

    def __init__(
        self, folder: Path, group: Group, environment: Mapping[str, str], place: Optional[str]
    ) -> None:
        self._folder, self._group, self._ranks = folder, group, group.ranks
        self._environment, self._place = environment, place
        self._known: dict[str, Any] = group.on_first(partial(patiently, self._recorded))
        self._files = self._found()
        self._newest: Optional[int] = None
        self._own: Optional[Path] = None
        self._token = ""
        self._last: list[Path] = []
        self._target: Optional[int] = None
        self._sources: list[int] = []

    # What an earlier start has left.

    def _recorded(self) -> dict[str, Any]:
        """Return what the last start has written of its copies; a wrong no would lose steps."""
        path = self._folder / _RECORD
        return json.loads(path.read_bytes()) if is_there(path) else {}

    def _found(self) -> dict[_Key, list[Path]]:
        """Return the files of the last start on this node; one rank of each node looks."""
        found: dict[_Key, list[Path]] = {}
        for folder in self._left() if self._ranks.local_rank == 0 else []:
            for path in folder.iterdir():
                match = _NAME.fullmatch(path.name)
                if match:
                    step, rank, world_size = map(int, match.groups())
                    found.setdefault(_Key(step, world_size, rank), []).append(path)
        return found

    def _left(self) -> list[Path]:
        """Return the folders of the last start on this node."""
        token, found = self._known.get("token"), []
        if isinstance(token, str) and re.fullmatch("[0-9a-f]+", token):
            for base in _bases(self._known.get("place"), self._environment):
                with contextlib.suppress(OSError):  # not there, or somebody else's
                    folder = _require_own(base / _name()) / token
                    if os.access(folder, os.R_OK | os.X_OK):
                        found.append(folder)
        return found

    def bring(self, keep: int, keep_every: Optional[int]) -> list[str]:
        """Make a checkpoint of the newest step on the nodes that all is there of, if no other is as new; what to say of it.

        Raises:
            TrainingError: on every rank, where it could not be written; it is on the nodes as it was.
        """
        if not self._known:
            return []
        everyone = self._group.gather(list(self._files))
        newest = self._group.on_first(lambda: checkpoint.newest(self._folder))
        first_newest = self._newest = newest if self._newest is None else self._newest
        notes: list[str] = []
        for step, world_size in sorted(
            {(key.step, key.world_size) for keys in everyone for key in keys}, reverse=True
        ):
            if step <= newest:
                break
            holders = [
                [holder for holder, keys in enumerate(everyone) if _Key(step, world_size, rank) in keys]
                for rank in range(world_size)
            ]
            missing = [rank for rank, each in enumerate(holders) if not each]
            if missing:
                notes.append(
                    f"step {step} is not whole on these nodes: the share of rank {missing[0]} is missing"
                )
                continue
            trouble = self._make(step, holders, first_newest)
            if trouble is None:
                self._group.on_first(lambda: checkpoint.prune(self._folder, keep, keep_every))
                return [*notes, f"step {step} was kept on the nodes, and is now checkpoints/step-{step}"]
            notes.append(f"step {step}, kept on the nodes, is not gone on from: {trouble}")
        return notes

    def _make(self, step: int, holders: Sequence[Sequence[int]], newest: int) -> Optional[str]:
        """Make a checkpoint of a step; each node writes what it has. Why it is none."""
        heads: dict[int, _Head] = {}
        troubles: dict[int, str] = {}
        for turn in range(max(map(len, holders))):
            own: dict[int, Union[_Head, str]] = {}
            failure: Optional[str] = None
            for rank, each in enumerate(holders):
                if rank not in heads and each[turn : turn + 1] == [self._ranks.rank]:
                    try:
                        own[rank] = self._unpacked(_Key(step, len(holders), rank))
                    except OSError as error:
                        failure = f"{self._ranks}: {error.strerror or error}"
            for found, failed in self._group.gather((own, failure)):
                if failed is not None:
                    raise TrainingError(
                        f"step {step} was kept on the nodes, and cannot be written to {self._folder} ({failed}); nothing is "
                        "lost: start again on the same nodes when it can"
                    )
                heads.update({rank: head for rank, head in found.items() if isinstance(head, _Head)})
                troubles.update({rank: head for rank, head in found.items() if isinstance(head, str)})
        trouble = next((why for rank, why in troubles.items() if rank not in heads), None)
        if trouble is None and heads[0].facts.get("follows", 0) > newest:
            trouble = f"checkpoints/step-{heads[0].facts['follows']}, which came before it, is gone"
        self._group.on_first(partial(self._commit, step, heads if trouble is None else None))
        return trouble

    def _commit(self, step: int, heads: Optional[Mapping[int, _Head]]) -> None:
        """Let it count, with all files in its own folder however many ranks there were; None: take it back."""
        if heads is None:
            shutil.rmtree(step_folder(self._folder, step), ignore_errors=True)
            return
        parts = {name: entry for rank in sorted(heads) for name, entry in heads[rank].parts.items()}
        facts = {name: value for name, value in heads[0].facts.items() if name != "follows"}
        checkpoint.commit(self._folder, step, parts, facts)

    def _unpacked(self, key: _Key) -> Union[_Head, str]:
        """Write the parts of a rank into the checkpoint's folder; what the file says, or what is wrong with it.

        Raises:
            OSError: they could not be written.
        """
        trouble = ""
        for path in self._files[key]:
            try:
                head, parts = _opened(path, self._known["token"], key)
            except (OSError, ValueError, KeyError, TypeError) as error:
                trouble = f"{path} is damaged ({error})"
                continue
            target = step_folder(self._folder, key.step)
            target.mkdir(parents=True, exist_ok=True)
            for name, content in parts.items():
                write_whole(target / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
            sync_folder(target)
            return head
        return trouble

    # What this start leaves.

    def begin(self, token: Optional[str]) -> Optional[str]:
        """Forget what earlier starts have left, and from now on keep steps under this name (None: keep none).

        Returns why none can be kept on one of the nodes, and then none is on any.
        """
        if token is None and not self._known:
            return None
        self._group.on_first(partial(self._record, token))
        if self._ranks.local_rank == 0:
            for folder in self._left():
                shutil.rmtree(folder, ignore_errors=True)
        if token is None:
            return None
        own, trouble = None, None
        try:
            own = self._settled(token)
        except OSError as error:
            trouble = (
                f"{self._ranks}: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
            )
        everyone = self._group.gather((self._ranks.host, trouble))
        trouble = next((why for _, why in everyone if why), None)
        if trouble is None:
            self._own, self._token = own, token
            hosts = [host for host, _ in everyone]
            self._target = neighbour(hosts, self._ranks.rank)
            self._sources = [rank for rank in range(len(hosts)) if neighbour(hosts, rank) == self._ranks.rank]
        return trouble

    def _record(self, token: Optional[str]) -> None:
        if token is None:
            (self._folder / _RECORD).unlink(missing_ok=True)
        else:
            write_json(self._folder / _RECORD, {"schema": SCHEMA, "token": token, "place": self._place})

    def _settled(self, token: str) -> Path:
        """Return the folder for this start's copies on this node.

        Raises:
            OSError: there is none that this user can have for itself.
        """
        failure: Optional[OSError] = None
        for base in _bases(self._place, self._environment):
            try:
                with contextlib.suppress(FileExistsError):
                    (base / _name()).mkdir(mode=0o700)
                folder = _require_own(base / _name()) / token
                folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                failure = failure or error
                continue
            _sweep(folder.parent)
            return folder
        raise failure or FileNotFoundError("no folder on the node is named")

    @property
    def on(self) -> bool:
        """True if steps are kept."""
        return self._own is not None

    @property
    def where(self) -> str:
        """The folder on this node, and whether another node has a copy too."""
        beside = "" if self._target is None else ", and on one other node each"
        return f"{self._own}{beside}"

    def keep(
        self, step: int, parts: Mapping[str, object], facts: Mapping[str, object], finite: bool
    ) -> Optional[str]:
        """Keep a step: when this returns, all ranks have written their files, and the step before is gone.

        Returns why this could not be, the same on all ranks; then the step before is still there.

        Raises:
            NotFinite: on every rank, where the state of one is not worth keeping.
        """
        assert self._own is not None
        ranks = self._ranks
        files: list[Path] = []
        trouble: Optional[str] = None
        data = b""
        if finite:
            key = _Key(step, ranks.world_size, ranks.rank)
            data = _packed(self._token, key, parts, facts if ranks.first else {})
        for rank, content in [(ranks.rank, data), *self._exchanged(data)]:
            path = self._own / f"step-{step}.rank-{rank}-of-{ranks.world_size}.by-{ranks.rank}"
            files.append(path)
            try:
                if content:
                    _put(path, content)
            except OSError as error:
                trouble = f"{ranks}: {error.strerror or error}"
        failed, spoilt = self._counted(trouble is not None, not finite)
        counts = not (failed or spoilt)
        for path in self._last if counts else files:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        if counts:
            self._last = files
            return None
        if spoilt:
            raise NotFinite(step, "the loss or a parameter")
        return next(filter(None, self._group.gather(trouble)))

    def _counted(self, *flags: bool) -> list[float]:
        """On how many ranks each of them is so; none returns before all have come."""
        given = torch.tensor(flags, dtype=torch.float32, device=self._group.device)
        counted: list[float] = self._group.sum(given).tolist()
        return counted

    def _exchanged(self, data: bytes) -> list[tuple[int, bytes]]:
        """Give this rank's file to another node, and take those that are for this one: their ranks and contents."""
        if self._target is None and not self._sources:
            return []
        device = self._group.device
        sizes = {source: torch.zeros(1, dtype=torch.int64, device=device) for source in self._sources}
        self._passed(torch.tensor([len(data)], device=device), sizes)
        whole = {source: int(size) for source, size in sizes.items()}
        taken = {
            source: torch.empty(size, dtype=torch.uint8, device=device)
            for source, size in whole.items()
            if size
        }
        given = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device) if data else None
        self._passed(given, taken)
        return [(source, _bytes(each)) for source, each in taken.items()]

    def _passed(self, given: Optional[torch.Tensor], taken: Mapping[int, torch.Tensor]) -> None:
        moves = [dist.P2POp(dist.irecv, tensor, source) for source, tensor in taken.items()]
        if given is not None and self._target is not None:
            moves.append(dist.P2POp(dist.isend, given, self._target))
        for work in dist.batch_isend_irecv(moves) if moves else []:
            work.wait()

    def close(self) -> None:
        """All is in the run directory: what is on the nodes has served."""
        if self._own is not None:
            for path in self._last:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # of several ranks on a node the last one finds it empty
                self._own.rmdir()
            self._own = None
            if self._ranks.first:
                with contextlib.suppress(OSError):
                    (self._folder / _RECORD).unlink(missing_ok=True)


def neighbour(hosts: Sequence[str], rank: int) -> Optional[int]:
    """Return the rank on the next node that keeps a copy for this one; None where all are on one node.

    Args:
        hosts: The node of each rank.
    """
    nodes = list(dict.fromkeys(hosts))
    if len(nodes) == 1:
        return None
    there = nodes[(nodes.index(hosts[rank]) + 1) % len(nodes)]
    among = [each for each, host in enumerate(hosts[:rank]) if host == hosts[rank]]
    others = [each for each, host in enumerate(hosts) if host == there]
    return others[len(among) % len(others)]


def _bases(place: Optional[str], environment: Mapping[str, str]) -> list[Path]:
    """Return the folders of a node that come into question, the best one first."""
    if place is not None:
        return [Path(string.Template(place).safe_substitute(environment))]
    named = [environment.get(name, "") for name in ("SLURM_TMPDIR", "TMPDIR")]
    return [Path(each) for each in ("/dev/shm", *named, "/tmp") if each]


def _name() -> str:
    return f"slurmgpu-{os.getuid()}"


def _require_own(folder: Path) -> Path:
    """Refuse a folder in a place where anybody may make one, unless it is this user's alone.

    Raises:
        OSError: it is not there, or is another's, or a link.
    """
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that this user alone may enter")
    return folder


def _sweep(folder: Path) -> None:
    """Remove what runs have left that nobody has come back for."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if time.time() - path.stat().st_mtime > _OLD:
                shutil.rmtree(path, ignore_errors=True)


def _packed(token: str, key: _Key, parts: Mapping[str, object], facts: Mapping[str, object]) -> bytes:
    """One file: the SHA-256 of its head, the head in JSON, and the parts as ``torch.save`` writes them."""
    contents: list[bytes] = []
    entries: dict[str, Facts] = {}
    for name, part in parts.items():
        buffer = io.BytesIO()
        torch.save(part, buffer)
        contents.append(buffer.getvalue())
        entries[name] = {"bytes": len(contents[-1]), "sha256": hashlib.sha256(contents[-1]).hexdigest()}
    head = {"schema": SCHEMA, "token": token, "key": key, "parts": entries, "facts": facts}
    text = json.dumps(head).encode()
    return b"".join([hashlib.sha256(text).hexdigest().encode(), b"\n", text, b"\n", *contents])


def _opened(path: Path, token: str, key: _Key) -> tuple[_Head, dict[str, bytes]]:
    """Return what a file holds, if it is as it was written, and what it is named.

    Raises:
        ValueError: it is not.
    """
    data = path.read_bytes()
    seal, text, rest = data.split(b"\n", 2)
    if hashlib.sha256(text).hexdigest().encode() != seal:
        raise ValueError("its head differs from its SHA-256")
    head = json.loads(text)
    if [head["schema"], head["token"], head["key"]] != [SCHEMA, token, list(key)]:
        raise ValueError("it is of another run or step")
    parts, start = {}, 0
    for name, entry in head["parts"].items():
        content = rest[start : start + entry["bytes"]]
        start += entry["bytes"]
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise ValueError(f"{name} differs from its SHA-256")
        parts[name] = content
    return _Head(head["parts"], head["facts"]), parts


def _put(path: Path, data: bytes) -> None:
    """Write a file whole, for readers of this machine: it outlives its process, and not the machine."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _bytes(tensor: torch.Tensor) -> bytes:
    found = bytearray(tensor.numel())
    torch.frombuffer(found, dtype=torch.uint8).copy_(tensor)
    return bytes(found)
