"""``slurmgpu web --export``: a page that needs no server, whose script is what ``render`` prints."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import random
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from slurmgpu.cli.group import cli
from slurmgpu.errors import SlurmGpuError
from slurmgpu.web import export as exporting
from slurmgpu.web.drawing import answer
from slurmgpu.web.export import Part
from slurmgpu.web.planned import planned
from tests.browser import BACKSPACE, TAB, axe, chromium, need, parts_or_skip, text_of, until
from tests.web_forms import as_render_says, fill

CLUSTER = "uva-afton"


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a machine whose site and whose user have settings."""
    top = tmp_path_factory.mktemp("away")
    folder = top / "work"
    (folder / ".git").mkdir(parents=True)
    for layer, text in (("site", "images: $SCRATCH/images\njob: {variables: {OF_THE_SITE: '1'}}\n"),
                        ("config/slurmgpu", "job: {variables: {OF_THE_USER: '1'}}\n")):  # fmt: skip
        (top / layer).mkdir(parents=True)
        (top / layer / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HOME", str(top / "home"))
        patch.setenv("XDG_CONFIG_HOME", str(top / "config"))
        patch.setenv("SLURMGPU_SITE", str(top / "site"))
        patch.setenv("SCRATCH", "/scratch/me")
        patch.delenv("SLURMGPU_CLUSTER", raising=False)
        yield folder


def rendered(text: str, cluster: str, folder: Path) -> tuple[int, str]:
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    done = CliRunner().invoke(cli, ["render", "job.yaml", "--cluster", cluster])
    return done.exit_code, done.stdout


def refused(*words: str) -> str:
    """What the command says, with what to do about it."""
    done = CliRunner().invoke(cli, ["web", *words])
    assert isinstance(done.exception, SlurmGpuError), done.exception
    return f"{done.exception.message}; {done.exception.hint}"


def a_form(cluster: str, chance: random.Random) -> dict[str, str]:
    pytest.importorskip("starlette", reason="the extra `web` is not installed")
    pytest.importorskip("httpx2", reason="the forms come from the tests of the server, which need it")
    from tests import test_web

    return test_web.a_form(cluster, chance)


@pytest.fixture(scope="module")
def parts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the names that are needed; nothing of them runs."""
    folder = tmp_path_factory.mktemp("parts")
    pyodide, core = exporting.parts()
    with tarfile.open(folder / pyodide.name, "w:gz") as archive:
        for name in exporting._OF_PYODIDE:
            data = b"{}" if name.endswith(".json") else name.encode()
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with zipfile.ZipFile(folder / core.name, "w"):
        pass
    return folder


@pytest.fixture(scope="module")
def exported(away: Path, parts_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "new"
    listed = _unpinned(parts_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "parts", lambda: listed)
        made = exporting.export(folder, CLUSTER, away, parts_folder)
    assert made.page == folder / "index.html"
    assert made.size == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return folder


def _unpinned(folder: Path) -> list[Part]:
    return [
        one._replace(sha256=hashlib.sha256((folder / one.name).read_bytes()).hexdigest())
        for one in exporting.parts()
    ]


def test_the_page_names_no_other_host_and_every_file_that_it_loads_lies_beside_it(exported: Path) -> None:
    page = (exported / "index.html").read_text(encoding="utf-8")
    loaded = re.findall(r'<(?:script|link)[^>]*(?:src|href)="([^"?]+)', page)
    assert len(loaded) > 8
    for name in loaded:
        assert (exported / name).is_file(), name
    for path in exported.rglob("*"):
        if path.suffix in (".html", ".js", ".css") and path.name not in ("code-zip.js", "site-zip.js"):
            hosts = set(re.findall(r"https?://([\w.-]+)", path.read_text(encoding="utf-8")))
            # parts.invalid is answered by the page itself; no such host can be.
            assert hosts <= {"parts.invalid", "www.w3.org"}, path
    assert "connect-src &#39;none&#39;" in page
    assert "hx-" not in (exported / "static" / "offline.js").read_text(encoding="utf-8")


def test_the_pages_own_python_gives_what_was_given_where_it_was_made(exported: Path, tmp_path: Path) -> None:
    start = (exported / "python" / "start.js").read_text(encoding="utf-8")
    about = json.loads(start.removeprefix("slurmgpuOffline.start(").removesuffix(");\n"))
    for name in ("code-zip.js", "site-zip.js"):
        packed = (exported / "python" / name).read_text(encoding="utf-8")
        data = gzip.decompress(base64.b64decode(packed.partition(' = "')[2].removesuffix('";\n')))
        zipfile.ZipFile(io.BytesIO(data)).extractall(tmp_path)
    assert not (tmp_path / "code" / "slurmgpu" / "cli").exists()
    # The page's disk begins at /; here it is a folder, and the site's file has to lie where it lay.
    ask = "import json, sys; from slurmgpu.web.drawing import sampled; print(json.dumps(sampled(*sys.argv[1:])))"
    home = tmp_path / "home" / "you"
    (home / "project").mkdir()
    environ = about["environ"] | {"HOME": str(home), "PYTHONPATH": str(tmp_path / "code"), "PATH": os.defpath}
    done = subprocess.run(
        [sys.executable, "-c", ask, about["cluster"], str(home / "project")],
        env=environ,
        cwd=home / "project",
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found == about["expected"]
    scripts = [one[0] for one in found]
    assert "OF_THE_SITE" in scripts[0]
    assert "OF_THE_USER" not in scripts[0]
    assert 'cd "$SLURM_SUBMIT_DIR"' in scripts[1]
    assert scripts[2] == ""


def test_an_export_is_made_anew_but_goes_over_no_other_folder(
    exported: Path, away: Path, parts_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = _unpinned(parts_folder)
    monkeypatch.setattr(exporting, "parts", lambda: listed)
    before = {path.name: path.read_bytes() for path in exported.rglob("*") if path.is_file()}
    exporting.export(exported, CLUSTER, away, parts_folder)
    assert {path.name: path.read_bytes() for path in exported.rglob("*") if path.is_file()} == before
    (tmp_path / "mine").write_text("", encoding="utf-8")
    assert "has other files" in refused("--export", str(tmp_path), "--cluster", CLUSTER)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_missing_or_another_file_is_one_error_with_what_helps(tmp_path: Path, away: Path) -> None:
    def said(*words: str) -> str:
        error = refused("--export", str(tmp_path / "x"), "--parts", str(tmp_path), *words)
        assert not (tmp_path / "x").exists()
        return error

    pyodide, core = exporting.parts()
    missing = said("--cluster", CLUSTER)
    assert f"{tmp_path / pyodide.name} cannot be read" in missing
    assert " ".join(pyodide.command) in missing
    assert " ".join(core.command) in missing
    (tmp_path / pyodide.name).write_bytes(b"another")
    assert pyodide.sha256 in said("--cluster", CLUSTER)
    assert "--cluster" in CliRunner().invoke(cli, ["web", "--cluster", CLUSTER]).stderr


def test_without_a_network_the_download_is_one_error_that_says_what_to_do_elsewhere(
    tmp_path: Path, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\necho 'npm error network no route to host' >&2\nexit 1\n", encoding="utf-8")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:{os.defpath}")
    words = ("--export", str(tmp_path / "x"), "--fetch", "--parts", str(tmp_path / "p"), "--cluster", CLUSTER)
    error = refused(*words)
    assert "no route to host" in error
    assert "run it on a machine with a network: npm pack pyodide@" in error
    npm.unlink()
    monkeypatch.setenv("PATH", str(npm.parent))
    assert "npm, which --fetch downloads Pyodide with" in refused(*words)


def test_a_pydantic_without_a_twin_for_browsers_is_said_at_once(
    tmp_path: Path, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "version", lambda _: "2.7.0")
    error = refused("--export", str(tmp_path / "x"), "--cluster", CLUSTER)
    assert "2.7.0 is not known to run in browsers" in error


@pytest.mark.parametrize("cluster", ["idris-jean-zay", "uva-afton", "lumi-g"])
def test_away_from_the_cluster_the_script_is_still_renders(exported: Path, away: Path, cluster: str) -> None:
    chance = random.Random(f"away {cluster}")
    fits = 0
    for _ in range(3):
        values = a_form(cluster, chance)
        told = json.loads(answer(json.dumps(values), cluster, str(away)))
        code, script = rendered(told["job_file"], cluster, away)
        assert told["script"] == script, values
        assert (code == 0) == bool(script)
        assert "is not in the work folder" not in told["html"]
        fits += code == 0
    assert fits


def test_a_work_folder_that_only_a_machine_could_know_is_said_at_its_field(away: Path) -> None:
    for work_dir, field in (("sub", "work_dir"), ("$HOME/x", ""), ("/scratch/x", "")):
        made = planned(
            {"command": "./prog", "resources.account": "abc", "resources.gpus": "1", "work_dir": work_dir},
            CLUSTER,
            away,
            away=True,
        )
        assert [one.field for one in made.problems] == ([field] if field else [])
        assert not any("is not there" in note for note in made.notes)


# In a browser.


@pytest.fixture(scope="module")
def real(away: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    need()
    made = tmp_path_factory.mktemp("real") / "page"
    exporting.export(made, CLUSTER, away, parts_or_skip())
    return made


def test_the_page_plans_without_click_and_without_the_folders_that_it_leaves_out() -> None:
    left_out = [f"slurmgpu.{one}" for one in exporting._LEFT_OUT if one != "training"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({['click', *left_out]})); import slurmgpu.web.drawing"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
@pytest.mark.chosen
def test_opened_from_a_disk_the_page_shows_what_render_prints(
    real: Path, away: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # of a user who has no settings
    chance = random.Random("from a disk")
    with chromium() as page:
        page.get(f"file://{real}/index.html?" + urlencode({"command": "./prog", "resources.gpus": "200"}))
        until(lambda: "does not fit yet" in text_of(page, "answer"), 120)
        assert page.find_element("id", "resources-gpus").get_attribute("aria-invalid") == "true"
        for _ in range(4):
            as_render_says(fill(page, a_form(CLUSTER, chance)), CLUSTER, away)
        fill(page, {"command": "python train.py", "resources.gpus": "2", "resources.account": "mine"})
        page.find_element("id", "resources-gpus").send_keys(TAB, TAB, "40-0")  # past the type of GPU
        until(lambda: "allows at most" in text_of(page, "error-resources-time"))
        page.switch_to.active_element.send_keys(*BACKSPACE * 4, "1:00:00")
        until(lambda: "--time=01:00:00" in text_of(page, "script"))
        wrong = [one["message"] for one in page.get_log("browser") if one["level"] == "SEVERE"]
        assert wrong == []
        page.execute_script(axe())
        # What it would read again, the page's policy does not let it.
        found = page.execute_async_script("axe.run({preload: false}).then(arguments[0])")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []
