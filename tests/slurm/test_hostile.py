"""Hostile values in every free-text field, read back from the real Slurm: equal, or refused by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hostile import VALUES
from tests.slurm.reading_back import ReadingBack
from tests.slurm.round_trip import FIELDS, Sending
from tests.slurm.throwaway import ThrowawaySlurm

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.every_release]

# What the jobs find first on their PATH, and as functions of their shell: each writes its words down.
PROGRAMS = {
    "record": (
        'printf "%s\\0" "$SLURM_JOB_NAME" "$(pwd -P)" >"$RECORDS/$SLURM_JOB_ID.ran"\necho said\necho said >&2'
    ),
    "apptainer": 'printf "%s\\0" "$@" >"$RECORDS/$SLURM_JOB_ID.apptainer"\nexec record',
    "stand-in/srun": 'printf "%s\\0" "$@" >"$RECORDS/$SLURM_JOB_ID.srun"',
}
FUNCTIONS = {
    "conda": '() { [ "$1" != activate ] || printf "%s\\0" "$@" >"$RECORDS/$SLURM_JOB_ID.conda"; }',
    # `module use` and `module load` run once for each folder and module; what is loaded shows in LOADEDMODULES.
    "module": (
        '() { printf "%s\\0" "${@:2}" >>"$RECORDS/$SLURM_JOB_ID.module.$1"; '
        '[ "$1" != load ] || LOADEDMODULES="${LOADEDMODULES-}:m$((++modules))"; }'
    ),
}


@pytest.fixture(scope="module")
def trip(slurm: ThrowawaySlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadingBack]:
    """Everything sent and read once, in a folder and a home of its own."""
    root = tmp_path_factory.mktemp("hostile")
    for name in ("records", "home", "config", "trip/stand-in", "bin/stand-in"):
        (root / name).mkdir(parents=True)
    for name, body in PROGRAMS.items():
        program = root / ("trip" if name.startswith("stand-in") else "bin") / name
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    environ = slurm.env | {
        "PATH": f"{root}/bin:{Path(sys.executable).parent}:{slurm.env['PATH']}",
        "HOME": str(root / "home"),
        "RECORDS": str(root / "records"),
        "XDG_CONFIG_HOME": str(root / "config"),
        "SLURMGPU_SITE": str(root / "site"),
        "OMP_NUM_THREADS": "1",
        **{f"BASH_FUNC_{name}%%": body for name, body in FUNCTIONS.items()},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", environ["HOME"])
        sending = Sending(slurm, root / "trip", environ)
        try:
            sending.send()
            trip = ReadingBack(sending)
            trip.read()
            yield trip
        finally:
            sending.tidy()


@pytest.mark.parametrize("name", FIELDS)
def test_a_hostile_value_comes_back_equal_or_is_refused_by_name(trip: ReadingBack, name: str) -> None:
    fates = {key: trip.sending.ledger.fates[name, key] for key in VALUES}
    assert {key: why for key, (fate, why) in fates.items() if fate == "CHANGED"} == {}
    assert "refused by us" in {fate for fate, _ in fates.values()}


def test_no_value_changes_silently(trip: ReadingBack, record_property: Callable[[str, object], None]) -> None:
    counts = trip.sending.ledger.counts()
    for fate, count in counts.items():
        record_property(fate, count)
    assert sum(counts.values()) == len(FIELDS) * len(VALUES), counts
    assert counts.get("CHANGED", 0) == 0, counts
    # Not by refusing everything: nearly half of the pairs go to Slurm and come back.
    assert counts["equal"] >= 0.45 * sum(counts.values()), counts


def test_no_value_is_run_as_a_command(trip: ReadingBack) -> None:
    places = [trip.sending.folder.parent, trip.sending.slurm.folder]
    assert [path for place in places for path in place.rglob("pwned")] == []
    assert not any((Path(place) / "pwned").exists() for place in ("/tmp", Path.cwd(), Path.home()))


def test_no_value_becomes_an_option(trip: ReadingBack) -> None:
    assert {trip.rows[sent.job_id]["Nice"] for sent in trip.sending.sent} == {"0"}
