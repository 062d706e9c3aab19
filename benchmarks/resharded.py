"""Saves by one strategy, goes on with another: each pair of them, held against one process.

    python benchmarks/resharded.py [--json FILE]

Every writer trains 6 steps and saves; every reader goes on from there to step 12. The rate is 0 in the seventh step, so the
reader's checkpoint of that step has the weights as it has read them: exported, they must be the file that is exported from
the writer's own, byte for byte. What comes of the rest, with AdamW's state and a schedule, is held against one process that was
never stopped, and with the same strategy on as many processes against the writer that was never stopped, to the bit.

Then a folder of Hugging Face's (two files, bfloat16, tied weights) is what each strategy begins with. The rate is 0 in the first
step as well: what is written back must be what was read.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.soak import Fault, Run, Setup, preload  # noqa: E402
from slurmgpu.training.export import export, export_like  # noqa: E402
from slurmgpu.training.weights import safetensors  # noqa: E402
from slurmgpu.training.weights.reading import read_state  # noqa: E402

SAVED, STEPS = 6, 12
LOSSES, WEIGHTS = 1e-5, 5e-6  # relative; absolute


class Block(nn.Module):
    """Two layers that can be split over processes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(10, 12), nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Data(torch.utils.data.Dataset[Any]):
    """Samples of three numbers and their sum."""

    def __len__(self) -> int:
        return 216

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(3, generator=torch.Generator().manual_seed(index))
        return x, x.sum()


class Split:
    """A model that every strategy takes; ten rows are no whole number for three processes, nor for four."""

    def model(self, cfg: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 10), nn.Sequential(Block(), Block()), nn.Linear(10, 1))

    def blocks(self, model: Any) -> list[nn.Module]:
        return list(model[1])

    def parallelize(self, model: Any, mesh: Any) -> None:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        for block in model[1]:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    def stages(self, model: Any, count: int) -> list[nn.Module]:
        blocks = [model[0], *model[1], model[2]]
        cuts = [len(blocks) * number // count for number in range(count + 1)]
        return [nn.Sequential(*blocks[cuts[at] : cuts[at + 1]]) for at in range(count)]

    def dataset(self, cfg: Any, split: str) -> Any:
        return Data() if split == "train" else None

    def optimizer(self, model: nn.Module, cfg: Any) -> Any:
        return torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)

    def schedule(self, optimizer: torch.optim.Optimizer, cfg: Any, total_steps: int) -> Any:
        still = (0, SAVED) if cfg.still else (SAVED,)
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.0 if step in still else 1 / (1 + step)
        )

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return nn.functional.mse_loss(model(batch[0])[:, 0], batch[1])


class Tied(Split):
    """The same, with two blocks that have their weights in common."""

    def model(self, cfg: Any) -> nn.Module:
        model: Any = super().model(cfg)
        model[1][1].up.weight = model[1][0].up.weight
        return model  # type: ignore[no-any-return]

    def blocks(self, model: Any) -> list[nn.Module]:
        return [model[1]]  # gathered together, as what they have in common must be

    def parallelize(self, model: Any, mesh: Any) -> None:
        super().parallelize(model, mesh)
        model[1][1].up.weight = model[1][0].up.weight  # splitting a layer makes its weights anew

    def stages(self, model: Any, count: int) -> list[nn.Module]:
        return [
            nn.Sequential(model[0], model[1]),
            model[2],
        ]  # in one stage, as what they have in common must be


class Way(NamedTuple):
    """A strategy on so many processes."""

    strategy: str
    processes: int
    tensor_parallel: int = 1

    def __str__(self) -> str:
        split = f", tensor parallel {self.tensor_parallel}" if self.tensor_parallel > 1 else ""
        return f"{self.strategy} x{self.processes}{split}"

    @property
    def settings(self) -> dict[str, Any]:
        """What stands in train.json."""
        found: dict[str, Any] = {"strategy": self.strategy, "accumulate": 1}
        if self.strategy == "pipeline":
            found["accumulate"] = 3
        if self.tensor_parallel > 1:
            found["tensor_parallel"] = self.tensor_parallel
        return found


