"""``slurmgpu web``: who is let in, that its script is what ``render`` prints, and what its pages say and do of jobs."""

from __future__ import annotations

import asyncio
import html
import json
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("uvicorn", reason="the extra `web` is not installed")
pytest.importorskip("httpx2", reason="Starlette's client for tests needs it")

import httpx2
from starlette.testclient import TestClient
from uvicorn import Config
from uvicorn.server import ServerState

from slurmgpu.cli.group import cli
from slurmgpu.cli.live_source import command_of, submit
from slurmgpu.errors import InvalidInput
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder
from slurmgpu.jobs.live import Source
from slurmgpu.jobs.log_files import next_piece
from slurmgpu.jobs.look import StatusReport
from slurmgpu.slurm import Slurm
from slurmgpu.slurm.text import Answer
from slurmgpu.web.form import FIELDS, choices, in_words_of_the_form, read_form, to_form
from slurmgpu.web.generator import Generator, Submitted, save_job
from slurmgpu.web.http import LARGEST, Guard
from slurmgpu.web.planned import planned
from slurmgpu.web.runs import Runs
from slurmgpu.web.server import (
    _MOST,
    _Connection,
    addresses,
    guarded,
    listen_on_port,
    listen_on_socket,
    serve,
)
from tests.recorded import said
from tests.tables import TABLES
from tests.test_jobs_status import NOW, job

ROOT = Path(__file__).resolve().parent.parent
TOKEN = "a-token-that-nobody-knows"
HERE = "http://127.0.0.1:8000"
OWN = {"origin": HERE}
HOSTILE = "<script>alert(1)</script>\x1b[2J"
WAITS = "afterok:12(unfulfilled),afterany:9(unfulfilled)"
JOBS = [
    job(
        "11", "PENDING", name="waits", user="me", reason="Priority", gpus=8, partition="gpu", dependency=WAITS
    ),
    job("12", "RUNNING", name=HOSTILE, user="me", gpus=4, partition="gpu", elapsed=90),
    job("13", "RUNNING", name="theirs", user="bob", gpus=1, partition="gpu"),
    job(
        "14",
        "FAILED",
        name="broke",
        user="me",
        exit_code=3,
        partition="cpu",
        raw_id=14,
        cause="its disk is full",
    ),
    *(
        job(f"16_{n}", "RUNNING", name="sweep", user="me", array_job_id=16, array_tasks=str(n))
        for n in range(3)
    ),
]


class Fake:
    """Slurm's answers as the pages have them, and all that was asked to change something."""

    def __init__(self) -> None:
        self.looks = 0
        self.asked: list[list[str]] = []
        self.resumed: list[str] = []
        self.submitted: list[tuple[Path, str]] = []
        self.runs: dict[str, Any] = {}
        self.outcome = Submitted("4711", "job 4711 on cluster alpha")

    def run(self, argv: Sequence[str], **_: Any) -> Answer:
        self.asked.append(list(argv))
        return said()

    def resume(self, word: str) -> tuple[bool, str]:
        self.resumed.append(word)
        return True, "job 99"

    def submit(self, path: Path, cluster: str) -> Submitted:
        self.submitted.append((path, cluster))
        return self.outcome

    def status(self, slurm: Slurm, **_: Any) -> StatusReport:
        self.looks += 1
        return StatusReport("alpha", NOW, list(JOBS), [])

    def source(self) -> Source:
        slurm = Slurm(run=self.run, env={"SLURM_CONF": "/nowhere"})  # type: ignore[arg-type]
        find = lambda job: self.runs.get(job.job_id)  # noqa: E731
        return Source(slurm, slurm, "me", find, find, {}, self.resume, pace=3600.0)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr("slurmgpu.jobs.live.status", made.status)
    monkeypatch.setattr("slurmgpu.jobs.cancel.status", made.status)
    monkeypatch.setattr(Slurm, "queue", lambda *_, **__: ([], []))
    return made


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the server was started in, with no settings of anybody around it."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / ".git").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    monkeypatch.delenv("SLURMGPU_CLUSTER", raising=False)
    (folder / "train.py").write_text("print('hello')\n", encoding="utf-8")
    return folder


@pytest.fixture
def guard(fake: Fake, here: Path) -> Guard:
    return guarded(
        Generator(here, fake.submit), Runs(fake.source(), lambda _: ["it used 3 of 4 GPUs"]), TOKEN
    )


@pytest.fixture
def outside(guard: Guard) -> TestClient:
    return TestClient(guard, base_url=HERE, raise_server_exceptions=False)


@pytest.fixture
def inside(outside: TestClient) -> TestClient:
    assert outside.get(f"/?token={TOKEN}").status_code == 200
    outside.base_url = HERE + outside.app.prefix  # type: ignore[attr-defined]
    return outside


