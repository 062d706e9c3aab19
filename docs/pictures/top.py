"""Makes the pictures of ``slurmgpu top`` for docs/top.md, from made-up jobs: ``python docs/pictures/top.py [FOLDER]``."""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from make import without_fonts  # noqa: E402
from textual.pilot import Pilot  # noqa: E402

from slurmgpu.diagnosis.facts import Cause  # noqa: E402
from slurmgpu.jobs.causes import cause_lines, in_one_line  # noqa: E402
from slurmgpu.jobs.gpus_now import GpusNow, Mine, Row  # noqa: E402
from slurmgpu.jobs.live import Detail, Snapshot, Source  # noqa: E402
from slurmgpu.jobs.log_files import Log  # noqa: E402
from slurmgpu.jobs.look import StatusReport  # noqa: E402
from slurmgpu.models.plan import Plan  # noqa: E402
from slurmgpu.models.run import GpuSummary, JobState, JobStatus, Progress, Run, SampleSummary  # noqa: E402  # noqa: E402
from slurmgpu.models.units import Duration, Memory  # noqa: E402
from slurmgpu.runs.samples import GpuSeries  # noqa: E402
from slurmgpu.slurm import Slurm  # noqa: E402
from slurmgpu.top.app import Top  # noqa: E402
from slurmgpu.top.jobs import JobsScreen  # noqa: E402

NOW = datetime(2026, 11, 20, 14, 5, 12).astimezone()
GIB = 1 << 30
HOUR = 3600
STEPS = 9000


CAUSE = Cause(
    job_id="48204", restart=0, time="2026-11-20T13:10:41Z", rank=2, host="n014", kind="gpu-memory",
    what="the GPU is out of memory: 2.50 GiB more were wanted; GPU 2 has 79.25 GiB, of which 612.75 MiB were free, 74.10 GiB "
    "were PyTorch's",
    fix="less memory with the same batch: smaller micro-batches with more gradient accumulation, activation checkpointing, bf16; "
    "or shard the model (FSDP), or a GPU with more memory",
    evidence=(
        '  File "train.py", line 88, in main',
        "    loss = model(images).loss",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
    ),
    exit_code=1, signal=None, certain=True,
)  # fmt: skip


def _job(number: int, name: str, state: str, gpus: int, **more: object) -> JobStatus:
    known: dict[str, object] = {
        "job_id": str(number), "raw_id": number, "name": name, "state": JobState(state), "gpus": gpus,
        "gpu_types": {"a100": gpus}, "partition": "gpu", "user": "ada", "account": "vision", "qos": "normal", "nodes": 1,
        "cpus": 8 * gpus, "limit": 24 * HOUR, "cluster": "atlas", "submit": NOW - timedelta(hours=9), "source": "squeue",
    }  # fmt: skip
    return JobStatus.model_validate(known | more)


def _progress(step: int, loss: float, hours: float) -> Progress:
    return Progress(
        step=step, total_steps=STEPS, epoch=step // 1000, loss=loss, samples_per_second=2310.0, age_seconds=2.0,
        eta_seconds=hours * HOUR, data_wait_share=0.04,
    )  # fmt: skip


def _gpu(index: int, use: float, memory: float) -> GpuSummary:
    return GpuSummary(
        host="n014", index=index, name="NVIDIA A100-SXM4-80GB", utilisation_mean=use, memory_peak=int(memory * GIB),
        memory_total=80 * GIB, power_mean=120 + 280 * use, energy=(120 + 280 * use) * 2.4 * HOUR,
    )  # fmt: skip


def _task(number: int) -> JobStatus:
    runs = number < 2
    made = _job(
        48220 + number, "lr-sweep", "RUNNING" if runs else "COMPLETED", 1, array_job_id=48220, array_tasks=str(number),
        elapsed=1900 + 70 * number, start=NOW - timedelta(minutes=40), node_list="n009", exit_code=None if runs else 0,
    )  # fmt: skip
    return made.model_copy(update={"job_id": f"48220_{number}"})