ONE = Way("single", 1)
WRITERS = [
    ONE, Way("model_parallel", 1), Way("ddp", 4), Way("fsdp2", 4), Way("fsdp2", 4, 2), Way("pipeline", 4),
]  # fmt: skip
READERS = [
    ONE, Way("model_parallel", 1), *(Way("ddp", count) for count in (2, 3, 4)), *(Way("fsdp2", count) for count in (2, 3, 4)),
    Way("fsdp2", 2, 2), Way("fsdp2", 4, 2), *(Way("pipeline", count) for count in (2, 3, 4)),
]  # fmt: skip
BEGINNERS = [
    ONE, Way("model_parallel", 1), Way("ddp", 2), Way("fsdp2", 2), Way("fsdp2", 3), Way("fsdp2", 4, 2), Way("pipeline", 2),
]  # fmt: skip


def trained(folder: Path, way: Way, steps: int, task: str = "Split", **settings: Any) -> Run:
    """Train in a folder, which may have checkpoints; it must end well."""
    existing = folder.exists()
    run = Run.__new__(Run)
    run.folder, run.setup, run.starts, run.tmpfs = (
        folder,
        Setup(way.processes, 0, 1, strategy=way.strategy),
        int(existing),
        False,
    )
    folder.mkdir(exist_ok=True)
    document = {
        "schema": "slurmgpu.train/1",
        "task": f"{__file__}:{task}",
        "epochs": None,
        "max_steps": steps,
        "batch_size": 36,
        "workers": 0,
        "log_every": 1,
        "checkpoint_every": 1000,
        "checkpoint_steps": 1,
        "keep": 99,
        "clip_norm": 1.0,
        "timeout": 100.0,
        "config": {"still": "pretrained" in settings},
        **way.settings,
        **settings,
    }
    (folder / "train.json").write_text(json.dumps(document))
    codes = run.start(Fault(""), 0.0)
    if set(codes) != {0}:
        raise SystemExit(f"{way} in {folder} ended with {codes}: {run.log()}")
    return run


def weights(run: Run, step: int) -> dict[str, torch.Tensor]:
    """The whole weights of a checkpoint."""
    return read_state(run.folder / "checkpoints" / f"step-{step}")


def exported(run: Run, step: int) -> bytes:
    """The safetensors file of a checkpoint."""
    target = run.folder / "exported.safetensors"
    export(run.folder / "checkpoints" / f"step-{step}", target)
    return target.read_bytes()


def apart(one: Run, other: Run) -> tuple[float, float]:
    """How far two runs are apart: of their losses relatively, of their weights at the end absolutely, the largest."""
    losses = [{step: float.fromhex(value) for step, value in each.losses().items()} for each in (one, other)]
    if losses[0].keys() != losses[1].keys():
        raise SystemExit(f"{one.folder} has the losses of steps {sorted(losses[0])}")
    far = max(abs(value - losses[1][step]) / abs(losses[1][step]) for step, value in losses[0].items())
    mine, others = weights(one, STEPS), weights(other, STEPS)
    if mine.keys() != others.keys():
        raise SystemExit(f"{one.folder} has the weights {sorted(mine)}")
    return far, max(float((mine[name] - others[name]).abs().max()) for name in mine)


def same(one: Run, other: Run) -> bool:
    """Whether two runs are the same to the bit: losses, and weights as they are exported."""
    return one.losses() == other.losses() and exported(one, STEPS) == exported(other, STEPS)


def resharded(folder: Path, failures: list[str]) -> list[dict[str, Any]]:
    """All pairs."""
    alone, rows = trained(folder / "alone", ONE, STEPS), []
    for number, writer in enumerate(WRITERS):
        halted = trained(folder / f"writer-{number}", writer, SAVED)
        straight = alone if writer == ONE else trained(folder / f"straight-{number}", writer, STEPS)
        written = exported(halted, SAVED)
        for other, reader in enumerate(READERS):
            place = folder / f"pair-{number}-{other}"
            shutil.copytree(halted.folder, place)
            run = trained(place, reader, STEPS)
            losses, far = apart(run, alone)
            row = {
                "saved_by": str(writer),
                "read_by": str(reader),
                "read_to_the_bit": exported(run, SAVED + 1) == written,
                "losses_apart": losses,
                "weights_apart": far,
            }
            if reader == writer:
                row["same_to_the_bit"] = same(run, straight)
            rows.append(row)
            # DDP lays its buckets out anew after its first step, and a sum of more than two has more than one order.
            exact = row.get("same_to_the_bit", True) or writer.strategy == "ddp"
            if not (row["read_to_the_bit"] and exact and losses <= LOSSES and far <= WEIGHTS):
                failures.append(f"saved by {writer}, read by {reader}: {row}")
            print(json.dumps(row), flush=True)
            shutil.rmtree(place)
    return rows


