"""The tasks that come with slurmgpu: as large as published, learning, and clear about a wrong option."""

from __future__ import annotations

import io
import json
import shutil
import struct
import sys
import tarfile
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training import tasks
from slurmgpu.training.errors import SettingsError, TrainingError
from slurmgpu.training.formats.settings import TRAIN_SCHEMA
from slurmgpu.training.settings import Config, parse
from slurmgpu.training.task import load
from slurmgpu.training.tasks import fcn, gpt2, tokens

from .conftest import RunFolder, same


def cfg(name: str, **options: Any) -> Config:
    return Config(parse({"schema": TRAIN_SCHEMA, "task": f"slurmgpu:{name}", "config": options}))


def count(name: str, **options: Any) -> int:
    with torch.device("meta"):  # neither memory nor time
        model = load(f"slurmgpu:{name}").model(cfg(name, **options))
    return sum(parameter.numel() for parameter in model.parameters())


PUBLISHED = [
    ("gpt2", {"size": "124M"}, 124_439_808), ("gpt2", {"size": "355M"}, 354_823_168),
    ("gpt2", {"size": "774M"}, 774_030_080), ("gpt2", {"size": "1.5B"}, 1_557_611_200),
    ("resnet", {"depth": 18}, 11_689_512), ("resnet", {"depth": 34}, 21_797_672),
    ("resnet", {"depth": 50}, 25_557_032), ("resnet", {"depth": 101}, 44_549_160),
    ("resnet", {"depth": 20}, 269_722), ("resnet", {"depth": 56}, 853_018), ("resnet", {"depth": 110}, 1_727_962),
    ("alexnet", {}, 61_100_840), ("fcn", {"depth": 50}, 35_322_218), ("fcn", {"depth": 101}, 54_314_346),
    ("lstm", {"size": "medium"}, 19_780_400), ("lstm", {"size": "large"}, 66_034_000),
]  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "gpt2": {"size": "tiny", "context": 16, "samples": 512},
    "resnet": {"depth": 20, "image": 8, "classes": 4, "samples": 256},
    "lstm": {"size": "tiny", "context": 8, "samples": 512},
    "fcn": {"depth": 20, "image": 8, "classes": 3, "samples": 128},
}
# The other modules that a task's are made of.
PARTS = {
    "gpt2": ["tokens"],
    "resnet": ["images", "classification"],
    "alexnet": ["images", "classification"],
    "lstm": ["tokens"],
    "fcn": ["scenes"],
}


@pytest.mark.parametrize(("name", "options", "parameters"), PUBLISHED)
def test_a_network_has_the_published_parameters(name: str, options: dict[str, Any], parameters: int) -> None:
    assert count(name, **options) == parameters


@pytest.mark.parametrize("name", TINY)
def test_a_task_learns_from_its_made_up_data(name: str, run: RunFolder) -> None:
    run.write(f"slurmgpu:{name}", epochs=2, batch_size=32, lr=0.01, config=TINY[name])
    run.here()
    losses = [line["values"]["loss"] for line in run.metrics("eval")]
    assert losses[-1] < losses[0]
    (start,) = [line["values"] for line in run.metrics("start")]
    assert start["settings"]["task"] == f"slurmgpu:{name}"


@pytest.mark.parametrize("name", TINY)
def test_a_resumed_task_of_ours_is_the_uninterrupted_one(name: str, run: RunFolder) -> None:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 64, "checkpoint_steps": 3, "config": TINY[name]}
    run.write(f"slurmgpu:{name}", **settings)
    run.here(SLURMGPU_MAX_STEPS="5")
    run.here()
    stopped = run.parameters()
    run.write(f"slurmgpu:{name}", **settings, resume=False)
    run.here()
    assert same(run.parameters(), stopped)


@pytest.mark.parametrize("name", PARTS)
def test_every_option_of_the_table_is_read_and_all_that_is_read_is_in_it(name: str) -> None:
    source = Path(tasks.__file__).parent
    text = "".join((source / f"{each}.py").read_text() for each in (name, *PARTS[name]))
    table = json.loads((source / "options.json").read_text())
    for option in table[name]["options"]:
        assert f".{option}" in text, option
        assert table[name]["options"][option]["about"].endswith(".")


