"""GPUs by the programs of their drivers: nvidia-smi where NVML cannot be loaded; amd-smi or rocm-smi."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Callable, NamedTuple, Optional

from .readings import Reading, throttled_by

__all__ = ["SMI", "Smi", "output_of", "read_amd_smi", "read_nvidia_smi", "read_rocm_smi"]

_PATIENCE = 10.0  # seconds for a program that hangs with its driver
_MOST = 4 << 20  # bytes of output
_MIB = 1 << 20

_NVIDIA = (
    "index", "uuid", "name", "utilization.gpu", "memory.used", "memory.total", "power.draw", "clocks.sm", "temperature.gpu",
    "clocks_throttle_reasons.active", "ecc.errors.uncorrected.volatile.total",
)  # fmt: skip


_abandoned: list[subprocess.Popen[bytes]] = []


class Hanging(OSError):
    """A program that did not answer in time; it may not have ended, even by KILL."""


def output_of(words: Sequence[str], patience: float = _PATIENCE) -> Optional[str]:
    """Return what a program prints; None where it fails. Hanging when it takes too long: it is killed, and not waited for."""
    _abandoned[:] = [one for one in _abandoned if one.poll() is None]
    with tempfile.TemporaryFile() as output:  # a pipe would have to be read, which could hang as well
        program = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
        )
        until, pause = time.monotonic() + patience, 0.005
        while program.poll() is None:
            if time.monotonic() > until:
                with contextlib.suppress(OSError):
                    os.killpg(program.pid, signal.SIGKILL)
                _abandoned.append(program)
                raise Hanging(f"{words[0]} does not answer")
            time.sleep(pause)
            pause = min(0.1, pause * 2)
        if program.returncode != 0:
            return None
        output.seek(0)
        return output.read(_MOST).decode("utf-8", "replace")


def read_nvidia_smi(text: str) -> list[Reading]:
    """Return what `nvidia-smi --query-gpu=... --format=csv,noheader,nounits` says, a GPU a line."""
    return [one for line in text.splitlines() if (one := _nvidia_line(line)) is not None]


def _nvidia_line(line: str) -> Optional[Reading]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(_NVIDIA) or not cells[0].isdecimal():
        return None
    of = dict(zip(_NVIDIA, cells))
    busy, used, total = (_number(of[name]) for name in ("utilization.gpu", "memory.used", "memory.total"))
    clock, errors = _number(of["clocks.sm"]), _number(of["ecc.errors.uncorrected.volatile.total"])
    bits = of["clocks_throttle_reasons.active"]
    return Reading(
        number=int(cells[0]),
        uuid=of["uuid"] or None,
        name=of["name"] or None,
        utilisation=None if busy is None else busy / 100,
        memory=None if used is None else int(used * _MIB),
        memory_total=None if total is None else int(total * _MIB),
        power=_number(of["power.draw"]),
        clock=None if clock is None else int(clock * 1_000_000),
        temperature=_number(of["temperature.gpu"]),
        throttled=throttled_by(int(bits, 16)) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", bits) else (),
        ecc_errors=None if errors is None else int(errors),
    )


def read_rocm_smi(text: str) -> list[Reading]:
    """Return what `rocm-smi ... --json` says: an object of each card, whose keys differ by release."""
    cards = _json(text)
    found = []
    for key, card in cards.items() if isinstance(cards, dict) else ():
        match = re.fullmatch(r"card(\d+)", key)
        if match and isinstance(card, dict):
            found.append(_rocm_card(int(match[1]), card))
    return sorted(found)


def _rocm_card(index: int, card: Mapping[str, object]) -> Reading:
    def like(pattern: str) -> Optional[str]:
        return next(
            (str(value) for key, value in card.items() if re.search(pattern, key, re.IGNORECASE)), None
        )

    busy, clock = _number(like(r"^GPU use \(%\)")), _number(like(r"^sclk clock speed"))
    used, total = _number(like(r"^VRAM Total Used Memory")), _number(like(r"^VRAM Total Memory"))
    energy = _number(like(r"^Accumulated Energy \(uJ\)"))
    return Reading(
        number=index,
        uuid=like(r"^Unique ID"),
        name=like(r"^Card series|^Card model"),
        utilisation=None if busy is None else busy / 100,
        memory=None if used is None else int(used),
        memory_total=None if total is None else int(total),
        power=_number(like(r"Graphics Package Power \(W\)")),
        energy=None if energy is None else energy / 1e6,
        clock=None if clock is None else int(clock * 1_000_000),
        temperature=_number(
            like(r"^Temperature \(Sensor junction\)") or like(r"^Temperature \(Sensor edge\)")
        ),
    )


def read_amd_smi(text: str) -> list[Reading]:
    """Return what `amd-smi metric ... --json` says: a list of GPUs, which newer releases put under `gpu_data`."""
    document = _json(text)
    gpus = document.get("gpu_data") if isinstance(document, dict) else document
    return [
        _amd_gpu(gpu)
        for gpu in (gpus if isinstance(gpus, list) else [])
        if isinstance(gpu, dict) and type(gpu.get("gpu")) is int
    ]


def _amd_gpu(gpu: Mapping[str, object]) -> Reading:
    busy, power = _amount(gpu, "usage", "gfx_activity"), _amount(gpu, "power", "socket_power")
    used, total = _amount(gpu, "mem_usage", "used_vram"), _amount(gpu, "mem_usage", "total_vram")
    clock = _amount(gpu, "clock", "gfx_0", "clk")
    index = gpu["gpu"]
    assert isinstance(index, int)
    return Reading(
        number=index,
        utilisation=None if busy is None else busy / 100,
        memory=None
        if used is None
        else int(used * _MIB),  # it writes MB and means MiB, as rocm-smi's bytes show
        memory_total=None if total is None else int(total * _MIB),
        power=power,
        energy=_amount(gpu, "energy", "total_energy_consumption"),
        clock=None if clock is None else int(clock * 1_000_000),
        temperature=_amount(gpu, "temperature", "hotspot"),
        ecc_errors=_count(_amount(gpu, "ecc", "total_uncorrectable_count")),
    )


def _amount(gpu: Mapping[str, object], *keys: str) -> Optional[float]:
    value: object = gpu
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return _number(value.get("value") if isinstance(value, dict) else value)


def _count(value: Optional[float]) -> Optional[int]:
    return None if value is None else int(value)


def _json(text: str) -> object:
    begin = min(
        (at for at in (text.find("{"), text.find("[")) if at >= 0), default=0
    )  # warnings may come first
    try:
        document: object = json.loads(text[begin:])
    except (ValueError, RecursionError):
        return None
    return document


def _number(value: object) -> Optional[float]:
    """Return the number that a cell begins with; `[N/A]`, `[Not Supported]` and the like are none."""
    match = re.match(r"\s*\(?(\d+(?:\.\d+)?)", str(value))
    return float(match[1]) if match else None


class Program(NamedTuple):
    """One program that tells about GPUs."""

    words: tuple[str, ...]
    read: Callable[[str], list[Reading]]


SMI = (
    Program(("nvidia-smi", f"--query-gpu={','.join(_NVIDIA)}", "--format=csv,noheader,nounits"), read_nvidia_smi),
    Program(
        ("amd-smi", "metric", "--usage", "--mem-usage", "--power", "--clock", "--temperature", "--ecc", "--energy", "--json"),
        read_amd_smi,
    ),
    Program(
        (
            "rocm-smi", "--showuse", "--showmeminfo", "vram", "--showpower", "--showtemp", "--showclocks",
            "--showproductname", "--showuniqueid", "--showenergycounter", "--json",
        ),
        read_rocm_smi,
    ),
)  # fmt: skip
"""The programs, in the order in which they are tried."""


class Smi:
    """The GPUs that a program shows; OSError where none of them shows any."""

    def __init__(self, programs: Sequence[Program] = SMI) -> None:
        for program in _installed(programs):
            readings = program.read(output_of(program.words) or "")
            if readings:
                self._program, self._only = program, {one.number for one in readings}
                self.source = program.words[0].rsplit("/", 1)[-1]
                self.found = [(one.number, one.uuid) for one in readings]
                return
        raise OSError("no program shows GPUs")

    def watch(self, indices: list[int]) -> None:
        """Keep to these."""
        self._only = set(indices)

    def read(self) -> list[Reading]:
        """Return every GPU; OSError where the program fails or hangs."""
        text = output_of(self._program.words)
        if text is None:
            raise OSError(f"{self.source} fails")
        return [one for one in self._program.read(text) if one.number in self._only]


def _installed(programs: Sequence[Program]) -> Iterator[Program]:
    for program in programs:
        path = shutil.which(program.words[0])
        if path is not None:
            yield program._replace(words=(path, *program.words[1:]))
