"""Profiles that centres publish: in a folder of the settings, at an address, in a Python package."""

from __future__ import annotations

import io
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurmgpu.cli.cluster import command
from slurmgpu.clusters.fetching import MOST_BYTES, _Redirects, download
from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.files import clusters
from slurmgpu.files.clusters import choose_cluster
from slurmgpu.files.settings import load_settings

PROFILE = """\
name: centre
description: A centre, its cluster
source: {text: "written by the centre", date: 2026-11-01}
partitions: {gpu: {limits: {max_time: "1-00:00:00"}, nodes: [{count: 4, gpus: 4, gpu_type: a100}]}}
"""


class Site:
    """A web server on this machine, with what it has at each path and what it was asked."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.pages: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.cut: set[str] = set()
        self.asked: list[tuple[str, str | None]] = []


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append((self.path, self.headers.get("If-None-Match")))
            page = found.pages.get(self.path)
            tag = f'"{hash(page)}"'
            status = 302 if self.path in found.moved else 404 if page is None else 200
            if status == 200 and self.headers.get("If-None-Match") == tag:
                status = 304
            self.send_response(status)
            self.send_header("ETag", tag)
            if self.path in found.cut:
                self.send_header("Content-Length", str(len(page or b"") + 1))
            if self.path in found.moved:
                self.send_header("Location", found.moved[self.path])
            self.end_headers()
            if status == 200:
                self.wfile.write(page or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Site(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    monkeypatch.delenv("SLURMGPU_CLUSTER", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "config" / "slurmgpu" / "clusters"


def fetch(*arguments: str) -> Result:
    result = CliRunner().invoke(command, ["fetch", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        assert isinstance(result.exception, SlurmGpuError), result.exception
    return result


def test_a_profile_at_an_address_is_kept_and_found_by_its_name(site: Site, home: Path) -> None:
    site.pages["/p.yaml"] = PROFILE.encode()
    done = fetch(f"{site.address}/p.yaml")
    assert done.exit_code == 0, done
    assert (home / "centre.yaml").read_text() == PROFILE
    assert "centre: A centre, its cluster" in done.stderr
    assert "plan on it: slurmgpu cluster use centre" in done.stderr
    asked = len(site.asked)
    cluster, _ = choose_cluster("centre", load_settings(Path.cwd()), {})
    assert cluster.partitions["gpu"].nodes[0].count == 4
    assert len(site.asked) == asked, "only fetch asks the server"


def test_fetching_again_asks_by_the_tag_and_shows_what_changed(site: Site, home: Path) -> None:
    site.pages["/p.yaml"] = PROFILE.encode()
    fetch(f"{site.address}/p.yaml")
    again = fetch("centre")
    assert "has nothing newer" in again.stderr
    assert site.asked[-1][1] is not None
    site.pages["/p.yaml"] = PROFILE.replace("1-00:00:00", "2-00:00:00").encode()
    newer = fetch("centre")
    assert '+partitions: {gpu: {limits: {max_time: "2-00:00:00"}' in newer.stderr
    assert "2-00:00:00" in (home / "centre.yaml").read_text()


def test_what_a_person_wrote_is_never_overwritten(site: Site, home: Path) -> None:
    site.pages["/p.yaml"] = PROFILE.encode()
    fetch(f"{site.address}/p.yaml")
    (home / "centre.yaml").write_text(PROFILE + "default_account: mine\n")
    site.pages["/p.yaml"] = PROFILE.replace("count: 4", "count: 5").encode()
    for what in ("centre", f"{site.address}/p.yaml"):
        refused = fetch(what)
        assert isinstance(refused.exception, InvalidInput)
        assert "nothing that you wrote is overwritten" in refused.exception.message
        assert "based_on" in (refused.exception.hint or "")
    assert "default_account: mine" in (home / "centre.yaml").read_text()
    other = fetch(f"{site.address}/p.yaml", "--name", "second")
    assert other.exit_code == 0
    assert (home / "second.yaml").is_file()


def test_a_dry_run_prints_it_and_writes_nothing(site: Site, home: Path) -> None:
    site.pages["/p.yaml"] = PROFILE.encode()
    shown = fetch(f"{site.address}/p.yaml", "--dry-run")
    assert shown.stdout == PROFILE
    assert not home.exists()


def test_a_profile_with_environments_says_that_they_run_in_jobs(site: Site, home: Path) -> None:
    site.pages["/p.yaml"] = f"{PROFILE}environments: {{torch: {{modules: {{load: [pytorch]}}}}}}\n".encode()
    assert "become lines of your jobs' scripts" in fetch(f"{site.address}/p.yaml").stderr


def test_it_may_be_based_on_a_shipped_one(site: Site, home: Path) -> None:
    site.pages["/p.yaml"] = b"name: csc-roihu\nbased_on: csc-roihu\ndefault_partition: gpumedium\n"
    assert fetch(f"{site.address}/p.yaml").exit_code == 0
    cluster, _ = choose_cluster("csc-roihu", load_settings(Path.cwd()), {})
    assert (cluster.default_partition, "gputest" in cluster.partitions) == ("gpumedium", True)


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (b"name: centre\npartitions: 3\n", r"/p\.yaml:2: partitions"),
        (b"\xff\xfe", "is no text in UTF-8"),
        (b"name: ../../evil\n", "name"),
        (b"name: generic\n", "is the profile of no cluster"),
        (b"# " + b"x" * MOST_BYTES, "is larger than 1 MiB"),
        (None, "the server says 404"),
    ],
)
def test_no_profile_is_refused_and_not_kept(site: Site, home: Path, page: bytes | None, says: str) -> None:
    if page is not None:
        site.pages["/p.yaml"] = page
    refused = fetch(f"{site.address}/p.yaml")
    assert isinstance(refused.exception, InvalidInput)
    with pytest.raises(InvalidInput, match=says):
        raise refused.exception
    assert not home.exists()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://hpc.example.org/p.yaml", "it must be https://"),
        ("https://me:secret@hpc.example.org/p.yaml", "it has a user name in it"),
        ("file:///etc/passwd", "is not an address"),
        ("https://", "is not an address"),
    ],
)
def test_an_address_that_nobody_should_fetch_from_is_refused(address: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        download(address)
    assert "secret" not in caught.value.message


def test_a_server_may_not_lead_to_an_address_without_tls_or_to_a_file(site: Site) -> None:
    site.moved["/a"] = "http://hpc.example.org/p.yaml"
    site.moved["/b"] = "file:///etc/passwd"
    site.moved["/c"] = f"{site.address}/p.yaml"
    site.pages["/p.yaml"] = PROFILE.encode()
    for path, says in (("/a", "must be https"), ("/b", "not allowed")):
        with pytest.raises(InvalidInput, match=says):
            download(site.address + path)
    moved = download(f"{site.address}/c")
    assert moved.text == PROFILE


def test_a_server_elsewhere_may_not_lead_to_this_machine() -> None:
    asked = urllib.request.Request("https://hpc.example.org/p.yaml")
    with pytest.raises(InvalidInput, match="leads to this machine itself"):
        _Redirects().redirect_request(
            asked, io.BytesIO(), 302, "", HTTPMessage(), "http://127.0.0.1:8080/restart"
        )


def test_an_answer_cut_short_or_endless_is_no_profile(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pages["/p.yaml"] = PROFILE.encode()
    site.cut.add("/p.yaml")
    with pytest.raises(InvalidInput, match="ends before its end"):
        download(f"{site.address}/p.yaml")
    monkeypatch.setattr("slurmgpu.clusters.fetching.LONGEST", -1.0)
    with pytest.raises(InvalidInput, match="not all of it has come"):
        download(f"{site.address}/p.yaml")


def test_a_name_that_was_never_fetched_says_what_to_give(home: Path) -> None:
    refused = fetch("uva-afton")
    assert isinstance(refused.exception, InvalidInput)
    assert "is neither an address nor a profile that was fetched" in refused.exception.message


# Packages


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed clusters, one of which brings a profile."""
    place = tmp_path / "site-packages"
    info, package = place / "centre-1.0.dist-info", place / "centre_profiles"
    info.mkdir(parents=True)
    (package / "clusters").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('was imported')\n")
    (package / "clusters" / "centre.yaml").write_text(PROFILE)
    (info / "entry_points.txt").write_text("[slurmgpu.clusters]\nCentre = centre_profiles:clusters\n")
    (place / "broken.dist-info").mkdir()
    (place / "broken.dist-info" / "entry_points.txt").write_text("[slurmgpu.clusters\nx")
    (place / "gone.dist-info").mkdir()
    (place / "gone.dist-info" / "entry_points.txt").write_text(
        "[slurmgpu.clusters]\ngone = no_such_package\n"
    )
    monkeypatch.setattr(clusters.sysconfig, "get_path", lambda _: str(place))
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    clusters.package_folders.cache_clear()
    yield package / "clusters"
    clusters.package_folders.cache_clear()


