"""``slurmgpu checkpoint``: what a run has saved, whether it is intact, and one of them as plain weights."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from slurmgpu.cli.group import cli
from slurmgpu.errors import SlurmGpuError
from slurmgpu.runs import checkpoints as reading
from slurmgpu.training.errors import TrainingError
from slurmgpu.training.export import export
from slurmgpu.training.formats.checkpoint import sealed
from slurmgpu.training.names import plain_names
from slurmgpu.training.saving import checkpoint as writing
from slurmgpu.training.weights.reading import read_state

ROOT = Path(__file__).resolve().parent.parent
Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the command in an empty folder, without Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    monkeypatch.setenv("PATH", str(tmp_path))

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, ["checkpoint", *words])

    return run


def save(run_dir: Path, step: int, content: bytes = b"weights", **facts: Any) -> Path:
    """A checkpoint as the entrypoint leaves it; what is in its parts does not matter to list and verify."""
    path = run_dir / "checkpoints" / f"step-{step}"
    path.mkdir(parents=True)
    parts = {}
    for name in ("model.pt", "rank-0.pt"):
        (path / name).write_bytes(content)
        parts[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    known = {"time": 1.5e9 + step, "restart": 0, "world_size": 1, "torch": "2.13.0", "samples": 32 * step}
    document = {"schema": "slurmgpu.checkpoint/1", "step": step, **known, **facts, "parts": parts}
    (path / "manifest.json").write_text(json.dumps(document))
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with two checkpoints, of steps 10 and 20."""
    path = tmp_path / "runs" / "digits-20251121T100000Z-0a1b2c3d"
    save(path, 10, epoch=1, settings={"keep_every": 10})
    save(path, 20, epoch=2, settings={"keep_every": 15})
    return path


def test_no_flipped_bit_in_a_manifest_is_accepted(run_dir: Path) -> None:
    path = run_dir / "checkpoints" / "step-20" / "manifest.json"
    document = json.loads(path.read_text()) | {"schema": "slurmgpu.checkpoint/2"}
    text = sealed(document)
    path.write_bytes(text)
    assert reading.checkpoints(path.parents[1])[0].state == "complete"
    draw = random.Random(0)
    for _ in range(500):
        place = draw.randrange(len(text))
        path.write_bytes(text[:place] + bytes([text[place] ^ 1 << draw.randrange(8)]) + text[place + 1 :])
        assert reading.checkpoints(path.parents[1])[0].state == "damaged", path.read_bytes()


def test_what_a_resume_would_call_damaged_is_shown_so(call: Call, run_dir: Path) -> None:
    path = save(run_dir, 30, samples=None)
    (newest, *_) = listed(call)
    assert (newest["state"], newest["problem"]) == ("damaged", "manifest.json: samples is None")
    generation, notes = writing.newest_intact(path.parent)
    assert generation is not None
    assert generation.path.name == "step-20"
    assert "manifest.json: samples is None" in notes[0]


def listed(call: Call, *words: str) -> list[dict[str, Any]]:
    done = call("list", *words, "--json")
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)["checkpoints"]
    return rows


def truncate(path: Path) -> None:
    (path / "model.pt").write_bytes(b"weigh")


def flip(path: Path) -> None:
    (path / "model.pt").write_bytes(b"weighty"[::-1])


def lose_a_part(path: Path) -> None:
    (path / "rank-0.pt").unlink()


def part_becomes_a_folder(path: Path) -> None:
    (path / "rank-0.pt").unlink()
    (path / "rank-0.pt").mkdir()


def break_the_manifest(path: Path) -> None:
    (path / "manifest.json").write_text('{"schema": "slurmgpu.checkp')


def other_schema(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace("checkpoint/1", "checkpoint/3"))


def no_parts(path: Path) -> None:
    (path / "manifest.json").write_text('{"schema": "slurmgpu.checkpoint/1", "step": 20}')


def parts_without_sums(path: Path) -> None:
    document = json.loads((path / "manifest.json").read_text())
    document["parts"]["model.pt"] = {"bytes": 7}
    (path / "manifest.json").write_text(json.dumps(document))