def words_of(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


# Who is let in.

PLACES = ["/", "/plan", "/script", "/job-file", "/import", "/submit", "/runs", "/runs/rows", "/run?job=12", "/run/log?job=12",
          "/compare?job=12&job=14",
          "/run/metrics?job=12", "/run/do", "/static/app.js", "/nowhere"]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_without_the_token_nothing_is_told_or_done(outside: TestClient, fake: Fake, place: str) -> None:
    for answer in (outside.get(place), outside.post(place, data={"key": "x"}, headers=OWN)):
        assert answer.status_code == 403
        assert "token" in answer.text
        assert "set-cookie" not in answer.headers
    assert (fake.looks, fake.asked, fake.submitted) == (0, [], [])


@pytest.mark.parametrize("token", ["", "an-old-one", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "ü"])
def test_another_token_opens_nothing_in_the_address_or_in_a_cookie(outside: TestClient, token: str) -> None:
    assert outside.get("/", params={"token": token}).status_code == 403
    name = outside.app.cookie  # type: ignore[attr-defined]
    cookie = f"{name}={token}".encode()
    assert outside.get("/", headers=[(b"cookie", cookie)]).status_code == 403
    two = f"{name}={token}; {name}={TOKEN}".encode()
    assert outside.get("/", headers=[(b"cookie", two)]).status_code == 403


def test_a_token_of_an_ended_server_opens_none_that_comes_after(guard: Guard, inside: TestClient) -> None:
    after = Guard(guard.app, "the-next-token")
    client = TestClient(after, base_url=HERE + after.prefix, cookies=inside.cookies)
    assert client.get("/").status_code == 403
    assert client.get(f"/?token={TOKEN}").status_code == 403


def test_the_token_leaves_the_address_at_once_and_no_other_site_sends_its_cookie(outside: TestClient) -> None:
    answer = outside.get("/run", params={"token": TOKEN, "job": '12"><b>'})
    assert TOKEN not in answer.text
    folder = outside.app.prefix  # type: ignore[attr-defined]
    assert f"url={folder}/run?job=12%22%3E%3Cb%3E" in answer.text
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert f"Path={folder}/" in cookie
    assert outside.get("/", headers={"cookie": cookie.partition(";")[0]}).status_code == 403
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_way_on_from_the_token_stays_on_this_server(outside: TestClient) -> None:
    answer = outside.get(f"{HERE}//evil.example/x?token={TOKEN}")
    folder = outside.app.prefix  # type: ignore[attr-defined]
    assert f"url={folder}/evil.example/x" in answer.text
    # A browser reads this without its tab: as //evil.example.
    assert f"url={folder}/%09/evil.example/" in outside.get(f"{HERE}/%09/evil.example/?token={TOKEN}").text


def test_a_folder_with_a_file_called_like_a_library_submits_all_the_same(here: Path) -> None:
    (here / "click.py").write_text("raise SystemExit('this is not click')\n", encoding="utf-8")
    done = subprocess.run(command_of("--version"), cwd=here, capture_output=True, text=True)
    assert done.stdout.startswith("slurmgpu"), done.stderr


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "10.0.0.1:8000", "",
        "127.0.0.1:8000@evil",
    ],
)  # fmt: skip
def test_a_forged_host_is_refused_token_or_not(inside: TestClient, host: str) -> None:
    assert inside.get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1:8765", "[::1]:99"])
def test_any_port_of_ones_own_computer_leads_here_through_ssh(inside: TestClient, host: str) -> None:
    cookie = "; ".join(f"{name}={value}" for name, value in inside.cookies.items())
    assert inside.get("/", headers={"host": host, "cookie": cookie}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"origin": "null"}, {"origin": "http://evil.example"}, {"origin": "https://127.0.0.1:8000"},
        {"origin": "http://127.0.0.1:8001"}, {"origin": HERE, "sec-fetch-site": "cross-site"},
        {"origin": HERE, "sec-fetch-site": "same-site"},
    ],
)  # fmt: skip
def test_another_sites_page_changes_nothing(inside: TestClient, fake: Fake, headers: dict[str, str]) -> None:
    asked = inside.get("/run/ask?job=12&verb=cancel")
    key = re.search(r'name="key" value="([^"]+)"', asked.text)
    assert key is not None
    before = len(fake.asked)
    for place, form in (
        ("/run/do", {"key": key[1]}),
        ("/submit", {"key": key[1]}),
        ("/plan", {"command": "x"}),
    ):
        assert inside.post(place, data=form, headers=headers).status_code == 403
    assert len(fake.asked) == before
    assert inside.post("/run/do", data={"key": key[1]}, headers=OWN).status_code == 200


def test_another_sites_page_cannot_even_look(inside: TestClient) -> None:
    for site in ("cross-site", "same-site"):
        assert inside.get("/runs", headers={"sec-fetch-site": site}).status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/%2e%2e/errors.py", "/static//etc/passwd",
     "/static/..%5capp.py", "/static/app.js%00.css", "/../../etc/passwd", "/static/.", "/static/"],
)  # fmt: skip
def test_no_path_leads_to_a_file_that_is_not_the_pages_own(inside: TestClient, path: str) -> None:
    answer = inside.get(path)
    assert answer.status_code == (403 if path[:3] == "/.." else 404)
    assert "root:" not in answer.text
    assert "from __future__" not in answer.text
    assert "function" not in answer.text


@pytest.mark.parametrize("place", ["/plan", "/import", "/submit", "/nowhere"])
def test_ten_megabytes_are_refused_and_never_held(inside: TestClient, place: str) -> None:
    handed = 0

    def pieces() -> Iterator[bytes]:
        nonlocal handed
        for _ in range(160):
            handed += 1
            yield b"x" * 65536

    assert inside.post(place, content=b"x" * (10 << 20), headers=OWN).status_code == 413
    assert inside.post(place, content=pieces(), headers=OWN).status_code == 413
    # What is just let through is not planned, nor checked: that would take minutes.
    for name in (b"command", b"more", b"script"):
        body = name + b"=" + b"x" * (LARGEST - 1 - len(name))
        assert inside.post(place, content=body, headers=OWN).status_code in (404, 422)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a=%ff%fe", b"a=1&" * 5000, b"&&&===;;;%%%", b"command=%00"])
def test_a_form_that_is_none_is_an_error_and_no_fault(inside: TestClient, body: bytes) -> None:
    for place in ("/plan", "/import", "/ask-submit", "/submit", "/run/do"):
        assert inside.post(place, content=body, headers=OWN).status_code in (200, 422)