def test_an_installed_package_brings_profiles_and_is_not_imported(installed: Path, home: Path) -> None:
    assert clusters.package_folders() == {"Centre": installed}
    cluster, _ = choose_cluster("centre", load_settings(Path.cwd()), {})
    assert cluster.description == "A centre, its cluster"
    rows = CliRunner().invoke(command, ["list", "centre"]).stdout
    assert "of package Centre" in rows


def test_a_packages_profile_beats_the_shipped_one_and_not_ones_own(installed: Path, home: Path) -> None:
    (installed / "csc-roihu.yaml").write_text("name: csc-roihu\nbased_on: csc-roihu\ndescription: theirs\n")
    settings = load_settings(Path.cwd())
    cluster, _ = choose_cluster("csc-roihu", settings, {})
    assert (cluster.description, "gpumedium" in cluster.partitions) == ("theirs", True)
    home.mkdir(parents=True)
    (home / "csc-roihu.yaml").write_text("name: csc-roihu\nbased_on: csc-roihu\ndefault_account: mine\n")
    mine, _ = choose_cluster("csc-roihu", settings, {})
    assert (mine.default_account, mine.description) == ("mine", "theirs")


def test_a_folder_of_the_settings_brings_profiles(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "site" / "clusters"
    folder.mkdir(parents=True)
    (folder / "centre.yaml").write_text(PROFILE)
    cluster, _ = choose_cluster("centre", load_settings(Path.cwd()), {})
    assert cluster.description == "A centre, its cluster"
