"""Weights to begin with: which files are read, what a file may not do, what of it fits, and what ranks and resumes have."""

from __future__ import annotations

import json
import struct
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from slurmgpu.training.errors import TrainingError
from slurmgpu.training.export import export, export_like
from slurmgpu.training.saving import checkpoint, pieces
from slurmgpu.training.saving.snapshot import Snapshot
from slurmgpu.training.weights.loading import _renamed, load_into
from slurmgpu.training.weights.reading import read_state

from .conftest import RunFolder, new_run, same

needs_library = pytest.mark.skipif(
    find_spec("safetensors") is None, reason="the package safetensors is not installed"
)


def pack(path: Path, state: dict[str, torch.Tensor]) -> Path:
    """A safetensors file, written by the library."""
    library = pytest.importorskip("safetensors.torch", reason="the package safetensors is not installed")
    library.save_file(state, path, metadata={"format": "pt"})
    return path


def packed(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def network(seed: int = 1) -> nn.Sequential:
    """A network as ``small.Line`` has it, with other weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def test_what_is_done_with_the_weights_does_not_reach_the_file(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.safetensors", {"a": torch.ones(4)})
    read_state(path)["a"].zero_()
    assert read_state(path)["a"].tolist() == [1, 1, 1, 1]


@needs_library
@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b"{", None), (b'{"a": 1}', None), (b"{}  ", 1 << 60), (b"{}  ", 5), (b'{"a":' * 100_000, None),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}}', None),
        (b'{"a": {"dtype": "F31", "shape": [2], "data_offsets": [0, 8]}}', None),
    ],
)  # fmt: skip
def test_what_is_no_header_is_refused(tmp_path: Path, header: bytes, length: int | None) -> None:
    with pytest.raises(TrainingError, match=r"x\.safetensors is not a whole safetensors file: "):
        read_state(packed(tmp_path / "x.safetensors", header, bytes(8), length=length))


@pytest.mark.parametrize("cut", [1, 9, 40, 200])
def test_a_file_that_is_cut_or_longer_than_it_says_is_refused(tmp_path: Path, cut: int) -> None:
    path = pack(tmp_path / "x.safetensors", {"a": torch.ones(40)})
    whole = path.read_bytes()
    for changed in (whole[:-cut], whole + bytes(cut)):
        path.write_bytes(changed)
        with pytest.raises(TrainingError, match="is not a whole safetensors file"):
            read_state(path)


def test_without_the_library_reading_and_writing_are_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    path = packed(tmp_path / "x.safetensors", b"{}")
    with pytest.raises(
        TrainingError, match=r"reading x\.safetensors takes the package .*pip install safetensors there"
    ):
        read_state(path)
    with pytest.raises(
        TrainingError, match=r"writing a safetensors file takes the package .*use a file of torch"
    ):
        export(generation(tmp_path / "run", network(), cut=False), tmp_path / "out.safetensors")
    assert not list(tmp_path.glob("*out*"))


@needs_library
def test_a_safetensors_file_is_as_open_to_others_as_any_other_file(tmp_path: Path) -> None:
    export(generation(tmp_path / "run", network(), cut=False), tmp_path / "out.safetensors")
    (tmp_path / "other").touch()
    assert (tmp_path / "out.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_disk_that_is_full_under_the_library_is_said_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("safetensors.torch", reason="the package safetensors is not installed")

    def full(*_: object, **__: object) -> None:
        raise pytest.importorskip("safetensors").SafetensorError(
            "I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr(library, "save_file", full)
    with pytest.raises(OSError, match="No space left on device"):
        export(generation(tmp_path / "run", network(), cut=False), tmp_path / "out.safetensors")
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("inside", [None, "state_dict", "model", "model_state_dict"])
def test_files_of_torch_are_read_whatever_holds_the_model(tmp_path: Path, inside: str | None) -> None:
    """With DDP's names, and beside an optimizer's state; also in the older format."""
    state = network().state_dict()
    wrapped = {f"module._orig_mod.{name}": value for name, value in state.items()}
    for name, zipped in (("x.pt", True), ("x.pth", False)):
        saved: Any = wrapped if inside is None else {"epoch": 3, inside: wrapped, "optimizer": {"state": {}}}
        torch.save(saved, tmp_path / name, _use_new_zipfile_serialization=zipped)
        assert same(read_state(tmp_path / name), dict(state))


class Runs:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("/tmp/nobody-reads-this"),))


def test_code_in_a_file_of_torch_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"model": Runs()}, tmp_path / "x.pt")
    monkeypatch.setattr(Path, "touch", lambda _path: pytest.fail("the file's code was run"))
    with pytest.raises(TrainingError, match="without running code that is in it"):
        read_state(tmp_path / "x.pt")


def test_an_index_is_read_with_the_files_that_it_names_and_no_others(tmp_path: Path) -> None:
    state = dict(network().state_dict())
    names = list(state)
    pack(tmp_path / "one.safetensors", {name: state[name] for name in names[:2]})
    pack(tmp_path / "two.safetensors", {name: state[name] for name in names[2:]})
    places = {name: "one.safetensors" if name in names[:2] else "two.safetensors" for name in names}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert same(read_state(index), state)
    assert same(read_state(tmp_path), state), "a folder as people get it"
    for file, reason in (("../one.safetensors", "beside the index"), ("one.safetensors", "does not have")):
        index.write_text(json.dumps({"weight_map": {**places, names[3]: file}}))
        with pytest.raises(TrainingError, match=reason):
            read_state(index)


@pytest.mark.parametrize("content", [{"epoch": 3}, [1, 2], torch.ones(2)])
def test_a_file_without_weights_says_what_it_holds(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(TrainingError, match="holds no state_dict, by itself or under state_dict"):
        read_state(tmp_path / "x.pt")


def test_a_file_or_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"cannot read .*weights\.pt \(work folder .*No such file"):
        read_state(tmp_path / "weights.pt")
    with pytest.raises(TrainingError, match=r"has none of model\.pt, model\.safetensors"):
        read_state(tmp_path)


class Small(nn.Module):
    """What a language model is: an embedding that is the head's weight as well, and something between."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.mlp, self.lm_head = nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 6, bias=False)
        self.lm_head.weight = self.wte.weight


def downloaded(folder: Path) -> dict[str, torch.Tensor]:
    """A folder as it comes from Hugging Face: two files with an index, bfloat16, one name of what is tied, and other files."""
    folder.mkdir()
    torch.manual_seed(3)
    state = {
        f"transformer.{name}": value.bfloat16()
        for name, value in Small().state_dict().items()
        if name != "lm_head.weight"
    }
    names = list(state)
    places = {names[0]: "model-00001-of-00002.safetensors"}
    places.update(dict.fromkeys(names[1:], "model-00002-of-00002.safetensors"))
    for file in set(places.values()):
        pack(folder / file, {name: state[name] for name in names if places[name] == file})
    index = {"metadata": {"total_size": 88}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text('{"torch_dtype": "bfloat16", "tie_word_embeddings": true}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"of another time")
    return state


def generation(run: Path, model: nn.Module, *, cut: bool) -> Path:
    """A checkpoint of the model, whole or as two ranks that have each a half of all weights write it."""
    folder = run / "checkpoints" / "step-1"
    folder.mkdir(parents=True)
    rename = {"transformer.": ""}
    (run / "train.json").write_text(json.dumps({"pretrained_rename": rename}))
    state: dict[str, Any] = model.state_dict()
    if cut:
        about = {"mesh": [2], "ranks": [0, 1], "placements": [["shard", 0]], "dtype": "float32"}
        notes = {
            name: {pieces._MARK: name, **about, "shape": list(value.shape)} for name, value in state.items()
        }
        for rank in (0, 1):
            regions = {name: pieces.own_region(note, rank)[0] for name, note in notes.items()}
            snapshot = Snapshot()
            for name, region in regions.items():
                snapshot.pieces[name] = snapshot._copy(state[name][pieces._slices(region)])
            torch.save(snapshot.pieces, folder / f"shard-{rank}.pt")
        state = notes
    torch.save(state, folder / "model.pt")
    return folder


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "sharded"])
def test_a_folder_of_hugging_face_s_is_read_and_written_back_as_it_was(tmp_path: Path, cut: bool) -> None:
    """Names, dtypes, values, which weights are tied, which file has which, and the files beside them."""
    came = downloaded(tmp_path / "came")
    model = Small()
    assert load_into(model, _renamed(read_state(tmp_path / "came"), {"transformer.": ""})).whole
    said = export_like(
        generation(tmp_path / "run", model, cut=cut), tmp_path / "back", "model", tmp_path / "came"
    )
    assert (said["tensors"], said["files"], said["added"], said["left_out"]) == (3, 2, [], [])
    back = read_state(tmp_path / "back")
    assert {name: value.dtype for name, value in back.items()} == dict.fromkeys(came, torch.bfloat16)
    assert same(back, came)
    names = {path.name for path in (tmp_path / "back").iterdir()}
    assert names == {path.name for path in (tmp_path / "came").iterdir()} - {"pytorch_model.bin"}
    index = "model.safetensors.index.json"
    indexes = [json.loads((tmp_path / each / index).read_text()) for each in ("came", "back")]
    assert indexes[0] == indexes[1]
    assert (tmp_path / "back" / "config.json").read_bytes() == (
        tmp_path / "came" / "config.json"
    ).read_bytes()


def test_weights_that_one_side_alone_has_are_said_when_a_folder_is_written(tmp_path: Path) -> None:
    """A head of its own instead of a tied one, and values that came beside the model's."""
    came = downloaded(tmp_path / "came")
    pack(tmp_path / "came" / "model-00002-of-00002.safetensors", {**came, "masked.bias": torch.ones(2)})
    index = tmp_path / "came" / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["masked.bias"] = "model-00002-of-00002.safetensors"
    index.write_text(json.dumps(document))
    model = Small()
    model.lm_head = nn.Linear(4, 6, bias=False)
    said = export_like(
        generation(tmp_path / "run", model, cut=False), tmp_path / "back", "model", tmp_path / "came"
    )
    assert (said["added"], said["left_out"]) == (["lm_head.weight"], ["masked.bias"])
    assert torch.equal(read_state(tmp_path / "back")["lm_head.weight"], model.lm_head.weight)


def test_a_folder_that_cannot_be_followed_leaves_nothing_behind(tmp_path: Path) -> None:
    downloaded(tmp_path / "came")
    folder = generation(tmp_path / "run", network(), cut=False)
    with pytest.raises(
        TrainingError, match=r"no weight of the checkpoint .* it has 0\.weight, .*transformer\.wte"
    ):
        export_like(folder, tmp_path / "back", "model", tmp_path / "came")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        TrainingError, match=r"--like: the folder .*empty has none of model\.safetensors\.index"
    ):
        export_like(folder, tmp_path / "back", "model", tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["came", "empty", "run"]


def test_the_library_of_the_models_loads_what_was_written(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=6)
    torch.manual_seed(5)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "came", max_shard_size="3KB")
    assert (tmp_path / "came" / "model.safetensors.index.json").exists()
    state = {f"net.{name}": value for name, value in model.state_dict().items()}
    folder = tmp_path / "run" / "checkpoints" / "step-1"
    folder.mkdir(parents=True)
    (tmp_path / "run" / "train.json").write_text('{"pretrained_rename": {"": "net."}}')
    torch.save(state, folder / "model.pt")
    said = export_like(folder, tmp_path / "back", "model", tmp_path / "came")
    assert (said["added"], said["left_out"]) == ([], [])
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert same(back.state_dict(), model.state_dict())
    assert back.lm_head.weight is back.transformer.wte.weight