def test_other_methods_are_refused(inside: TestClient) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert inside.request(method, "/", headers=OWN).status_code == 405


def test_every_page_names_only_its_own_server_and_runs_no_script_of_a_text(inside: TestClient) -> None:
    for place in ("/", "/import", "/runs", "/run?job=12", "/compare?job=12&job=14", "/nowhere"):
        answer = inside.get(place)
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "<script>" not in answer.text
        assert "\x1b" not in answer.text
        # Relative, so that a proxy may put all pages below a path of its own; none names another server.
        assert not re.search(r"""(?:src|href|action|hx-get|hx-post)=["'](?:/|[^"'?#]*:)""", answer.text)
        assert not re.search(r"\son[a-z]+=", answer.text)


def test_an_error_at_a_deeper_address_has_its_style_and_its_ways_out(inside: TestClient) -> None:
    page = inside.get("/run/a/nowhere").text
    assert 'href="../../static/style.css"' in page
    assert 'href="../../runs"' in page


def test_what_the_pages_load_is_in_the_package_with_its_licences(inside: TestClient) -> None:
    for place in ("/", "/run?job=12", "/compare?job=12&job=14"):
        for name in set(re.findall(r'(?:src|href)="(static/[^"]+)"', inside.get(place).text)):
            assert inside.get(f"/{name}").status_code == 200, name
    licences = inside.get("/static/LICENSES.txt").text
    assert "htmx" in licences
    assert "uPlot" in licences


# The server itself.


def test_a_port_is_one_of_the_loopback_alone(tmp_path: Path) -> None:
    with listen_on_port(0) as listening:
        listening.listen()
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        assert (
            addresses(listening, "t", "ada", "login1")[1] == f"ssh -N -L {port}:127.0.0.1:{port} ada@login1"
        )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidInput, match=r"--port \d+: cannot be listened on"):
            listen_on_port(taken.getsockname()[1])