SAMPLED = SampleSummary(
    seconds=2.4 * HOUR, hosts=1, nodes=1, cpu_cores_mean=9.4, rss_peak=31 * GIB, age_seconds=6.0,
    gpus=(_gpu(0, 0.94, 61.3), _gpu(1, 0.93, 61.3), _gpu(2, 0.94, 61.3), _gpu(3, 0.91, 60.8)),
)  # fmt: skip
JOBS = [
    _job(48213, "vit-large", "RUNNING", 4, elapsed=int(2.4 * HOUR), start=NOW - timedelta(hours=2.4), node_list="n014",
         progress=_progress(3720, 1.84, 3.4), sampled=SAMPLED),
    _job(48209, "llama-ft", "RUNNING", 16, nodes=4, elapsed=int(7.1 * HOUR), start=NOW - timedelta(hours=7.1), restarts=1,
         node_list="n[021-024]", progress=_progress(8100, 0.912, 0.8)),
    _job(48230, "llama-eval", "PENDING", 1, reason="Dependency", dependency="afterok:48209(unfulfilled)"),
    _job(48227, "clip-base", "PENDING", 32, nodes=8, reason="Resources", expected_start=NOW + timedelta(hours=5, minutes=15)),
    _job(48226, "sd-xl", "PENDING", 8, nodes=2, reason="QOSMaxGRESPerUser"),
    *(_task(n) for n in range(4)),
    _job(48204, "resnet-big", "FAILED", 4, elapsed=312, exit_code=1, start=NOW - timedelta(hours=4),
         end=NOW - timedelta(hours=3.9), cause=in_one_line(CAUSE), source="sacct"),
    _job(48198, "tokenise", "COMPLETED", 0, cpus=32, partition="cpu", elapsed=2710, exit_code=0, gpu_types={},
         start=NOW - timedelta(hours=6), end=NOW - timedelta(hours=5.2), source="sacct"),
    _job(48191, "vit-base", "TIMEOUT", 4, elapsed=24 * HOUR, start=NOW - timedelta(hours=33), end=NOW - timedelta(hours=9),
         source="sacct"),
]  # fmt: skip
LOG = "epoch {epoch}/9  step {step}/9000  loss {loss:.4g}  2,310 samples/s  3.4 h left"
"""A line of a training's log, as slurmgpu/training/trainer.py prints it."""


def _plan() -> Plan:
    return Plan.model_construct(
        nodes=1, gpus_per_node=4, gpu_type="a100", processes_per_node=4, launcher="torchrun", cpus_per_task=32,
        memory=Memory(64 * 1024), time=Duration(24 * HOUR), command=None,
        train={},
        steps=(), components=(),
    )  # fmt: skip


class Demo(Source):
    """Made-up jobs in place of Slurm's."""

    log = Path()

    def jobs(self, *, anew: bool = False) -> Snapshot:
        """The same at every look."""
        return Snapshot(StatusReport("atlas", NOW, JOBS, []))

    def detail(self, job: JobStatus) -> Detail:
        """A curve, and GPUs that work."""
        run = Run.model_construct(
            run_dir=f"/scratch/ada/runs/{job.name}-20261120-050213-k3v9", job_id=job.raw_id
        )
        losses = [
            (at, 1.6 + 5.2 * math.exp(-at / 900) + 0.08 * math.sin(at / 31) * math.sin(at / 7))
            for at in range(0, 3720, 10)
        ]
        uses = [
            GpuSeries(
                "n014",
                gpu,
                [0.94 - 0.5 * (at % 40 == 7 + gpu) - 0.05 * math.sin(at / 3 + gpu) for at in range(240)],
            )
            for gpu in range(4)
        ]
        ran = job.state is JobState.RUNNING
        return Detail(job, run, _plan(), "", losses if ran else [], uses if ran else [])

    def cause(self, job: JobStatus) -> list[str]:
        """What failed first."""
        return cause_lines(CAUSE) if job.cause else []

    def logs(self, job: JobStatus) -> list[Log]:
        """One log."""
        return [Log(job.job_id, self.log)]

    def gpus(self) -> tuple[GpusNow, float]:
        """Two types, three partitions."""
        return _gpus(), 0.0