def manifest_is_a_list(path: Path) -> None:
    (path / "manifest.json").write_text("[]")


def binary_manifest(path: Path) -> None:
    (path / "manifest.json").write_bytes(b"\xff\xfe{")


FAULTS = {
    truncate: "model.pt has 5 bytes instead of 7", flip: "model.pt differs from its SHA-256",
    lose_a_part: "rank-0.pt is missing", part_becomes_a_folder: "rank-0.pt is missing",
    break_the_manifest: "manifest.json is not valid: ", other_schema: "manifest.json is not valid: schema: ",
    no_parts: "manifest.json is not valid: parts: Field required",
    parts_without_sums: "manifest.json is not valid: parts.model.pt.sha256: Field required",
    manifest_is_a_list: "manifest.json is not valid: ", binary_manifest: "manifest.json is not valid: ",
}  # fmt: skip


# list


def test_the_newest_run_is_listed_newest_checkpoint_first(call: Call, run_dir: Path) -> None:
    save(run_dir.with_name("digits-20251120T100000Z-0a1b2c3d"), 99)
    done = call("list")
    assert done.exit_code == 0
    where, header, newest, older = done.stdout.splitlines()
    assert where == str(run_dir)
    assert header.split() == ["STEP", "EPOCH", "SAVED", "SIZE", "RANKS", "RESTART", "STATE", "NOTE"]
    assert newest.split()[:2] == ["20", "2"]
    assert newest.endswith("complete  a resume takes it, if intact")
    assert older.endswith("complete  kept for good")


def test_json_holds_what_the_manifest_says(call: Call, run_dir: Path) -> None:
    document = json.loads(call("list", "--json").stdout)
    assert (document["schema"], document["run_dir"]) == ("slurmgpu.checkpoints/1", str(run_dir))
    assert document["checkpoints"][0] == {
        "task": None, "step": 20, "state": "complete", "problem": None, "resume": True, "kept_for_good": False, "best": None,
        "end_of_training": False, "epoch": 2, "samples": 640, "time": 1.5e9 + 20, "bytes": 14, "parts": 2, "world_size": 1,
        "restart": 0, "torch": "2.13.0", "path": "checkpoints/step-20",
    }  # fmt: skip


def test_what_a_loop_of_ones_own_does_not_say_is_unknown(call: Call, tmp_path: Path) -> None:
    save(tmp_path / "run", 7)
    (row,) = listed(call, "run")
    assert (row["step"], row["epoch"], row["kept_for_good"], row["state"]) == (7, None, False, "complete")


def test_a_save_without_manifest_is_torn_and_no_resume_takes_it(call: Call, run_dir: Path) -> None:
    (run_dir / "checkpoints" / "step-20" / "manifest.json").unlink()
    torn, older = listed(call)
    assert (torn["state"], torn["resume"], older["resume"]) == ("torn", False, True)
    assert "no manifest" in torn["problem"]


def test_what_sizes_show_is_damage_without_reading_through(call: Call, run_dir: Path) -> None:
    truncate(run_dir / "checkpoints" / "step-20")
    newest, older = listed(call)
    assert (newest["state"], newest["problem"]) == ("damaged", "model.pt has 5 bytes instead of 7")
    assert older["resume"]


def test_what_a_resume_set_aside_is_shown(call: Call, run_dir: Path) -> None:
    writing.set_aside(run_dir / "checkpoints" / "step-20", "damaged")
    aside, older = listed(call)
    assert (aside["step"], aside["state"], aside["resume"]) == (20, "set aside", False)
    assert older["resume"]


def test_the_last_checkpoint_of_a_training_says_so(call: Call, tmp_path: Path) -> None:
    save(tmp_path / "run", 30, complete=True)
    assert "a resume takes it, if intact, end of the training" in call("list", "run").stdout


BEST = {"metric": "val/accuracy", "mode": "max", "step": 30, "value": 0.875}


