"""A sandbox in whatever Slurm comes first on PATH: its release's words, and its own plugins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurmgpu.sandbox.configuration import (
    Installation,
    default_shape,
    slurm_conf,
    slurmdbd_conf,
)
from slurmgpu.sandbox.starting import plugin_folder

SHAPE = default_shape(nodes=1, gpus=1, gpu_type=None, cpus=2, memory_mib=1000)
PLACE = Installation("sandbox-x", Path("/f"), "me", "localhost", 1, 2, (3,), accounting=True)


def test_the_configuration_is_in_the_words_of_its_release() -> None:
    old, new = (slurm_conf(replace(PLACE, release=release), SHAPE) for release in ((20, 11), (21, 8)))
    assert "AccountingStoreFlags=job_comment,job_script\n" in new
    assert "AccountingStoreFlags" not in old
    assert "AccountingStoreJobComment=YES\n" in old


def test_sandboxes_side_by_side_count_their_jobs_from_different_numbers() -> None:
    one, other = (slurm_conf(replace(PLACE, controller_port=port), SHAPE) for port in (7001, 7002))
    assert one.count("FirstJobId=") == 1
    assert "FirstJobId=7001\n" in one
    assert "FirstJobId=7002\n" in other


@pytest.mark.parametrize("where", ["lib/x86_64-linux-gnu/slurm-wlm", "lib/slurm", "lib64/slurm"])
def test_an_unpacked_slurm_is_told_where_its_plugins_are(tmp_path: Path, where: str) -> None:
    plugins = tmp_path / "usr" / where
    plugins.mkdir(parents=True)
    (plugins / "auth_munge.so").touch()
    (tmp_path / "usr" / "sbin").mkdir()
    daemon = tmp_path / "usr" / "sbin" / "slurmctld"
    daemon.touch()
    (tmp_path / "slurmctld").symlink_to(daemon)
    assert plugin_folder(tmp_path / "slurmctld") == plugins
    unpacked = replace(PLACE, plugins=plugins)
    for text in (slurm_conf(unpacked, SHAPE), slurmdbd_conf(unpacked)):
        assert f"PluginDir={plugins}\n" in text


def test_the_systems_slurm_finds_its_plugins_itself(tmp_path: Path) -> None:
    assert plugin_folder(Path("/usr/sbin/slurmctld")) is None
    assert plugin_folder(tmp_path / "sbin" / "slurmctld") is None
    for text in (slurm_conf(PLACE, SHAPE), slurmdbd_conf(PLACE)):
        assert "PluginDir" not in text
