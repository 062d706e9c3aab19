"""Options that sbatch gets as they are: what the profile knows of them is judged, and the others are named as not judged."""

from __future__ import annotations

import pytest

from slurmgpu.models.cluster import Cluster
from slurmgpu.planning.judging_options import judge_options
from slurmgpu.planning.passed_options import passed_problems, unjudged
from tests.check_examples import CLUSTER


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nodelist": "g[3-5]"}, "partition gpu has no node g5"),
        ({"nodelist": "c1"}, "partition gpu has no node c1"),
        ({"nodelist": "g[1-2]", "nodes": "2"}, ""),
        ({"nodelist": "/data/hosts"}, ""),
        ({"exclude": "g[1-3]", "nodes": "2"}, "partition gpu has 4 nodes, and exclude leaves 1; 2 are needed"),
        ({"exclude": "g9"}, "cluster 'site' has no node g9"),
        ({"exclude": "c1,g1"}, ""),
        ({"exclude": "g1", "nodelist": "g[1-2]"}, "the job is to leave out g1, which nodelist wants"),
        ({"licenses": "matlab:3"}, "cluster 'site' has 2 of licence 'matlab', 3 are asked for"),
        ({"licenses": "matlab:1,ansys"}, "cluster 'site' has no licence 'ansys'; it has matlab"),
        ({"licenses": "matlab@server:2"}, ""),
        ({"tmp": "9T", "comment": "x"}, ""),
    ],
)  # fmt: skip
def test_what_slurm_would_refuse_is_said(options: dict[str, str | None], says: str) -> None:
    assert "; ".join(map(str, passed_problems(CLUSTER, ["gpu"], options))) == says
    assert [str(one) for one in judge_options(CLUSTER, {"partition": "gpu", "gres": "gpu:1", **options})] == (
        [says] if says else []
    )
    typed = CLUSTER.model_copy(update={"slurm": CLUSTER.slurm.model_copy(update={"release": None})})
    assert not list(passed_problems(typed, ["gpu"], options))


def test_what_only_slurm_can_judge_is_named() -> None:
    options = dict.fromkeys(("tmp", "deadline", "comment", "nodelist", "licenses", "no-such", "time"))
    assert unjudged(CLUSTER, ["gpu"], options) == ["tmp", "deadline", "no-such"]
    nothing = Cluster.model_construct(name="generic")
    assert unjudged(nothing, [], options) == ["tmp", "deadline", "nodelist", "licenses", "no-such"]