def test_an_unknown_task_is_told_those_that_there_are() -> None:
    with pytest.raises(
        SettingsError, match=r"no such task in slurmgpu; did you mean 'gpt2'\?; there are .*slurmgpu:gpt2"
    ):
        load("slurmgpu:gtp2")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sise": "tiny"}, "config.sise: slurmgpu:gpt2 has no such option; did you mean 'size'"),
        ({"size": "2B"}, "config.size is '2B'; for slurmgpu:gpt2 it must be one of tiny, 124M"),
        ({"context": 1.5}, "config.context is 1.5; for slurmgpu:gpt2 it must be a whole number of at least 2, or null"),
        ({"dropout": 1}, "config.dropout is 1; for slurmgpu:gpt2 it must be a number of at least 0 and below 1"),
        ({"data": 3}, "config.data is 3; for slurmgpu:gpt2 it must be a text"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_what_is_valid(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        tasks.options(cfg("gpt2", **options), "gpt2")
    assert said in str(caught.value)


# Language models


def test_gpt2_sees_nothing_of_what_comes_later() -> None:
    model = gpt2.Gpt2(gpt2.SIZES["tiny"]).eval()
    text = torch.randint(256, (1, 20))
    changed = text.clone()
    changed[0, 12:] = 7
    before, after = model(text), model(changed)
    assert torch.equal(before[0, :12], after[0, :12])
    assert not torch.equal(before[0, 12:], after[0, 12:])


def test_stages_of_gpt2_one_after_the_other_are_the_network_and_cannot_share_a_weight() -> None:
    task, x = gpt2.Task(), torch.arange(8)[None]
    model = gpt2.Gpt2(gpt2.SIZES["tiny"], tied=False)
    first, last = task.stages(model, 2)
    assert torch.equal(last(first(x)), model(x))
    with pytest.raises(SettingsError, match=r"pipeline of 3 stages, and config\.size has 2 layers"):
        task.stages(model, 3)
    with pytest.raises(SettingsError, match=r"config\.tied is true.*set config\.tied: false"):
        task.stages(gpt2.Gpt2(gpt2.SIZES["tiny"]), 2)


def test_gpt2_counts_six_operations_a_weight_and_token_and_those_of_attention() -> None:
    # llm.c's estimate for 124M is 0.85e9 for a token: 6 * 124e6 and attention's.
    assert gpt2.Task().flops(cfg("gpt2")) / 1024 == pytest.approx(0.8545e9, rel=0.01)


def write(path: Path, numbers: list[int], kind: str = "H", head: bytes = b"") -> Path:
    path.write_bytes(head + array(kind, numbers).tobytes())
    return path


def npy(numbers: list[int], descr: str, kind: str) -> bytes:
    about = repr({"descr": descr, "fortran_order": False, "shape": (len(numbers),)}).encode()
    about += b" " * (-(len(about) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(about)) + about + array(kind, numbers).tobytes()


NUMBERS = [0, 1, 255, 256, 40_000, 65_535]


@pytest.mark.parametrize(
    ("name", "content", "width"),
    [
        ("train.bin", array("H", NUMBERS).tobytes(), "uint16"),
        ("train.bin", array("I", [*NUMBERS, 2**31 + 5]).tobytes(), "uint32"),
        ("fineweb_train_000001.bin", struct.pack("<3i", 20240520, 1, 6).ljust(1024, b"\0")
         + array("H", NUMBERS).tobytes(), "uint16"),
        ("train.npy", npy(NUMBERS, "<u2", "H"), "uint16"),
        ("train.npy", npy(NUMBERS, "<u4", "I"), "uint16"),
        ("train.npy", npy(NUMBERS, "<i8", "q"), "uint16"),
    ],
)  # fmt: skip
def test_token_files_are_read_as_written(name: str, content: bytes, width: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    file = tokens.TokenFile(tmp_path / name, width)
    assert file.read(0, file.count).tolist()[: len(NUMBERS)] == NUMBERS
    if width == "uint32":
        assert file.read(6, 7).tolist() == [2**31 + 5]


def test_windows_cover_the_files_side_by_side_each_token_foretold_once(tmp_path: Path) -> None:
    write(tmp_path / "train_1.bin", list(range(10)))
    write(tmp_path / "train_2.bin", list(range(100, 108)))
    chosen = tasks.options(cfg("gpt2", data=str(tmp_path)), "gpt2")
    windows: Any = tokens.dataset(chosen, "train", 3, 50257)
    assert [(x.tolist(), y.tolist()) for x, y in (windows[index] for index in range(len(windows)))] == [
        ([0, 1, 2], [1, 2, 3]), ([3, 4, 5], [4, 5, 6]), ([6, 7, 8], [7, 8, 9]),
        ([100, 101, 102], [101, 102, 103]), ([103, 104, 105], [104, 105, 106]),
    ]  # fmt: skip
    assert tokens.dataset(chosen, "test", 3, 50257) is None


def test_what_is_wrong_with_token_files_is_said_before_the_first_step(tmp_path: Path) -> None:
    chosen = tasks.options(cfg("gpt2", data=str(tmp_path)), "gpt2")
    with pytest.raises(TrainingError, match=r"no \.bin or \.npy whose name has the word 'train'"):
        tokens.dataset(chosen, "train", 3, 256)
    write(tmp_path / "train.bin", [1, 2])
    with pytest.raises(TrainingError, match="2 tokens, fewer than a window of 3 and one more"):
        tokens.dataset(chosen, "train", 3, 256)
    write(tmp_path / "train.bin", [1, 2, 300, 4])
    with pytest.raises(SettingsError, match=r"vocabulary is 256, and .*train.bin has the token 300"):
        tokens.dataset(chosen, "train", 3, 256)
    (tmp_path / "train.bin").unlink()
    (tmp_path / "train.npy").write_bytes(npy([1, 2], "<f4", "f"))
    with pytest.raises(
        TrainingError, match=r"train.npy must be a .npy of one dimension and of 2, 4 or 8-byte"
    ):
        tokens.dataset(chosen, "train", 3, 256)


def test_texts_become_token_files_once_and_again_where_others_are_due(tmp_path: Path, run: RunFolder) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc" * 200)
    (tmp_path / "b.txt").write_bytes(b"xyz" * 200)
    data = tmp_path / "data"
    options = {**TINY["gpt2"], "text": str(tmp_path / "*.txt"), "data": str(data)}
    run.write("slurmgpu:gpt2", config=options)
    run.here()
    learned = array("H", (data / "train.bin").read_bytes())
    tested = array("H", (data / "test.bin").read_bytes())
    assert bytes([*learned, *tested]) == b"abc" * 200 + b"\0" + b"xyz" * 200 + b"\0"
    assert len(tested) == 120
    assert len(run.metrics("eval")) == 1
    written = (data / "train.bin").stat().st_mtime_ns
    tokens.prepare(tasks.options(cfg("gpt2", **options), "gpt2"))
    assert (data / "train.bin").stat().st_mtime_ns == written
    tokens.prepare(tasks.options(cfg("gpt2", **options, test_share=0.5), "gpt2"))
    assert (data / "test.bin").stat().st_size == 1202


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"text": "nothing/*"}, "config.text needs config.data"),
        ({"text": "nothing/*", "data": "made"}, "no file is named like 'nothing/\\*'"),
        ({"text": "*.txt", "data": "theirs"}, "token files that were not made from config.text"),
        ({"text": "*.txt", "data": "made", "tokenizer": "gpt2"}, "gpt2 needs the package tiktoken"),
    ],
)
def test_texts_that_cannot_become_token_files_are_refused(
    options: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    (tmp_path / "theirs").mkdir()
    write(tmp_path / "theirs" / "train.bin", [1, 2, 3])
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(TrainingError, match=said):
        tokens.prepare(tasks.options(cfg("gpt2", **options), "gpt2"))


# Images


@pytest.mark.parametrize(
    ("name", "options", "products"),
    [
        ("resnet", {"depth": 18}, 1.8e9),
        ("resnet", {"depth": 50}, 4.1e9),
        ("resnet", {"depth": 56}, 0.126e9),
        ("alexnet", {}, 0.71e9),
    ],
)
def test_an_image_takes_the_published_products(name: str, options: dict[str, Any], products: float) -> None:
    # Each is two operations, and the backward pass takes twice the forward's.
    assert load(f"slurmgpu:{name}").flops(cfg(name, **options)) == pytest.approx(6 * products, rel=0.01)


def test_alexnet_takes_a_step_on_made_up_images() -> None:
    task = load("slurmgpu:alexnet")
    settings = cfg("alexnet", image=64, classes=3)
    model, data = task.model(settings), task.dataset(settings)
    batch = torch.utils.data.default_collate([data[index] for index in range(4)])
    task.loss(model, batch).value.backward()
    assert all(
        parameter.grad.abs().sum() > 0 for parameter in model.parameters() if parameter.grad is not None
    )


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (20, 12)) -> Path:
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("RGB", size, colour).save(path)
    return path