def write(run: RunFolder, path: Path, task: str = "Line", **settings: Any) -> None:
    run.write(task, batch_size=20, log_every=1, pretrained=str(path), **settings)


def test_a_training_begins_with_the_weights_as_if_its_model_had_had_them(tmp_path: Path) -> None:
    """From a checkpoint of another training; the first loss is that of its weights, and the steps go on from there."""
    first, second, whole = (new_run(tmp_path, name) for name in ("first", "second", "whole"))
    first.write("Line", batch_size=20, log_every=1)
    first.here()
    checkpoint = first.path / "checkpoints" / first.checkpoints()[0]
    write(second, checkpoint, lr=1e-12)
    second.here()
    found, expected = second.parameters(), first.parameters()
    assert all(torch.allclose(found[name], expected[name], atol=1e-6) for name in expected)
    write(whole, checkpoint, epochs=2, max_steps=3)
    whole.here()
    write(whole, tmp_path / "gone.pt", epochs=2)
    whole.here()  # a resume does not read it
    assert len(whole.losses()) == 10
    undisturbed = new_run(tmp_path, "undisturbed")
    write(undisturbed, checkpoint, epochs=2)
    undisturbed.here()
    assert undisturbed.losses() == whole.losses()
    assert same(undisturbed.parameters(), whole.parameters())
    (checkpoint / "model.pt").write_bytes((checkpoint / "model.pt").read_bytes()[:-1] + b"\1")
    write(second, checkpoint, resume=False)
    with pytest.raises(TrainingError, match="differs from its SHA-256"):
        second.here()


