"""The networks that are timed are the published ones; a step is timed in its parts."""

from __future__ import annotations

import torch

from slurmgpu.training.benching.networks import NETWORKS
from slurmgpu.training.benching.timing import Pace, spread, timed

# Weights and biases by hand, from the layers of the code that was measured for the paper.
PARAMETERS = {
    "FCN-S": 26752 * 2048 * 2 + 2 * 2048 * 2048 + 3 * 2048 + 26752,
    "AlexNet-S": 62_378_344,  # Krizhevsky et al. on one device
    "ResNet-50": 25_557_032,  # He et al., as in torchvision
    "FCN-R": 784 * 2048 + 2048 * 4096 + 4096 * 1024 + 1024 * 10 + 2048 + 4096 + 1024 + 10,
    "AlexNet-R": 3 * 25 * 32 + 32 * 25 * 32 + 32 * 25 * 64 + 576 * 10 + 32 + 32 + 64 + 10,
    "LSTM": 10_000 * 256 * 2 + 10_000 + 2 * (8 * 256 * 256 + 8 * 256),
}


def test_the_networks_have_the_published_sizes() -> None:
    with torch.device("meta"):
        counts = {
            name: sum(each.numel() for each in one.build().parameters()) for name, one in NETWORKS.items()
        }
    assert {name: counts[name] for name in PARAMETERS} == PARAMETERS
    assert 850_000 < counts["ResNet-56"] < 860_000  # 0.85 million (He et al., table 6)


def test_each_network_gives_a_score_for_each_class_that_it_is_asked_for() -> None:
    for name, one in NETWORKS.items():
        targets = one.targets(2)
        with torch.device("meta"):
            model = one.build()
        inputs = one.inputs(2).to("meta")
        scores = model.eval()(inputs)
        assert scores.shape[:-1] == targets.shape, name
        assert int(targets.max()) < scores.shape[-1], name


def test_what_warms_up_does_not_count_and_each_part_has_its_own_time() -> None:
    calls: list[str] = []
    parts = [lambda: calls.append("one"), lambda: calls.append("two")]
    rounds = timed(parts, torch.device("cpu"), Pace(warm_up=2, least=3, most=9, seconds=0.0))
    assert (len(rounds), {len(laps) for laps in rounds}) == (3, {2})
    assert calls == ["one", "two"] * 5


def test_no_more_than_the_most_is_measured_however_much_time_there_is() -> None:
    assert (
        len(timed([lambda: None], torch.device("cpu"), Pace(warm_up=0, least=1, most=4, seconds=60.0))) == 4
    )


def test_a_spread_is_the_median_the_least_and_the_most() -> None:
    assert spread([3.0, 1.0, 9.0]) == (3.0, 1.0, 9.0)