def test_the_best_checkpoint_is_marked_as_the_newest_one_knows_it(call: Call, tmp_path: Path) -> None:
    save(tmp_path / "run", 20, best={**BEST, "step": 20})
    save(tmp_path / "run", 30, best=BEST)
    save(tmp_path / "run", 40, best=BEST)
    assert [line.endswith("best: val/accuracy 0.875") for line in call("list", "run").stdout.splitlines()[2:]] == [
        False, True, False,
    ]  # fmt: skip
    assert [row["best"] for row in listed(call, "run")] == [
        None,
        {"metric": "val/accuracy", "value": 0.875},
        None,
    ]


@pytest.mark.parametrize(
    ("patience", "metric", "done"),
    [(3, "loss", True), (2, "loss", True), (4, "loss", False), (3, "cost", False)],
)
def test_the_patience_of_now_ends_a_training(tmp_path: Path, patience: int, metric: str, done: bool) -> None:
    told = {"metric": "loss", "mode": "min", "step": 10, "value": 0.5, "since": 3}
    save(tmp_path, 20, complete=True, samples=640, dataset_samples=1000, early_stop=told)
    stop = {"metric": metric, "mode": "min", "patience": patience}
    settings = {"epochs": 9, "batch_size": 32, "early_stop": stop}
    assert reading.is_done(reading.checkpoints(tmp_path / "checkpoints")[0], settings) == done


def test_each_task_of_an_array_has_its_own(call: Call, tmp_path: Path) -> None:
    array = tmp_path / "runs" / "sweep-20251121T100000Z-0a1b2c3d"
    for task in (0, 2, 10):
        save(array / str(task), 5 + task)
    rows = listed(call, "sweep")
    assert [(row["task"], row["step"], row["resume"]) for row in rows] == [
        ("0", 5, True),
        ("2", 7, True),
        ("10", 15, True),
    ]
    assert [row["step"] for row in listed(call, str(array / "2"))] == [7]
    assert call("list").stdout.splitlines()[1].split()[0] == "TASK"


def test_a_run_is_found_by_its_folder_its_name_or_its_checkpoints(call: Call, run_dir: Path) -> None:
    for word in (str(run_dir), str(run_dir / "checkpoints"), run_dir.name, "digits"):
        assert [row["step"] for row in listed(call, word)] == [20, 10]


def test_a_job_id_is_found_without_slurm_by_the_record_of_its_run(call: Call, run_dir: Path) -> None:
    record = {
        "schema": "slurmgpu.run/1", "name": "a name of its own", "token": "0a1b2c3d", "job_id": 112,
        "state": "submitted", "submitted_at": "2025-11-21T10:00:00Z", "argv": ["sbatch"], "script_sha256": "",
        "run_dir": str(run_dir), "slurmgpu_version": "0.1.0",
    }  # fmt: skip
    (run_dir / "run.json").write_text(json.dumps(record))
    save(run_dir / "3", 4)
    assert [row["step"] for row in listed(call, "112_3")] == [4]
    assert [row["step"] for row in listed(call, "a name of its own")] == [20, 10, 4]


def test_a_run_without_checkpoints_says_so(call: Call, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    done = call("list", "run")
    assert (done.exit_code, done.stdout, done.stderr) == (
        0,
        "",
        "No checkpoints of slurmgpu's (step-N folders) in run/checkpoints.\n",
    )


def test_what_a_start_without_resume_set_aside_is_mentioned(call: Call, run_dir: Path) -> None:
    (run_dir / "earlier-checkpoints-1").mkdir()
    assert str(run_dir / "earlier-checkpoints-1") in call("list").stderr


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("999", "999: there is no run of yours of that name or id in "),
        ("nobody", "nobody: there is no run of yours of that name or id in "),
        ("digist", "digist: there is no run of yours of that name or id in "),
        ("no/where", "no/where: there is no such directory"),
        ("empty", "empty is not a run directory: it has none of run.json, "),
    ],
)
def test_a_word_that_is_no_run_says_what_it_took(
    call: Call, run_dir: Path, tmp_path: Path, word: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SlurmGpuError) as error:
        _raising(call("list", word))
    assert error.value.message.startswith(message)
    assert error.value.hint.startswith("did you mean 'digits'? " if word == "digist" else "give ")


def test_where_nothing_ran_there_is_no_newest_run(call: Call) -> None:
    with pytest.raises(SlurmGpuError, match="there are no runs in "):
        _raising(call("list"))