def test_it_ends_by_itself_when_nobody_asks_and_takes_its_socket_along(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurmgpu.web.server._LOOK", 0.02)
    path = tmp_path / "web"
    assert serve(guard, listen_on_socket(path), idle=0.05) is True
    assert not path.exists()


def test_connections_of_others_that_ask_nothing_make_room_for_the_owner() -> None:
    state = ServerState()
    config = Config(lambda: None, http=_Connection, ws="none", limit_concurrency=_MOST)  # type: ignore[arg-type]
    loop = asyncio.new_event_loop()
    taken = [_Connection(config, state, {}, loop) for _ in range(3 * _MOST)]
    lines = [MagicMock(spec=asyncio.Transport) for _ in taken]
    for one, line in zip(taken, lines, strict=True):
        one.connection_made(line)
        assert len(state.connections) < _MOST
    assert [line.abort.called for line in (lines[0], lines[-1])] == [True, False]
    loop.close()


def test_a_slow_body_gets_no_longer_than_a_form_takes(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmgpu.web.http._PATIENCE", 0.0)
    sent: list[Any] = []

    async def drop() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"a", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [
        (b"host", b"localhost"),
        (b"origin", b"http://localhost"),
        (b"cookie", f"{guard.cookie}={guard.session}".encode()),
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"{guard.prefix}/plan",
        "query_string": b"",
        "headers": headers,
    }
    asyncio.run(guard(scope, drop, send))
    assert sent[0]["status"] == 408


# The generator.


def rendered(text: str, cluster: str, folder: Path) -> tuple[int, str]:
    file = folder / "job.yaml"
    file.write_text(text, encoding="utf-8")
    done = CliRunner().invoke(cli, ["render", "job.yaml", "--cluster", cluster])
    file.unlink()
    return done.exit_code, done.stdout


def a_form(cluster_name: str, chance: random.Random) -> dict[str, str]:
    """What a person might fill in: mostly what the cluster has, sometimes what it has not."""
    cluster = load_cluster(data_folder("clusters") / f"{cluster_name}.yaml")
    offered = choices(cluster, {})
    values = {
        "command": chance.choice(
            ["python train.py", "python train.py --lr 0.1 'two words'", "./prog --x=1", "bash run.sh"]
        ),
        "resources.gpus": str(chance.choice([1, 1, 1, 2, 4])),
        "resources.time": chance.choice(["90", "1:00:00", "12:00:00", "2-12:30"]),
        "resources.account": (cluster.dialect.account and cluster.dialect.account.example) or "abc",
    }
    for name, known in offered.items():
        if chance.random() < 0.15:
            values[name] = chance.choice(known).value
    some = {
        "name": ["a run", "123", "yes", "größer"], "resources.nodes": ["1", "2"], "resources.cpus_per_gpu": ["2", "4"],
        "resources.memory": ["0", "16G"], "array": ["0-9%4", "1,3"], "comment": ["it's: \"so\" #1", "~"], "debug": ["true"],
        "output": ["logs/%x-%j.log"], "dependency": ["afterok:12"], "resources.exclusive": ["true"],
        "more": ["variables:\r\n  A: $HOME/x\r\n  B: 'no'\r\n", "sbatch: {nice: 100}", "secrets: [HF_TOKEN]\n"],
    }  # fmt: skip
    for name, texts in some.items():
        if chance.random() < 0.2:
            values[name] = chance.choice(texts)
    return values


def agrees(cluster: str, values: dict[str, str], folder: Path) -> bool:
    """Whether there is a script; it has to be the one of ``render``, of the job file and of the command line alike."""
    made = planned(values, cluster, folder)
    code, script = rendered(made.job_file, cluster, folder)
    assert (code == 0) == (not made.problems), (made.problems, values)
    assert made.script == script
    assert "".join(line.text for line in made.lines) == script
    if made.problems:
        return False
    import shlex

    done = CliRunner().invoke(cli, shlex.split(made.command)[1:])
    assert done.exit_code == 0, (made.command, done.stderr)
    assert done.stdout == script, made.command
    return True


CLUSTERS = ["idris-jean-zay", "nersc-perlmutter", "uva-afton", "lumi-g", "mila", "cineca-leonardo"]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_script_is_renders_by_job_file_and_by_command_line(here: Path, cluster: str) -> None:
    chance = random.Random(cluster)
    fits = [agrees(cluster, a_form(cluster, chance), here) for _ in range(2)]
    assert any(fits)


def test_the_page_and_the_download_hold_the_same_script(inside: TestClient, here: Path) -> None:
    values = {"cluster": "uva-afton", "command": "python train.py 'a  b' '<x>&amp;'", "resources.gpus": "2",
              "resources.account": "mine", "resources.time": "1:00:00"}  # fmt: skip
    shown = inside.post("/plan", data=values, headers=OWN).text
    loaded = inside.get("/", params=values).text
    file = inside.get("/script", params=values)
    job_file = inside.get("/job-file", params=values).text
    assert "attachment" in file.headers["content-disposition"]
    assert rendered(job_file, "uva-afton", here) == (0, file.text)
    for page in (shown, loaded):
        (pre,) = re.findall(r'<pre id="script"[^>]*>(.*?)</pre>', page, re.S)
        assert html.unescape(re.sub(r"</?span[^>]*>", "", pre)) == file.text


def test_every_option_has_the_planners_reason_on_it_and_beside_it(inside: TestClient) -> None:
    values = {
        "cluster": "uva-afton",
        "command": "python train.py",
        "resources.gpus": "2",
        "resources.account": "mine",
    }
    page = inside.post("/plan", data=values, headers=OWN).text
    options = re.findall(r'<span class="option" title="([^"]+)">#SBATCH ([^\n<]+)', page)
    lines = re.findall(r"^#SBATCH |>#SBATCH ", page, re.M)
    assert len(options) == len(lines) > 5
    for why, option in options:
        assert f"{why}</td>" in page
        assert f"<code>{option}</code>" in page


@pytest.mark.parametrize(
    ("values", "field", "words"),
    TABLES["test_what_is_wrong_is_said_at_its_field_in_the_planners_words"],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_field_in_the_planners_words(
    inside: TestClient, values: dict[str, str], field: str, words: str
) -> None:
    form = {"cluster": "uva-afton", "command": "python train.py", "resources.account": "mine", **values}
    page = inside.post("/plan", data=form, headers=OWN).text
    wrong = dict(re.findall(r'<p class="error" id="error-([a-z-]+)" hx-swap-oob="true">([^<]+)</p>', page))
    identity = field.replace(".", "-").replace("_", "-")
    assert words in html.unescape(wrong.get(identity, "")), wrong
    whole = inside.get("/", params=form).text
    assert words in html.unescape(re.search(rf'id="error-{identity}">([^<]*)</p>', whole)[1])  # type: ignore[index]
    assert re.search(rf'id="{identity}"[^>]*aria-invalid="true"', whole)


def test_the_nearest_fit_is_a_button_and_what_it_fills_in_fits(here: Path) -> None:
    values = {
        "command": "python train.py",
        "resources.account": "mine",
        "resources.gpus": "2",
        "resources.time": "40-0",
    }
    made = planned(values, "uva-afton", here)
    assert made.ways
    for way in made.ways:
        assert not planned(values | dict(way.values), "uva-afton", here).problems, way


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        ("no GPU is asked for; --gpus 1, or resources.gpus, asks for one", "no GPU is asked for; GPUs: 1 asks for one"),
        ("give -A/--account, or resources.account in the job file, or not", "fill in the field 'Account', or not"),
        ("or slurmgpu submit --gpus 2 -- python train.py", "or slurmgpu submit --gpus 2 -- python train.py"),
    ],
)  # fmt: skip
def test_hints_name_fields_where_the_command_line_has_options(hint: str, words: str) -> None:
    assert in_words_of_the_form(hint) == words


def test_the_form_offers_what_the_cluster_has_and_keeps_what_it_has_not(inside: TestClient) -> None:
    cluster = load_cluster(data_folder("clusters") / "uva-afton.yaml")
    page = inside.get("/", params={"cluster": "uva-afton", "resources.partition": "elsewhere"}).text
    (select,) = re.findall(r'<select id="resources-partition".*?</select>', page, re.S)
    assert set(re.findall(r'value="([^"]*)"', select)) == {"", "elsewhere", *cluster.partitions}
    assert "elsewhere (not on this cluster)" in select


def test_a_link_fills_the_form_in_as_it_was(inside: TestClient) -> None:
    values = {
        "cluster": "mila",
        "command": "python train.py",
        "resources.gpus": "2",
        "debug": "true",
        "more": "variables:\n  A: b",
    }
    link = re.search(r'id="link" href="([^"]+)"', inside.post("/plan", data=values, headers=OWN).text)
    page = inside.get(html.unescape(link[1]).removeprefix(".")).text  # type: ignore[index]
    assert 'value="python train.py"' in page
    assert re.search(r'name="debug" value="true" checked', page)
    assert "variables:\n  A: b</textarea>" in page
    assert re.search(r'<option value="mila" selected>', page)


@pytest.mark.parametrize("cluster", ["/etc/passwd", "../x", "x.yaml", "nope"])
def test_a_cluster_is_a_name_and_no_file(inside: TestClient, cluster: str) -> None:
    page = inside.get("/", params={"cluster": cluster})
    assert "a profile&#39;s name is expected here" in page.text or "no such profile" in page.text
    assert inside.post("/plan", data={"cluster": cluster, "command": "x"}, headers=OWN).status_code == 422


def test_submission_asks_first_and_happens_once(inside: TestClient, fake: Fake, here: Path) -> None:
    values = {"cluster": "uva-afton", "command": "python train.py", "resources.gpus": "2", "resources.account": "mine",
              "file": "first.yaml"}  # fmt: skip
    asked = inside.post("/ask-submit", data=values, headers=OWN)
    assert "to uva-afton?" in words_of(asked.text)
    assert "2 GPUs" in words_of(asked.text)
    assert fake.submitted == []
    assert not (here / "first.yaml").exists()
    key = re.search(r'name="key" value="([^"]+)"', asked.text)[1]  # type: ignore[index]
    done = inside.post("/submit", data={"key": key}, headers=OWN)
    assert "Job 4711 was submitted" in words_of(done.text)
    assert fake.submitted == [(here / "first.yaml", "uva-afton")]
    assert (here / "first.yaml").read_text(encoding="utf-8") == planned(
        values | {"file": ""}, "uva-afton", here
    ).job_file
    assert 'value="first-2.yaml"' in done.text, "the next job is not kept in this one's file"
    again = inside.post("/submit", data={"key": key}, headers=OWN)
    assert again.status_code == 422
    assert len(fake.submitted) == 1
    assert inside.post("/submit", data={"key": ""}, headers=OWN).status_code == 422


@pytest.mark.parametrize(
    ("outcome", "words", "stays"),
    [
        (Submitted("", "no such class"), "It was not submitted.", False),
        (Submitted("", "no answer", unknown=True), "Nobody knows yet whether it was submitted.", True),
    ],
)
def test_what_was_surely_refused_leaves_no_job_file_in_the_way_of_the_next_try(
    inside: TestClient, fake: Fake, here: Path, outcome: Submitted, words: str, stays: bool
) -> None:
    fake.outcome = outcome
    asked = inside.post("/ask-submit", data={"command": "true", "file": "first.yaml"}, headers=OWN).text
    key = re.search(r'name="key" value="([^"]+)"', asked)[1]  # type: ignore[index]
    assert words in words_of(inside.post("/submit", data={"key": key}, headers=OWN).text)
    assert (here / "first.yaml").exists() is stays


@pytest.mark.parametrize(
    ("code", "unknown"), [(0, False), (1, False), (2, False), (3, True), (4, False), (-9, True)]
)
def test_only_a_sure_refusal_is_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, unknown: bool
) -> None:
    ended = subprocess.CompletedProcess([], code, "12\n", "said")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    assert submit(tmp_path / "job.yaml", "") == Submitted("" if code else "12", "said", unknown)