def came(folder: Path) -> dict[str, torch.Tensor]:
    """A folder of Hugging Face's: two files with an index, other beginnings of names, bfloat16, one name of what is tied."""
    folder.mkdir()
    torch.manual_seed(7)
    own = Tied().model(None).state_dict()
    state = {f"net.{name}": value.bfloat16() for name, value in own.items() if name != "1.1.up.weight"}
    names = sorted(state)
    places = {name: f"model-0000{1 + (at > 5)}-of-00002.safetensors" for at, name in enumerate(names)}
    for file in set(places.values()):
        tensors = [
            safetensors.Lazy(name, each.dtype, tuple(each.shape), each.clone)
            for name, each in state.items()
            if places[name] == file
        ]
        with (folder / file).open("wb") as opened:
            safetensors.writer(tensors)(opened)
    size = sum(each.numel() * 2 for each in state.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    (folder / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    return state


def begun(folder: Path, failures: list[str]) -> list[dict[str, Any]]:
    """Each strategy begins with the folder, and it is written back."""
    state, rows = came(folder / "came"), []
    for number, way in enumerate(BEGINNERS):
        given = {"pretrained": str(folder / "came"), "pretrained_rename": {"net.": ""}}
        run = trained(folder / f"begun-{number}", way, 1, "Tied", **given)
        back = folder / f"back-{number}"
        said = export_like(run.folder / "checkpoints" / "step-1", back, "model", folder / "came")
        found = read_state(back)
        files = {path.name: path.read_bytes() for path in back.iterdir()}
        row = {
            "strategy": str(way),
            "names": list(found) == list(state) or found.keys() == state.keys(),
            "dtypes": all(found[name].dtype == each.dtype for name, each in state.items() if name in found),
            "values": all(torch.equal(found[name], each) for name, each in state.items() if name in found),
            "files": files == {path.name: path.read_bytes() for path in (folder / "came").iterdir()},
        }
        rows.append(row)
        if not all(row.values()) or said["added"] or said["left_out"]:
            failures.append(f"begun by {way}: {row}, {said}")
        print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    """Go through all pairs, print, and keep the figures when asked to; exit code 1 when one is not as it should be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    preload("fsdp2")
    failures: list[str] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="resharded-", ignore_cleanup_errors=True) as folder:
        folders = begun(Path(folder), failures)
        pairs = resharded(Path(folder), failures)
    others = [row for row in pairs if "same_to_the_bit" not in row]
    result = {
        "schema": "slurmgpu.benchmark/1",
        "benchmark": "resharded",
        "setting": {"saved_at": SAVED, "steps": STEPS, "precision": "fp32", "backend": "gloo"},
        "machine": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
        "versions": {"torch": torch.__version__},
        "seconds": round(time.monotonic() - began),
        "tolerances": {"losses_relative": LOSSES, "weights_absolute": WEIGHTS},
        "results": {
            "pairs": len(pairs),
            "read_to_the_bit": sum(row["read_to_the_bit"] for row in pairs),
            "same_strategy": len(pairs) - len(others),
            "same_strategy_to_the_bit": sum(row.get("same_to_the_bit", False) for row in pairs),
            "losses_apart_at_most": max(row["losses_apart"] for row in others),
            "weights_apart_at_most": max(row["weights_apart"] for row in others),
            "each": pairs,
            "hugging_face_folders": folders,
            "failures": failures,
        },
    }
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: each for name, each in result["results"].items() if name != "each"}, indent=1))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