def _raising(done: Result) -> None:
    assert done.exception is not None, done.output
    raise done.exception


@pytest.mark.parametrize("time", [1e300, float("nan"), -1e300])
def test_a_time_that_is_none_is_unknown(call: Call, tmp_path: Path, time: float) -> None:
    save(tmp_path / "run", 5, time=time)
    assert call("list", "run").stdout.splitlines()[-1].split()[2] == "unknown"


def test_a_manifest_cannot_steer_the_terminal(call: Call, run_dir: Path) -> None:
    manifest = run_dir / "checkpoints" / "step-20" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("model.pt", "\\u001b[2Jmodel.pt"))
    for words in (["list"], ["verify"]):
        assert "\\x1b[2Jmodel.pt is missing" in call(*words).stdout


# verify


def test_an_intact_run_is_verified(call: Call, run_dir: Path) -> None:
    done = call("verify")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "checkpoints/step-20: intact, 2 files, 14 B",
        "checkpoints/step-10: intact, 2 files, 14 B",
        "a resume takes step-20",
    ]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_damage_is_named_and_ends_with_1_and_a_resume_takes_what_verify_says(
    call: Call, run_dir: Path, fault: Callable[[Path], None]
) -> None:
    fault(run_dir / "checkpoints" / "step-20")
    done = call("verify")
    assert done.exit_code == 1
    newest, older, resume = done.stdout.splitlines()
    assert newest.startswith(f"checkpoints/step-20: damaged, {FAULTS[fault]}")
    assert (older.split(": ")[1], resume) == ("intact, 2 files, 14 B", "a resume takes step-10")
    found, _ = writing.newest_intact(run_dir / "checkpoints")
    assert found.path.name == "step-10"


def test_only_the_step_asked_for_decides_the_exit_code(call: Call, run_dir: Path) -> None:
    flip(run_dir / "checkpoints" / "step-20")
    done = call("verify", "--step", "10")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "a resume takes step-10")
    assert call("verify", "--step", "20").exit_code == 1


def test_a_torn_save_is_no_damage_unless_it_is_asked_for(call: Call, run_dir: Path) -> None:
    (run_dir / "checkpoints" / "step-20" / "manifest.json").unlink()
    done = call("verify")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "a resume takes step-10")
    assert "step-20: torn, no manifest" in done.stdout
    assert call("verify", "--step", "20").exit_code == 1


def test_when_none_is_intact_a_resume_would_fail(call: Call, run_dir: Path) -> None:
    for step in (10, 20):
        flip(run_dir / "checkpoints" / f"step-{step}")
    done = call("verify")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1].startswith("none is intact: a resume ends with an error")


def test_a_step_that_is_not_there_names_those_that_are(call: Call, run_dir: Path) -> None:
    with pytest.raises(SlurmGpuError) as error:
        _raising(call("verify", "--step", "15"))
    assert (error.value.exit_code, error.value.hint) == (2, "there are those of steps 20, 10")