@pytest.mark.parametrize(
    "name",
    [
        "../job.yaml",
        "/tmp/job.yaml",
        "job.sh",
        ".job.yaml",
        "a/b.yaml",
        "job.yaml\n",
        "x" * 200 + ".yaml",
        "slurmgpu.yaml",
    ],
)
def test_a_job_file_is_written_into_the_folder_and_nowhere_else(here: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a name for a job file"):
        save_job(here, name, "command: x\n")


def test_a_file_with_other_lines_is_never_replaced(here: Path) -> None:
    (here / "job.yaml").write_text("command: mine\n", encoding="utf-8")
    (here / "link.yaml").symlink_to("/nowhere/else")
    for name in ("job.yaml", "link.yaml"):
        with pytest.raises(InvalidInput):
            save_job(here, name, "command: other\n")
    assert (here / "job.yaml").read_text(encoding="utf-8") == "command: mine\n"
    assert save_job(here, "job.yaml", "command: mine\n") == here / "job.yaml"


def test_a_dropped_script_is_checked_and_becomes_its_form(inside: TestClient, here: Path) -> None:
    script = "#!/bin/bash\r\n#SBATCH --gres=gpu:2\r\n#SBATCH --time=1:00:00\r\necho hi\r\n#SBATCH --mem=4G\r\npython train.py\r\n"
    page = inside.post("/import", data={"script": script}, headers=OWN).text
    said_of_it = words_of(page)
    assert "line 5" in said_of_it
    link = html.unescape(re.search(r'href="\.(/\?[^"]+)"', page)[1])  # type: ignore[index]
    shown = html.unescape(re.search(r'<pre id="imported"[^>]*>(.*?)</pre>', page, re.S)[1])  # type: ignore[index]
    code, expected = rendered(shown, "generic", here)
    assert code == 0
    form = inside.get(link).text
    (pre,) = re.findall(r'<pre id="script"[^>]*>(.*?)</pre>', form, re.S)
    assert html.unescape(re.sub(r"</?span[^>]*>", "", pre)) == expected
    assert inside.post("/import", data={"script": "hello"}, headers=OWN).status_code == 200
    assert inside.post("/import", data={"script": " "}, headers=OWN).status_code == 422


def test_a_dropped_script_is_checked_for_the_cluster_that_is_in_use_here(
    inside: TestClient, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen() -> str:
        return re.search(r'<option value="([^"]*)" selected', inside.get("/import").text)[1]  # type: ignore[index]

    script = (
        "#!/bin/bash\n#SBATCH --partition=nosuch\n#SBATCH --gres=gpu:1\n#SBATCH --time=5\npython train.py\n"
    )
    monkeypatch.setenv("SLURMGPU_CLUSTER", "uva-afton")
    assert chosen() == "uva-afton"
    own = here / "own.yaml"
    own.write_text(
        'name: own\nslurm: {release: "24.05"}\npartitions:\n  gpu:\n    '
        "nodes: [{count: 1, cpus: 8, memory: 64G, gpus: 1, gpu_type: a100}]\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("SLURMGPU_CLUSTER", str(own))
    assert "own (in use here)" in words_of(inside.get("/import").text)
    page = inside.post("/import", data={"script": script, "cluster": chosen()}, headers=OWN).text
    assert "'nosuch'" in words_of(page.partition("The job file")[0])
    link = html.unescape(re.search(r'href="\.(/\?[^"]+)"', page)[1])  # type: ignore[index]
    form = inside.get(link).text
    assert "own (in use here)" in words_of(form)
    assert "has no partition" in re.search(r'id="error-resources-partition"[^>]*>([^<]*)', form)[1]  # type: ignore[index]


def test_a_training_task_that_is_not_there_is_said_beside_the_form(here: Path) -> None:
    (here / "task.py").write_text("class Digits: ...\n", encoding="utf-8")
    made = planned({"resources.gpus": "1", "more": "train: {task: task.py:Digitz}"}, "generic", here)
    assert any("did you mean task.py:Digits?" in one for one in made.notes)


def test_a_job_file_that_is_there_is_opened_in_the_form(inside: TestClient, here: Path) -> None:
    text = (ROOT / "examples/digits/job.yaml").read_text(encoding="utf-8")
    (here / "task.py").write_text("class Digits: ...\n", encoding="utf-8")
    page = inside.post("/import", data={"script": text, "cluster": "uva-afton"}, headers=OWN).text
    assert "What check says" not in page
    link = html.unescape(re.search(r'href="\./(\?[^"]+)"', page)[1])  # type: ignore[index]
    form = inside.get("/" + link + "&resources.account=mine").text
    (pre,) = re.findall(r'<pre id="script"[^>]*>(.*?)</pre>', form, re.S)
    code, expected = rendered(text.replace("nodes: 2", "nodes: 2\n  account: mine"), "uva-afton", here)
    assert code == 0
    assert html.unescape(re.sub(r"</?span[^>]*>", "", pre)) == expected
    for other in ("hello: world\n", "name: [\n", "#!/bin/bash\nname: x\n"):
        shown = inside.post("/import", data={"script": other}, headers=OWN).text
        assert "What check says" in shown


def test_a_new_job_file_gets_a_name_that_nothing_has(inside: TestClient, here: Path) -> None:
    def offered() -> str:
        return re.search(r'id="file" name="file" value="([^"]+)"', inside.get("/").text)[1]  # type: ignore[index]

    assert offered() == "job.yaml"
    (here / "job.yaml").write_text("command: mine\n", encoding="utf-8")
    (here / "job-2.yaml").symlink_to("/nowhere")
    assert offered() == "job-3.yaml"
    with pytest.raises(InvalidInput) as told:
        save_job(here, "job.yaml", "command: other\n")
    assert "such as job-3.yaml" in (told.value.hint or "")


def test_a_jobs_data_survive_the_form(here: Path) -> None:
    data = {
        "name": "a", "resources": {"gpus": 2, "time": "1:00:00", "gres": ["lscratch:1"], "exclusive": True, "memory": "64G"},
        "environment": {"modules": ["cuda"]}, "launch": "srun", "command": ["python", "a b.py", "1"], "debug": False,
        "variables": {"A": ""},
    }  # fmt: skip
    values = to_form(data)
    assert values["resources.gpus"] == "2"
    again, _ = read_form(values)
    assert again == data | {"command": "python 'a b.py' 1"}
    assert set(values) <= {field.name for field in FIELDS}


# The runs.


def test_the_list_has_ones_own_jobs_and_nobody_elses(inside: TestClient) -> None:
    page = words_of(inside.get("/runs").text)
    for word in ("waits", "PENDING", "broke", "FAILED", "its disk is full", "sweep"):
        assert word in page
    assert "theirs" not in page
    assert "<script>alert(1)</script>\\x1b[2J" in page
    assert "16_1" not in page
    assert "16_1" in inside.get("/runs/rows?tasks=true").text
    found = words_of(inside.get("/runs/rows", params={"words": "broke"}).text)
    assert "broke" in found
    assert "sweep" not in found


@pytest.mark.parametrize(
    "place",
    [
        "/run", "/run/now", "/run/log", "/run/metrics", "/run/report", "/run/why", "/run/ask", "/run/graph",
        "/run/tasks", "/run/tasks/metrics",
    ],
)  # fmt: skip
def test_jobs_of_others_and_jobs_that_are_none_are_not_shown(inside: TestClient, place: str) -> None:
    for name in ("13", "999", "", "../12", "12; rm", HOSTILE):
        answer = inside.get(place, params={"job": name, "verb": "cancel"})
        assert answer.status_code == 422
        assert "is not among your jobs" in html.unescape(answer.text)


def test_sixteen_pages_cost_one_look(inside: TestClient, fake: Fake) -> None:
    for _ in range(16):
        inside.get("/runs")
        inside.get("/runs/rows")
        for part in ("now", "metrics", "log", "graph", "tasks", "tasks/metrics"):
            inside.get(f"/run/{part}?job=16")
    assert fake.looks == 1
    assert fake.asked == []


def test_a_job_that_failed_says_what_failed_first(inside: TestClient) -> None:
    assert "its disk is full" in words_of(inside.get("/run?job=14").text)


def test_a_log_is_followed_from_where_it_was_left_and_begins_again_where_it_was_cut(tmp_path: Path) -> None:
    from slurmgpu.jobs.log_files import Log

    path = tmp_path / "12.out"
    log = Log("12", path)
    assert next_piece(log, None).absent
    path.write_bytes(b"one\n\x1b[31mtwo\x1b[0m\n\x1b]0;x\x07 10%\r 20%\nth\xc3")
    first = next_piece(log, None)
    assert first.text.startswith("one\ntwo\n")
    assert " 20%\nth" in first.text
    assert "10%" not in first.text
    assert "\x1b" not in first.text
    path.write_bytes(path.read_bytes() + b"\xbcree\n")
    assert next_piece(log, first.position).text == "üree\n"
    path.write_bytes(b"anew\n")
    begun = next_piece(log, first.position)
    assert (begun.text, begun.anew) == ("anew\n", True)


@pytest.mark.parametrize("number", ["9" * 5000, "-1", "\N{ARABIC-INDIC DIGIT THREE}", "x"])
def test_a_log_or_a_place_in_it_that_is_no_number_is_said(inside: TestClient, number: str) -> None:
    for asked in ({"log": number}, {"position": number}):
        assert inside.get("/run/log", params={"job": "12", **asked}).status_code == 422


def test_a_long_log_begins_at_its_end_and_comes_in_pieces(tmp_path: Path) -> None:
    from slurmgpu.jobs.log_files import Log

    path = tmp_path / "12.out"
    path.write_text("".join(f"line {n}\n" for n in range(100_000)), encoding="utf-8")
    piece = next_piece(Log("12", path), None)
    assert piece.text.endswith("line 99999\n")
    assert piece.text.startswith("line 99700\n")
    assert len(next_piece(Log("12", path), 0).text) <= 1 << 18


def test_a_change_asks_first_counts_once_and_only_for_what_was_asked(inside: TestClient, fake: Fake) -> None:
    asked = inside.get("/run/ask?job=12&verb=cancel")
    assert "Cancel job 12" in words_of(asked.text)
    assert fake.asked == []
    key = re.search(r'name="key" value="([^"]+)"', asked.text)[1]  # type: ignore[index]
    assert inside.post("/submit", data={"key": key}, headers=OWN).status_code == 422
    inside.post("/run/do", data={"key": key, "job": "14", "verb": "resume"}, headers=OWN)
    assert any(argv[0] == "scancel" and "12" in " ".join(argv) for argv in fake.asked)
    before = list(fake.asked)
    assert inside.post("/run/do", data={"key": key}, headers=OWN).status_code == 422
    assert fake.asked == before
    assert fake.resumed == []


@pytest.mark.parametrize("verb", ["cancel", "resume", "nonsense", ""])
def test_what_does_not_go_with_the_state_is_not_even_asked(inside: TestClient, fake: Fake, verb: str) -> None:
    name = "12" if verb == "resume" else "14"
    assert inside.get("/run/ask", params={"job": name, "verb": verb}).status_code == 422


def test_the_report_is_shown(inside: TestClient) -> None:
    assert "it used 3 of 4 GPUs" in inside.get("/run/report?job=14").text


def test_the_first_page_comes_without_asking_slurm(inside: TestClient, fake: Fake) -> None:
    assert inside.get("/").status_code == 200
    assert (fake.looks, fake.asked) == (0, [])


def test_an_idle_page_is_noticed(guard: Guard, inside: TestClient) -> None:
    guard.last = time.monotonic() - 100
    inside.get("/static/app.js")
    assert time.monotonic() - guard.last < 50
    guard.last = before = time.monotonic() - 100
    inside.cookies.clear()
    inside.get("/")
    assert guard.last == before


def test_a_socket_is_its_owners_alone_and_one_that_was_left_behind_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "new" / "web"
    before = os.umask(0)
    try:
        with listen_on_socket(path) as first:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            first.listen()
            with pytest.raises(InvalidInput, match="cannot be listened on"):
                listen_on_socket(path)
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    with listen_on_socket(path) as second:
        address, ssh = addresses(second, "t", "ada", "login1")
    assert address == "http://127.0.0.1:8765/?token=t"
    assert ssh == f"ssh -N -L 8765:{path} ada@login1"
    file = tmp_path / "file"
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(InvalidInput, match="cannot be listened on"):
        listen_on_socket(file)
    assert file.read_text(encoding="utf-8") == "mine"


class _Found:
    """The run of a job, as far as the pages read it."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = str(folder)
        self.stdout = str(folder / "12.out")
        self.stderr = None
        self.steps: tuple[str, ...] = ()

    def as_of(self, _: int) -> _Found:
        return self


def a_row(step: int, restart: int = 0, kind: str = "train", **values: float | None) -> str:
    head = {"schema": "slurmgpu.metrics/1", "time": 1.0, "rank": 0, "restart": restart, "step": step}
    return json.dumps({**head, "kind": kind, "values": values}) + "\n"


def a_sweep(folder: Path, fake: Fake) -> None:
    """Files of the array's tasks 0 and 1 of which one has the lower loss."""
    for task, loss in ((0, 2.0), (1, 0.5)):
        (folder / str(task)).mkdir()
        rows = [a_row(step, loss=loss + 1 / step, samples_per_second=9.0) for step in range(1, 9)]
        rows.append(a_row(8, kind="eval", loss=loss, accuracy=0.75, seconds=1.0, epoch=1))
        (folder / str(task) / "metrics.jsonl").write_text("".join(rows), encoding="utf-8")
    fake.runs.update({f"16_{task}": _Found(folder) for task in range(3)})


def test_the_plots_have_the_newest_start_of_each_step_and_holes_for_what_is_no_number(
    inside: TestClient, fake: Fake, tmp_path: Path
) -> None:
    rows = [a_row(1, 0, loss=3.0, samples_per_second=10.0), a_row(2, 0, loss=9.0),
            a_row(2, 1, loss=2.0, samples_per_second=11.0), a_row(3, 1, loss=None),
            a_row(2, 1, "eval", loss=2.5), "broken\n"]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(rows), encoding="utf-8")
    (tmp_path / "12.out").write_text("its log\n", encoding="utf-8")
    fake.runs["12"] = _Found(tmp_path)
    told = inside.get("/run/metrics?job=12").json()
    assert (told["steps"], told["loss"], told["speed"]) == ([1, 2, 3], [3.0, 2.0, None], [10.0, 11.0, None])
    assert told["evals"] == [[2, 2.5]]
    assert inside.get("/run/log?job=12").json()["text"] == "its log\n"
    for wrong in ("log=7", "log=-1", "log=x", "position=-1", "position=x"):
        assert inside.get(f"/run/log?job=12&{wrong}").status_code == 422
    assert str(tmp_path) in inside.get("/run?job=12").text


def test_runs_are_compared_by_what_differs(inside: TestClient, fake: Fake) -> None:
    page = inside.get("/compare?job=12&job=14&job=12")
    shown = words_of(page.text)
    assert "2 runs beside each other" in shown
    assert "state RUNNING FAILED its disk is full" in shown
    assert "partition gpu cpu" in shown
    for wrong in ("", "job=12", "job=12&job=13", "job=12&job=999", "&".join(f"job={n}" for n in range(9))):
        assert inside.get(f"/compare?{wrong}").status_code == 422
    assert fake.asked == []


def test_an_array_shows_its_tasks_with_their_losses(inside: TestClient, fake: Fake, tmp_path: Path) -> None:
    a_sweep(tmp_path, fake)
    assert "run/tasks?job=16" in inside.get("/run?job=16").text

    def tasks(order: str) -> list[list[str]]:
        shown = inside.get(f"/run/tasks?job=16&order={order}").text
        return [words_of(row).split() for row in re.findall(r"<tr>.*?</tr>", shown, re.S)[1:]]

    first = ["0", "RUNNING", "8", "2.125", "2", "0.75", "-"]
    second = ["1", "RUNNING", "8", "0.625", "0.5", "0.75", "-"]
    third = ["2", "RUNNING", "-", "-", "-", "-", "-"]
    assert tasks("") == [first, second, third]
    assert tasks("loss") == [second, first, third]
    told = inside.get("/run/tasks/metrics?job=16").json()
    assert (told["tasks"], told["losses"], told["results"]) == ([0, 1], [2.125, 0.625], [2.0, 0.5])
    assert [(one["job"], one["steps"], one["evals"]) for one in told["jobs"]] == [
        ("0", list(range(1, 9)), [[8, 2.0]]),
        ("1", list(range(1, 9)), [[8, 0.5]]),
    ]
    for place in ("/run/tasks?job=12", "/run/tasks?job=13", "/run/tasks/metrics?job=13"):
        assert inside.get(place).status_code == 422
    assert fake.asked == []


def test_jobs_that_wait_for_one_another_are_drawn_in_their_order(
    inside: TestClient, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 14 has ended: what it waited for is known from its plan alone.
    plan = SimpleNamespace(option={"dependency": "afterok:11"}.get)
    monkeypatch.setattr("slurmgpu.web.related.read_plan", lambda _: plan)
    fake.runs["14"] = _Found(tmp_path)
    for job_id in ("11", "12", "14"):
        shown = inside.get(f"/run/graph?job={job_id}").text
        drawn = re.findall(r'href="run\?job=(\d+)".*?<rect x="(\d+)"', shown, re.S)
        assert [name for name, _ in sorted(drawn, key=lambda one: int(one[1]))] == ["12", "11", "14"]
        assert shown.count("marker-end") == 2
        assert re.search(
            rf'job={job_id}" id="box-{job_id}" class="box [a-z]+ here" aria-current="page"', shown
        )
        said = words_of(shown)
        assert "11 waits waits for 12 to end well, 9 to end" in said
        assert "14 broke waited for 11 to end well" in said
        assert "not in the list any more: 9" in said
        assert "<script" not in shown
        assert "\x1b" not in shown
    assert inside.get("/run/graph?job=16").text.strip() == ""
    assert inside.get("/run/graph?job=13").status_code == 422
    assert fake.asked == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_on_its_socket_until_a_signal(here: Path, tmp_path: Path, number: int) -> None:
    path = tmp_path / "s" / "web"
    command = [sys.executable, "-m", "slurmgpu", "web", "--socket", str(path), "--login-node", "login1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
        address = served.stdout.readline().strip()
        token = address.partition("token=")[2]
        transport = httpx2.HTTPTransport(uds=str(path))
        with httpx2.Client(transport=transport, base_url="http://localhost") as client:
            for _ in range(2400):
                try:
                    assert client.get("/").status_code == 403
                    break
                except httpx2.TransportError:
                    time.sleep(0.05)
            welcome = client.get("/", params={"token": token}).text
            assert "Batch script" in client.get(welcome.partition("url=")[2].partition('"')[0]).text
        served.send_signal(number)
        _, said_of_it = served.communicate(timeout=120)
    assert served.returncode == (0 if number == signal.SIGINT else 143)
    assert f"ssh -N -L 8765:{path} " in said_of_it
    assert "@login1" in said_of_it
    assert not path.exists()
    assert token not in said_of_it