def test_settings_that_an_earlier_version_did_not_know_are_not_said_to_differ(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write("Line", batch_size=20)
    run.here()
    found, _ = checkpoint.newest_intact(run.path / "checkpoints")
    facts = dict(found.manifest)
    facts["settings"] = {k: v for k, v in facts["settings"].items() if not k.startswith("pretrained")}
    checkpoint.commit(run.path / "checkpoints", facts.pop("step"), facts.pop("parts"), facts)
    run.write("Line", batch_size=20, epochs=2, lr=0.002)
    run.here()
    assert "changed since step-5: lr 0.001 -> 0.002. Training" in capsys.readouterr().out


def partial(tmp_path: Path) -> Path:
    """The first layer under another name, a head of another shape, and something else."""
    state = network().state_dict()
    named = {f"encoder.{name}": value for name, value in state.items() if name.startswith("0.")}
    return pack(tmp_path / "x.safetensors", {**named, "2.weight": torch.ones(5, 8), "old": torch.ones(1)})


def test_what_does_not_fit_is_said_on_one_screen_and_refused_unless_that_is_asked_for(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = partial(tmp_path)
    write(run, path, pretrained_rename={"encoder.": ""})
    with pytest.raises(TrainingError) as refused:
        run.here()
    for said in (
        "does not fit the model: 2 weights of the model would fit",
        "1 of another shape or kind, left as they were: 2.weight (float32 [5, 8], and the model float32 [1, 8])",
        "1 in the model alone, left as they were: 2.bias",
        "1 in the file alone, not used: old",
        "pretrained_strict: false takes what fits",
    ):
        assert said in str(refused.value)
    write(run, path, pretrained_rename={"encoder.": ""}, pretrained_strict=False, lr=1e-12)
    run.here()
    out = capsys.readouterr().out
    assert out.count("2 weights of the model taken") == 1
    assert torch.allclose(run.parameters()["0.weight"], network()[0].weight, atol=1e-6)
    write(run, path, pretrained_strict=False, pretrained_rename={"2.": "3."}, resume=False)
    with pytest.raises(TrainingError, match=r"nothing in .* fits the model: it has .*encoder\.0\.weight"):
        run.here()


@pytest.mark.long
def test_all_ranks_begin_with_the_weights_that_rank_0_has_read(tmp_path: Path) -> None:
    one, two, broken = (new_run(tmp_path, name) for name in ("one", "two", "broken"))
    path = pack(tmp_path / "x.safetensors", dict(network().state_dict()))
    for each, accumulate in ((one, 2), (two, 1)):
        write(each, path, accumulate=accumulate)
    one.here()
    assert two.ranks(2).codes == [0, 0]
    assert same(one.parameters(), two.parameters())
    write(broken, tmp_path / "gone.pt")
    ended = broken.ranks(2)
    assert ended.codes == [1, 1]
    assert "gone.pt" in ended.err