def test_nothing_to_verify_is_no_success(call: Call, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert call("verify", "run").exit_code == 1


def test_pruning_meanwhile_is_no_damage(call: Call, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = reading.require_content

    def prune_first(path: Path, name: str, entry: Mapping[str, Any]) -> None:
        if path.name == "step-10":
            shutil.rmtree(path, ignore_errors=True)
        before(path, name, entry)

    monkeypatch.setattr(reading, "require_content", prune_first)
    done = call("verify")
    assert done.exit_code == 0
    assert "step-10" not in done.stdout


def test_those_that_came_since_are_read(call: Call, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = reading.require_content

    def move_on(path: Path, name: str, entry: Mapping[str, Any]) -> None:
        step = int(path.name.removeprefix("step-"))
        if step < 40 and path.exists():
            save(run_dir, step + 20)
            shutil.rmtree(path)
        before(path, name, entry)

    monkeypatch.setattr(reading, "require_content", move_on)
    done = call("verify")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "a resume takes step-40"


def test_a_save_that_ends_while_it_is_read_is_no_damage(call: Call, run_dir: Path) -> None:
    (found,) = [one for one in reading.checkpoints(run_dir / "checkpoints") if one.step == 20]
    flip(found.path)
    assert reading.damage(found) == ["model.pt differs from its SHA-256"]
    shutil.rmtree(found.path)
    save(run_dir, 20, b"of a later start")
    assert reading.damage(found) is None


def test_what_the_file_server_does_not_show_is_listed_and_fails_the_verification(
    call: Call, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``exists`` and ``is_dir`` as Python 3.14 has them: no to any error."""

    def hiding(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(path: Path, *arguments: Any, **named: Any) -> Any:
            if "step-20" in Path(path).parts:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            return real(path, *arguments, **named)

        return act

    def lenient(real: Callable[[Path], bool]) -> Callable[[Path], bool]:
        def ask(path: Path) -> bool:
            try:
                return real(path)
            except OSError:
                return False

        return ask

    for name in ("stat", "read_bytes", "open"):
        monkeypatch.setattr(Path, name, hiding(getattr(Path, name)))
    monkeypatch.setattr(os, "open", hiding(os.open))
    for name in ("exists", "is_dir"):
        monkeypatch.setattr(Path, name, lenient(getattr(Path, name)))
    newest, older = listed(call)
    assert (newest["step"], newest["state"], older["state"]) == (20, "damaged", "complete")
    assert newest["problem"] == f"manifest.json cannot be read: {os.strerror(errno.ESTALE)}"
    done = call("verify")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == "a resume takes step-10"


def test_a_large_part_is_not_read_into_memory(call: Call, tmp_path: Path) -> None:
    import tracemalloc

    content = b"0" * (24 << 20)
    path = save(tmp_path / "run", 1, content)
    (found,) = reading.checkpoints(path.parent)
    tracemalloc.start()
    try:
        assert reading.damage(found) == []
        assert tracemalloc.get_traced_memory()[1] < len(content) // 2
    finally:
        tracemalloc.stop()


# export


class Net(nn.Sequential):
    """A model with a part that is called module, as DDP calls its own."""

    def __init__(self) -> None:
        super().__init__(OrderedDict(module=nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))))


def save_parts(run_dir: Path, step: int, **parts: Any) -> Path:
    """A checkpoint with these parts, by name of the file without its ending."""
    path = run_dir / "checkpoints" / f"step-{step}"
    entries = {f"{name}.pt": writing.write_part(path, f"{name}.pt", part) for name, part in parts.items()}
    writing.commit(path.parent, step, entries, {"samples": 32 * step, "world_size": 1})
    return path


def test_the_exported_weights_fit_the_plain_model(call: Call, tmp_path: Path) -> None:
    model = Net()
    save_parts(tmp_path / "run", 7, model=model.state_dict(), training={"optimizer": {}})
    done = call("export", "run", "-o", "weights.pt")
    assert done.exit_code == 0, done.exception
    assert "model of step 7 in run, 4 tensors, 21 values" in done.stderr
    fresh = Net()
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    for name, value in model.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name])
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["weights.pt"]


def test_the_weights_are_exported_as_a_folder_like_another(call: Call, tmp_path: Path) -> None:
    """The names, dtypes and configuration of the folder that the training began with; a folder that is there is not touched."""
    came = tmp_path / "came"
    came.mkdir()
    torch.save({"net.module.0.weight": torch.ones(4, 3).half()}, came / "pytorch_model.bin")
    (came / "config.json").write_text("{}")
    model = Net()
    save_parts(tmp_path / "run", 7, model=model.state_dict())
    (tmp_path / "run" / "train.json").write_text('{"pretrained_rename": {"net.": ""}}')
    done = call("export", "run", "-o", "back", "--like", "came")
    assert done.exit_code == 0, done.exception
    assert "wrote back: model of step 7 in run, 4 tensors, 21 values" in done.stderr
    assert "3 in the checkpoint alone, added: module.0.bias, module.1.weight, module.1.bias" in done.stderr
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["config.json", "model.safetensors"]
    assert torch.equal(
        read_state(tmp_path / "back")["net.module.0.weight"], model.state_dict()["module.0.weight"].half()
    )
    again = refused(call, "run", "-o", "back", "--like", "came", "--force")
    assert (again.message, again.hint) == (
        "--output back: is there already",
        "give a folder that is not there yet",
    )
    assert refused(call, "run", "-o", "new", "--like", "gone").message == "--like gone: is no folder"


def test_python_files_in_the_current_folder_are_not_run(call: Call, tmp_path: Path) -> None:
    """The run directory of somebody else, and the folder where one stands, may hold anything."""
    save_parts(tmp_path / "run", 7, model={"weight": torch.tensor([7.0])})
    bait = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    for name in (
        "torch",
        "json",
        "contextlib",
        "types",
        "sitecustomize",
        "usercustomize",
        "slurmgpu_training",
    ):
        (tmp_path / f"{name}.py").write_text(bait)
        (tmp_path / "run" / f"{name}.py").write_text(bait)
    done = call("export", "run", "-o", "weights.pt")
    assert done.exit_code == 0, done.exception
    assert not (tmp_path / "ran").exists()


def test_the_newest_intact_checkpoint_is_exported_and_damage_is_said(call: Call, tmp_path: Path) -> None:
    save_parts(tmp_path / "run", 7, model={"weight": torch.tensor([7.0])})
    flip(save_parts(tmp_path / "run", 8, model={"weight": torch.tensor([8.0])}))
    done = call("export", "run", "-o", "weights.pt")
    assert done.exit_code == 0, done.exception
    assert "step-8 is damaged: model.pt has 7 bytes instead of" in done.stderr
    assert torch.load(tmp_path / "weights.pt", weights_only=True) == {"weight": torch.tensor([7.0])}


def test_the_best_checkpoint_is_exported(call: Call, tmp_path: Path) -> None:
    for step in (20, 30, 40):
        path = save_parts(tmp_path / "run", step, model={"weight": torch.tensor([float(step)])})
        parts = json.loads((path / "manifest.json").read_text())["parts"]
        facts = {"samples": 32 * step, "world_size": 1, "best": BEST}
        writing.commit(path.parent, step, parts, facts)
    assert "--best and --step" in str(refused(call, "run", "--best", "--step", "40", "-o", "weights.pt"))
    assert call("export", "run", "--best", "-o", "weights.pt").exit_code == 0
    assert torch.load(tmp_path / "weights.pt", weights_only=True) == {"weight": torch.tensor([30.0])}
    truncate(tmp_path / "run" / "checkpoints" / "step-30")
    error = refused(call, "run", "--best", "-o", "other.pt")
    assert "the best checkpoint in run, step-30 (val/accuracy 0.875), is damaged or gone" in str(error)


def test_without_a_best_checkpoint_the_setting_is_named(call: Call, run_dir: Path) -> None:
    error = refused(call, "--best", "-o", "weights.pt")
    assert "no checkpoint in" in str(error)
    assert "train.best" in (error.hint or "")


def refused(call: Call, *words: str) -> SlurmGpuError:
    with pytest.raises(SlurmGpuError) as error:
        _raising(call("export", *words))
    return error.value


def test_a_damaged_checkpoint_is_not_exported(call: Call, run_dir: Path, tmp_path: Path) -> None:
    flip(run_dir / "checkpoints" / "step-20")
    error = refused(call, "--step", "20", "-o", "weights.pt")
    assert error.message == f"there is no intact checkpoint of step 20 in {run_dir}"
    assert not (tmp_path / "weights.pt").exists()


def test_a_file_that_is_there_is_replaced_only_by_force(call: Call, tmp_path: Path) -> None:
    save_parts(tmp_path / "run", 7, model={"weight": torch.tensor([7.0])})
    (tmp_path / "weights.pt").write_text("precious")
    error = refused(call, "run", "-o", "weights.pt")
    assert (error.exit_code, error.hint) == (2, "--force replaces it")
    assert (tmp_path / "weights.pt").read_text() == "precious"
    assert call("export", "run", "-o", "weights.pt", "--force").exit_code == 0
    assert list(torch.load(tmp_path / "weights.pt", weights_only=True)) == ["weight"]


def test_force_replaces_no_pipe_and_no_device(call: Call, tmp_path: Path, run_dir: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(call, "-o", "pipe", "--force").message == "--output pipe: is not a plain file"
    assert (tmp_path / "pipe").is_fifo()


def test_nothing_is_exported_into_the_checkpoints(call: Call, run_dir: Path) -> None:
    model = run_dir / "checkpoints" / "step-20" / "model.pt"
    assert "lies among the checkpoints" in refused(call, "-o", str(model), "--force").message
    assert model.read_bytes() == b"weights"


def test_a_folder_that_is_missing_is_named(call: Call, run_dir: Path) -> None:
    assert refused(call, "-o", "no/weights.pt").message == "--output no/weights.pt: there is no folder no"


def test_a_task_of_an_array_must_be_named(call: Call, tmp_path: Path) -> None:
    array = tmp_path / "runs" / "sweep-20251121T100000Z-0a1b2c3d"
    for task in (0, 1):
        save(array / str(task), 5)
    error = refused(call, "-o", "weights.pt")
    assert error.message == f"{array} is an array, with tasks 0, 1"
    assert error.hint == f"name one of them: {array / '1'}"


def test_without_torch_it_says_where_to_get_it(call: Call, run_dir: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without what is installed
    bare.chmod(0o755)
    error = refused(call, "-o", "weights.pt", "--python", str(bare))
    assert error.message.endswith(" has no torch")
    assert "--python PATH" in (error.hint or "")
    assert (
        refused(call, "-o", "w.pt", "--python", "./no").message == "--python ./no: there is no such program"
    )


def test_what_a_loop_of_ones_own_saved_is_found_by_its_name(tmp_path: Path) -> None:
    state = {"module._orig_mod.weight": torch.ones(2), "module._orig_mod.bias": torch.ones(1)}
    path = save_parts(tmp_path, 7, state={"net": state, "optimizer": {"state": {0: {"exp": torch.ones(3)}}}})
    assert export(path, tmp_path / "weights.pt", "net")["values"] == 3
    assert list(torch.load(tmp_path / "weights.pt", weights_only=True)) == ["weight", "bias"]
    assert export(path, tmp_path / "optimizer.pt", "optimizer")["tensors"] == 1
    with pytest.raises(TrainingError, match="step-7 has no part 'model'; it has net, optimizer"):
        export(path, tmp_path / "weights.pt")


def test_a_part_that_the_training_did_not_have_is_named(tmp_path: Path) -> None:
    path = save_parts(tmp_path, 7, model={}, training={"optimizer": {}, "schedule": None})
    with pytest.raises(TrainingError, match="step-7 has nothing under 'schedule'"):
        export(path, tmp_path / "x.pt", "schedule")
    with pytest.raises(TrainingError, match="no part 'ema'; it has model, raw, optimizer, schedule"):
        export(path, tmp_path / "x.pt", "ema")


@pytest.mark.parametrize(
    ("names", "wrapped", "plain"),
    [
        (["module.a", "module.b"], True, ["a", "b"]), (["module.a", "module.b"], False, ["module.a", "module.b"]),
        (["module.a", "b"], True, ["module.a", "b"]), (["_orig_mod.a"], False, ["a"]),
        (["_orig_mod.module.a"], True, ["a"]), (["layers.0._orig_mod.a"], False, ["layers.0.a"]), ([], True, []),
    ],
)  # fmt: skip
def test_names_are_those_of_the_plain_model(names: list[str], wrapped: bool, plain: list[str]) -> None:
    assert list(plain_names(dict.fromkeys(names), wrapped=wrapped)) == plain


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(TrainingError, match="one name"):
        plain_names({"a": 1, "_orig_mod.a": 2}, wrapped=False)


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_parts(tmp_path / "run", 7, model={"weight": torch.ones(1)})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        export(path, tmp_path / "weights.pt")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_list_and_verify_need_no_torch(tmp_path: Path, run_dir: Path) -> None:
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    for words in (["list"], ["verify"]):
        done = subprocess.run(
            [sys.executable, "-m", "slurmgpu", "checkpoint", *words, str(run_dir)],
            env={**os.environ, "PYTHONPATH": f"{stub}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
