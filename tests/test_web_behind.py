# ruff: noqa: F811 - fixtures of another file
"""``slurmgpu web --behind``: behind a reverse proxy, and as the app of Open OnDemand in ``examples/ondemand``."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("uvicorn", reason="the extra `web` is not installed")
pytest.importorskip("httpx2", reason="Starlette's client for tests needs it")

import httpx2
import uvicorn
from ruamel.yaml import YAML
from starlette.testclient import TestClient

from slurmgpu.cli.group import cli
from slurmgpu.errors import InvalidInput
from slurmgpu.web.generator import Generator
from slurmgpu.web.http import Behind
from slurmgpu.web.runs import Runs
from slurmgpu.web.server import guarded, listen_on_port, token_of
from tests.browser import chromium, need, text_of, until
from tests.portal import Portal, portal
from tests.test_web import TOKEN, Fake, fake, here  # noqa: F401

APP = Path(__file__).resolve().parent.parent / "examples" / "ondemand"
ORIGIN, PREFIX = "https://ondemand.example.edu", "/node/c001/4711"
BEHIND = Behind.of(f"{ORIGIN}{PREFIX}/", "c001:4711", "me")
OWN = {"origin": ORIGIN, "x-forwarded-user": "me"}


@pytest.fixture
def outside(fake: Fake, here: Path) -> TestClient:
    guard = guarded(Generator(here, fake.submit), Runs(fake.source(), lambda _: ["a report"]), TOKEN, BEHIND)
    return TestClient(guard, base_url="http://c001:4711", raise_server_exceptions=False)


def let_in(client: TestClient) -> TestClient:
    answer = client.post(f"{PREFIX}/", data={"token": TOKEN}, headers=OWN)
    assert answer.status_code == 200
    assert TOKEN not in answer.text
    assert f'url={PREFIX}/"' in answer.text
    cookie = answer.headers["set-cookie"]
    assert f"Path={PREFIX}/" in cookie
    assert cookie.endswith("; Secure")
    name, _, value = cookie.partition(";")[0].partition("=")
    client.headers["cookie"] = f"{name}={value}"
    return client


@pytest.mark.parametrize(
    "host", ["c001:4711", "C001:4711", "ondemand.example.edu", "ondemand.example.edu:443"]
)
@pytest.mark.parametrize("prefix", [PREFIX, ""])
def test_pages_are_there_by_either_path_and_either_name(outside: TestClient, host: str, prefix: str) -> None:
    inside = let_in(outside)
    for place in ("/", "/runs", "/static/app.js"):
        answer = inside.get(prefix + place, headers={"host": host, "x-forwarded-user": "me"})
        assert answer.status_code == 200, place
    made = inside.post(
        f"{prefix}/plan", data={"cluster": "uva-afton", "command": "x"}, headers={**OWN, "host": host}
    )
    assert made.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:4711"}, {"host": "localhost:4711"}, {"host": "c002:4711"}, {"host": "evil.example"},
        {"x-forwarded-user": "bob"}, {"origin": "http://ondemand.example.edu"}, {"origin": "http://c001:4711"},
        {"origin": "null"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    ],
)  # fmt: skip
def test_another_name_another_user_and_another_site_are_refused_token_or_not(
    outside: TestClient, fake: Fake, headers: dict[str, str]
) -> None:
    assert outside.post(f"{PREFIX}/", data={"token": TOKEN}, headers={**OWN, **headers}).status_code == 403
    inside = let_in(outside)
    for place in ("/", "/runs"):
        assert inside.get(PREFIX + place, headers={**OWN, **headers}).status_code == 403
    assert inside.post(f"{PREFIX}/run/do", data={"key": "x"}, headers={**OWN, **headers}).status_code == 403
    assert fake.looks == 0


def test_a_wrong_token_or_a_form_without_the_origin_opens_nothing(outside: TestClient) -> None:
    for data in ({"token": "x"}, {"token": ""}, {}, {"token": [TOKEN, TOKEN]}, {"tokens": TOKEN}):
        answer = outside.post(f"{PREFIX}/", data=data, headers=OWN)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    assert outside.post(f"{PREFIX}/", data={"token": TOKEN}).status_code == 403
    assert outside.post(f"{PREFIX}/", content=b"token=" + b"x" * (2 << 20), headers=OWN).status_code == 413


def test_a_folder_without_its_slash_leads_to_the_one_with_it(outside: TestClient) -> None:
    answer = outside.get(f"{PREFIX}?a=b", headers=OWN, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, f"{PREFIX}/?a=b")


def test_a_path_that_only_begins_alike_is_no_page(outside: TestClient) -> None:
    inside = let_in(outside)
    for path in (f"{PREFIX}x/runs", f"{PREFIX}{PREFIX}/runs", "/node/c001/4712/runs"):
        assert inside.get(path, headers=OWN).status_code == 404


def test_without_a_proxy_a_form_with_the_token_opens_nothing(fake: Fake, here: Path) -> None:
    guard = guarded(Generator(here, fake.submit), Runs(fake.source(), lambda _: []), TOKEN)
    client = TestClient(guard, base_url="http://127.0.0.1:8000")
    assert (
        client.post("/", data={"token": TOKEN}, headers={"origin": "http://127.0.0.1:8000"}).status_code
        == 403
    )
    assert (
        client.get("/", params={"token": TOKEN}, headers={"host": "ondemand.example.edu"}).status_code == 403
    )


@pytest.mark.parametrize(
    "url",
    ["ondemand.example.edu/node/a/1", "ftp://a.example/node/a/1", "https://a.example", "https://a.example/", "https:///x",
     "https://me@a.example/x", "https://a.example/x?y", "https://a.example/x#y", "https://a.example:x/y", "https://a.example/<x>"],
)  # fmt: skip
def test_an_address_that_is_none_is_said_with_one_that_is(url: str) -> None:
    with pytest.raises(InvalidInput, match="--behind") as error:
        Behind.of(url, "c001:4711", "me")
    assert "https://ondemand.example.edu/node/HOST/PORT" in str(error.value.hint)


def test_a_token_comes_from_a_file_that_nobody_else_can_read_and_is_long(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(InvalidInput, match="cannot be read"):
        token_of(file)
    file.write_text("x" * 40 + "\n", encoding="utf-8")
    file.chmod(0o640)
    with pytest.raises(InvalidInput, match="others can read it"):
        token_of(file)
    file.chmod(0o600)
    assert token_of(file) == "x" * 40
    for text in ("short", "", "two words of more than thirty-two letters", "ü" * 40):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidInput, match="--token-file"):
            token_of(file)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "c001"], "--listen goes with --behind"),
        (["--behind", "https://a.example/x", "--socket", "s"], "--behind goes with a port"),
    ],
)
def test_options_that_mean_nothing_without_each_other_are_refused(words: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["web", *words])
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_port_of_the_system_and_a_machine_that_is_not_this_one_are_refused() -> None:
    with pytest.raises(InvalidInput, match="--port 2: ports below 1024 are the system's"):
        listen_on_port(2)
    with pytest.raises(InvalidInput, match=r"--listen no\.such\.host\.invalid: is no name of this machine"):
        listen_on_port(0, "no.such.host.invalid")
    with pytest.raises(InvalidInput, match=r"--listen 192\.0\.2\.1, --port 0: cannot be listened on"):
        listen_on_port(0, "192.0.2.1")


# As Open OnDemand's app.


RUBY = """
require 'erb'; require 'json'; require 'ostruct'
given = JSON.parse(ARGV[1])
context = OpenStruct.new(given)
scope = binding
given.each { |name, value| scope.local_variable_set(name, value) }
print ERB.new(File.read(ARGV[0]), trim_mode: '-').result(scope)
"""


@pytest.fixture(scope="module")
def erb() -> Any:
    """What a template of the app becomes; its values are what Open OnDemand hands to it."""
    ruby = shutil.which("ruby")
    if ruby is None:
        pytest.skip("ruby is not installed (apt install ruby)")

    def made(name: str, **values: str) -> str:
        done = subprocess.run(
            [ruby, "-e", RUBY, str(APP / name), json.dumps(values)],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    return made


def test_the_forms_of_the_app_are_yaml_that_ask_for_what_its_scripts_use(erb: Any) -> None:
    form = YAML(typ="safe").load(erb("form.yml.erb"))
    assert set(form["form"]) <= {"folder", "bc_num_hours", "bc_account"}
    assert set(form["attributes"]) == set(form["form"])
    assert form["attributes"]["folder"]["value"] == str(Path.home())
    submit = YAML(typ="safe").load(erb("submit.yml.erb"))
    assert submit["batch_connect"]["template"] == "basic"
    manifest = YAML(typ="safe").load((APP / "manifest.yml").read_text(encoding="utf-8"))
    assert manifest["role"] == "batch_connect"
    used = set(
        re.findall(r"context\.(\w+)", (APP / "template" / "script.sh.erb").read_text(encoding="utf-8"))
    )
    assert used <= set(form["form"])


# What the template `basic` of Open OnDemand does around the app's scripts.
BASIC = """
cd "$SESSION"
export host port
find_port () { echo "$FREE_PORT"; }
create_passwd () { tr -cd a-zA-Z0-9 </dev/urandom | head -c "$1"; }
host=127.0.0.1
source before.sh
./script.sh &
SCRIPT_PID=$!
(umask 077; printf 'host: %s\\nport: %s\\npassword: %s\\n' "$host" "$port" "$password" >connection.yml)
wait ${SCRIPT_PID}
"""


@pytest.fixture
def session(erb: Any, here: Path, tmp_path: Path) -> Iterator[tuple[Portal, dict[str, str]]]:
    """A session of the app, started as a job would start it, behind a proxy."""
    from slurmgpu.jobs.select import current_user

    folder = tmp_path / "session"
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "before.sh").write_text(erb("template/before.sh.erb"), encoding="utf-8")
    script = erb("template/script.sh.erb", folder=str(here))
    bin_folder = Path(sys.executable).parent
    with portal() as proxy:
        proxy.user = current_user()
        for line, ours in (
            ("module load slurmgpu", f"export PATH={bin_folder}:$PATH"),
            ("https://ondemand.example.edu", proxy.address),
        ):
            assert line in script
            script = script.replace(line, ours)
        (folder / "script.sh").write_text(script, encoding="utf-8")
        (folder / "script.sh").chmod(0o755)
        environ = {**os.environ, "SESSION": str(folder), "FREE_PORT": str(port)}
        with subprocess.Popen(
            ["bash", "-c", BASIC], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        ) as job:  # fmt: skip
            try:
                told: dict[str, str] = {}

                def is_there() -> bool:
                    assert job.poll() is None, job.stdout and job.stdout.read()
                    told.update(
                        YAML(typ="safe").load((folder / "connection.yml").read_text(encoding="utf-8"))
                    )
                    with socket.create_connection(("127.0.0.1", port), 1):
                        return True

                until(is_there)
                assert (folder / "token").stat().st_mode & 0o077 == 0
                yield proxy, {name: str(value) for name, value in told.items()}
            finally:
                os.killpg(job.pid, 15)
                said = job.stdout.read() if job.stdout else ""
                assert told.get("password", "?") not in said


@pytest.mark.long
def test_a_sessions_button_serves_its_owner_alone(session: tuple[Portal, dict[str, str]], erb: Any) -> None:
    proxy, told = session
    button = erb("view.html.erb", **told)
    action = re.search(r'action="([^"]+)" method="post"', button)
    token = re.search(r'name="token" value="([^"]+)"', button)
    assert action is not None
    assert token[1] == told["password"]
    own = {"origin": proxy.address}
    with httpx2.Client(base_url=proxy.address) as client:
        assert client.get(action[1]).status_code == 403
        owner, proxy.user = proxy.user, "somebody-else"
        assert client.post(action[1], data={"token": token[1]}, headers=own).status_code == 403
        proxy.user = owner
        opened = client.post(action[1], data={"token": token[1]}, headers=own)
        assert opened.status_code == 200
        assert token[1] not in opened.text
        assert "Batch script" in client.get(action[1]).text
        form = {
            "cluster": "uva-afton",
            "command": "python train.py",
            "resources.gpus": "2",
            "resources.account": "mine",
        }
        made = client.post(f"{action[1]}plan", data=form, headers=own)
        assert "--gres=gpu:2" in made.text


@pytest.mark.long
@pytest.mark.parametrize(("kind", "keeps_host"), [("node", True), ("rnode", False)])
def test_behind_the_proxy_a_form_becomes_a_job(fake: Fake, here: Path, kind: str, keeps_host: bool) -> None:
    need()
    listening = listen_on_port(0, "127.0.0.1")
    port = listening.getsockname()[1]
    with portal() as proxy, chromium() as page:
        proxy.keeps_host = keeps_host
        path = f"/{kind}/127.0.0.1/{port}"
        proxy.session = (
            f'<form action="{path}/" method="post"><input type="hidden" name="token" value="{TOKEN}">'
            '<button id="open">Open</button></form>'
        )
        behind = Behind.of(proxy.address + path, f"127.0.0.1:{port}", "me")
        guard = guarded(
            Generator(here, fake.submit), Runs(fake.source(), lambda _: ["a report"]), TOKEN, behind
        )
        server = uvicorn.Server(
            uvicorn.Config(guard, log_level="error", lifespan="off", ws="none", http="h11")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            page.get(f"{proxy.address}/session")
            page.find_element("id", "open").click()
            until(lambda: page.find_elements("id", "job"))
            assert page.current_url == f"{proxy.address}{path}/"
            page.get(
                f"{proxy.address}{path}/?cluster=uva-afton&command=python+train.py&resources.account=mine"
            )
            page.find_element("id", "resources-gpus").send_keys("2")
            until(lambda: "--gres=gpu:2" in text_of(page, "script"))
            page.find_element("css selector", "#to-submit button").click()
            until(lambda: "Yes, submit it" in text_of(page, "question"))
            page.find_element("css selector", "#question form button").click()
            until(lambda: "Job 4711" in text_of(page, "question"))
            page.find_element("link text", "Runs").click()
            until(lambda: "waits" in text_of(page, "rows"))
            page.find_element("link text", "12").click()
            until(lambda: page.find_elements("id", "now"))
            wrong = [one["message"] for one in page.get_log("browser") if one["level"] == "SEVERE"]
            # Where the server is not open yet, and what a browser asks of the portal itself.
            assert [one for one in wrong if "favicon" not in one] == []
        finally:
            server.should_exit = True
            thread.join(10)
            listening.close()
    assert len(fake.submitted) == 1