def _row(
    kind: str, partition: str | None, total: int, used: int, free: int, block: int, **more: object
) -> Row:
    stranded, drained = (int(str(more.get(name, 0))) for name in ("stranded", "drained"))
    return Row(
        type=kind, partition=partition, slices=False, nodes=total // 4, total=total, used=used, free=free, block=block,
        whole_nodes=free // 4, stranded=stranded, stranded_for=("CPUs",) if stranded else (),
        away={"drained": drained} if drained else {},
    )  # fmt: skip


def _gpus() -> GpusNow:
    types = (_row("a100", None, 96, 79, 11, 4, stranded=2, drained=4), _row("h100", None, 32, 32, 0, 0))
    places = (
        _row("a100", "gpu", 80, 68, 8, 4),
        _row("a100", "debug", 16, 11, 3, 2),
        _row("h100", "hopper", 32, 32, 0, 0),
    )
    mine = (
        Mine("gpu", "a100", 8, "free"),
        Mine("debug", "a100", 1, "the partition's limit of 1 GPU a job"),
        Mine("hopper", "h100", 0, "free"),
    )
    return GpusNow("atlas", types, places, mine, "vision", "normal", {})


async def _shot(size: tuple[int, int], log: Path, keys: tuple[str, ...], ready: Callable[[str], bool]) -> str:
    """The screen after some keys, once it shows what it is to show."""
    slurm = Slurm(env={"SLURM_CONF": "/nowhere"})
    source = Demo(slurm, slurm, "ada", lambda _: None, lambda _: None, {}, lambda _: (True, ""), pace=3600.0)
    source.log = log
    app = Top(source, JobsScreen())
    async with app.run_test(size=size) as pilot:
        await _until(pilot, lambda: app.seen is not None)
        for key in keys:
            await pilot.press(key)
        await _until(pilot, lambda: ready(_text(app)))
        return app.export_screenshot(title="slurmgpu top")


def _text(app: Top) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips(app.size))


async def _until(pilot: Pilot[None], so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while True:
        await pilot.pause()
        if so():
            return
        if time.monotonic() > end:
            raise SystemExit(f"it is not on the screen:\n{_text(pilot.app)}")  # type: ignore[arg-type]
        await asyncio.sleep(0.02)


TO_VIT = ("slash", *"vit-large", "enter")
PICTURES: dict[str, tuple[tuple[int, int], tuple[str, ...], Callable[[str], bool]]] = {
    "top-jobs": ((80, 24), (), lambda text: "vit-base" in text),
    "top-job": ((80, 36), (*TO_VIT, "enter"), lambda text: "loss, steps" in text and "n014:3" in text),
    "top-failed": (
        (80, 24),
        ("slash", *"resnet", "enter", "enter"),
        lambda text: "Tried to allocate" in text,
    ),
    "top-logs": ((80, 24), (*TO_VIT, "l"), lambda text: "step 3720" in text),
    "top-gpus": ((80, 24), ("g",), lambda text: "hopper" in text),
}
"""Of each: the terminal's size, the keys, and when it is done."""


def draw(folder: Path) -> None:
    """Write all pictures into a folder."""
    moment = NOW.astimezone(timezone.utc)
    with tempfile.TemporaryDirectory() as made, mock.patch("slurmgpu.top.jobs.datetime") as clock:
        clock.now.return_value = moment
        log = Path(made, "log")
        lines = [
            LOG.format(epoch=at // 1000 + 1, step=at, loss=1.9 - (at - 3400) / 6000)
            for at in range(3400, 3721, 10)
        ]
        log.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for name, (size, keys, ready) in PICTURES.items():
            svg = without_fonts(asyncio.run(_shot(size, log, keys, ready)))
            (folder / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