COLOURS = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0)}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Six images of each colour to learn from, and two for the test."""
    for split, count in (("train", 6), ("val", 2)):
        for name, colour in COLOURS.items():
            for number in range(count):
                picture(tmp_path / "images" / split / name / f"{number}.png", colour)
    return tmp_path / "images"


@pytest.fixture
def shards(folders: Path, tmp_path: Path) -> Path:
    """The same images in two shards of .tar for each split."""
    for split in ("train", "val"):
        (tmp_path / "shards" / split).mkdir(parents=True)
        for part in range(2):
            with tarfile.open(tmp_path / "shards" / split / f"{part}.tar", "w") as shard:
                for path in sorted((folders / split).rglob("*.png"))[part::2]:
                    key = f"{path.parent.name}-{path.stem}"
                    shard.add(path, f"{key}.png")
                    label = str(list(COLOURS).index(path.parent.name)).encode()
                    about = tarfile.TarInfo(f"{key}.cls")
                    about.size = len(label)
                    shard.addfile(about, io.BytesIO(label))
    return tmp_path / "shards"


def samples(folder: Path, split: str, **options: Any) -> list[Any]:
    task, settings = load("slurmgpu:resnet"), cfg("resnet", data=str(folder), image=8, depth=20, **options)
    task.prepare(settings)
    data = task.dataset(settings) if split == "train" else task.tests(settings)[""]
    return [data[index] for index in range(len(data))]


@pytest.mark.parametrize("augment", ["none", "padded", "resized"])
def test_images_in_folders_have_their_colour_and_their_folders_number(folders: Path, augment: str) -> None:
    found = samples(folders, "train", augment=augment)
    assert sorted(number for _, number in found) == [0] * 6 + [1] * 6 + [2] * 6
    for image, number in found:
        assert image.shape == (3, 8, 8)
        assert image.dtype == torch.uint8
        # What is padded is black.
        assert image.flatten(1).amax(1).tolist() == list(list(COLOURS.values())[number])
    assert len(samples(folders, "test")) == 6


def test_shards_hold_the_same_images_at_any_place(folders: Path, shards: Path) -> None:
    def as_set(found: list[tuple[torch.Tensor, int]]) -> list[tuple[list[int], int]]:
        return sorted((image.flatten().tolist(), number) for image, number in found)

    for split in ("train", "test"):
        assert as_set(samples(shards, split, augment="none", classes=3)) == as_set(
            samples(folders, split, augment="none")
        )


def test_another_shard_makes_another_index(shards: Path, tmp_path: Path) -> None:
    index = {"classes": 3, "index": str(tmp_path / "elsewhere")}
    assert len(samples(shards, "train", **index)) == 18
    assert not list(shards.glob("*.pt"))
    shutil.copy(shards / "train" / "0.tar", shards / "train" / "2.tar")
    assert len(samples(shards, "train", **index)) == 27


def test_a_resume_on_shards_with_workers_sees_the_same_image_parts(shards: Path, run: RunFolder) -> None:
    config = {"data": str(shards), "classes": 3, "depth": 20, "image": 8, "augment": "resized"}
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 6, "lr": 0.01, "workers": 2, "config": config}
    run.write("slurmgpu:resnet", **settings)
    run.here(SLURMGPU_MAX_STEPS="4")
    run.here()
    stopped = run.parameters()
    run.write("slurmgpu:resnet", **settings, resume=False)
    run.here()
    assert same(run.parameters(), stopped)


def test_faults_of_images_are_said_before_the_first_step(folders: Path, shards: Path, tmp_path: Path) -> None:
    def said(folder: Path, **options: Any) -> str:
        with pytest.raises(TrainingError) as caught:
            samples(folder, "train", **options)
        return str(caught.value)

    assert "has no folder 'train'" in said(tmp_path)
    assert "classes is 2, and" in said(folders, classes=2)
    assert "set config.classes: 3" in said(shards, classes=2)
    (folders / "train" / "red" / "broken.png").write_bytes(b"no picture")
    assert "broken.png is no image that can be read" in said(folders)
    with tarfile.open(shards / "train" / "9.tar", "w") as shard:
        shard.add(folders / "train" / "red" / "0.png", "lonely.png")
    assert "9.tar has no lonely.cls beside the image (1 such images)" in said(shards, classes=3)


# Segmentation


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    """Two images to learn from, left half red and of class 1; and two for the test."""
    for split in ("train", "val"):
        for number in range(2):
            image = pytest.importorskip("PIL.Image", reason="needs pillow")
            path = picture(tmp_path / "scenes" / split / "images" / f"{number}.jpg", (0, 0, 0), (16, 8))
            half = image.new("RGB", (8, 8), (250, 0, 0))
            whole, mask = image.open(path), image.new("L", (16, 8), 0)
            whole.paste(half, (0, 0))
            whole.save(path, quality=100)
            mask.paste(1, (0, 0, 8, 8))
            mask.putpixel((15, 7), 255)
            (path.parents[1] / "masks").mkdir(exist_ok=True)
            mask.save(path.parents[1] / "masks" / f"{number}.png")
    return tmp_path / "scenes"


def test_a_mask_goes_the_way_of_its_image(masked: Path) -> None:
    task, settings = load("slurmgpu:fcn"), cfg("fcn", data=str(masked), image=8, depth=20, classes=2)
    for data in (task.dataset(settings), task.tests(settings)[""]):
        assert len(data) == 2
        for image, classes in (data[index] for index in range(2) for _ in range(10)):
            assert (image.shape, classes.shape, classes.dtype) == ((3, 8, 8), (8, 8), torch.uint8)
            inside = (classes != 255) & (classes == classes.roll(1, 1)) & (classes == classes.roll(-1, 1))
            assert torch.equal((image[0] > 125)[inside], (classes == 1)[inside])


def test_pixels_of_no_class_count_nowhere_and_the_mean_is_over_the_classes_that_are_there() -> None:
    task = fcn.Task()
    scores = torch.zeros(1, 3, 2, 2)
    scores[0, 0], scores[0, 1, 0, 0] = 1.0, 2.0  # found: 1 and three times 0
    truth = torch.tensor([[[1, 0], [1, 255]]], dtype=torch.uint8)
    measured = task.evaluate(lambda _: scores, [torch.zeros(1, 3, 2, 2, dtype=torch.uint8), truth])
    assert [int(each) for each in measured["accuracy"]] == [2, 3]
    outputs = {name: measured[name] for name in ("both", "either")}
    assert task.finish(outputs)["mean_iou"] == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_what_is_wrong_with_masks_is_said(masked: Path) -> None:
    def said(**options: Any) -> str:
        settings = cfg("fcn", data=str(masked), image=8, **{"classes": 2, **options})
        with pytest.raises(TrainingError) as caught:
            [each for data in [load("slurmgpu:fcn").dataset(settings)] for each in (data[0], data[1])]
        return str(caught.value)

    masks = masked / "train" / "masks"
    picture(masks / "1.png", (1, 1, 1), (4, 4))
    assert "1.png is 4 x 4, mode RGB; it must be as large as its image, 16 x 8" in said()
    (masks / "1.png").unlink()
    assert "1.png is missing (1 such masks)" in said()
    shutil.copy(masks / "0.png", masks / "1.png")
    pytest.importorskip("PIL.Image").new("L", (16, 8), 7).save(masks / "0.png")
    assert "config.classes is 2, and" in said()
    assert "set config.classes: 8 or more" in said()
    shutil.rmtree(masked / "train" / "images")
    assert "has no images" in said()


def test_a_missing_pillow_is_named_with_what_to_do(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(TrainingError, match=r"needs the package pillow, which .* does not have: pip install"):
        samples(folders, "train")
