"""Options that sbatch gets as they are: what the profile knows of them is judged, and the others are named as not judged."""

from __future__ import annotations

import pytest

from slurmgpu.models.cluster import Cluster
from slurmgpu.planning.judging_options import judge_options
from slurmgpu.planning.options import passed_problems, unjudged
from tests.check_examples import CLUSTER
from tests.tables import TABLES


@pytest.mark.parametrize(
    ("options", "says"),
    TABLES["test_what_slurm_would_refuse_is_said"],
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
