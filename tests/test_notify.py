"""Messages to webhooks at a script's end: what each service gets, and that nothing tells the address."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from slurmgpu.cli.group import run
from slurmgpu.diagnosis import webhooks
from slurmgpu.diagnosis.webhooks import FORMS, Message, Unsent, address_of, form_of, send
from slurmgpu.models.job_parts import Notify
from tests.test_causes import RANKED, Ended, printing, run_dir
from tests.webhook import TOKEN, Webhook, webhook

__all__ = ["run_dir"]

KEY_ERROR = "first cause: rank 5 on node2: KeyError: 'labels' (train.py, line 3)"
HOSTILE = "a@everyone <!channel> `x` **b** [c](http://d) \u202e\x1b[31m" + "long" * 200


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


def asked(run_dir: Path, **values: Any) -> None:
    settings = Notify.model_validate({"webhook": "HOOK", **values}).model_dump(mode="json")
    (run_dir / "code" / "notify.json").write_text(json.dumps(settings))


def ended(run_dir: Path, body: str, address: str, **environment: str) -> Ended:
    variables = {
        "HOOK": address, "SLURM_JOB_NAME": "train", "SLURM_CLUSTER_NAME": "big", "HOME": str(run_dir / "home"),
        "https_proxy": "", "http_proxy": "", "all_proxy": "", **environment,
    }  # fmt: skip
    done = Ended(run_dir, body, **variables)
    for file in run_dir.rglob("*"):
        assert file.is_dir() or TOKEN.encode() not in file.read_bytes(), file
    return done


def refusal(done: Ended) -> str:
    (line,) = [line for line in done.log.read_text().splitlines() if "no notification" in line]
    return line.removeprefix("slurmgpu: no notification was sent: ")


def texts(form: str, body: dict[str, Any]) -> str:
    if form == "slack":
        return str(body["text"])
    if form == "discord":
        return str(body["content"])
    if form == "ntfy":
        return f"{body['title']}\n{body['message']}"
    if form == "teams":
        (card,) = body["attachments"]
        assert card["contentType"] == "application/vnd.microsoft.card.adaptive"
        return "\n".join(block["inlines"][0]["text"] for block in card["content"]["body"])
    return str(body["text"])


@pytest.mark.parametrize("form", sorted(FORMS))
def test_each_service_gets_the_first_cause_of_a_failure(run_dir: Path, hook: Webhook, form: str) -> None:
    asked(run_dir, form=form)
    done = ended(run_dir, printing(RANKED, 1), hook.address)
    assert done.code == 1
    (received,) = hook.received
    text = texts(form, received.body)
    assert re.match(r"(```\n)?job 71 \(train\) on big failed after \d+ s \(exit code 1\)\n", text)
    assert KEY_ERROR in text
    assert "\nfix: " in text
    assert f"log: {done.log} (node {socket.gethostname()})" in text
    assert received.path == ("/hooks/" if form == "ntfy" else f"/hooks/{TOKEN}")
    assert (received.body.get("topic") == TOKEN) is (form == "ntfy")
    assert received.headers["Content-Type"] == "application/json"
    assert done.said[0] == f"slurmgpu: {KEY_ERROR}"
    assert "no notification" not in done.log.read_text()


def test_an_unwritable_run_directory_costs_neither_message_nor_cause(run_dir: Path, hook: Webhook) -> None:
    asked(run_dir)
    for name in ("exit_code.71", "cause.71.json"):  # as on a full disk: they cannot be written
        (run_dir / name).mkdir()
    done = ended(run_dir, printing(RANKED, 1), hook.address)
    assert (done.code, done.said[0]) == (1, f"slurmgpu: {KEY_ERROR}")
    (received,) = hook.received
    assert received.body["first_cause"]["rank"] == 5
    assert [path.name for path in run_dir.iterdir() if path.name.startswith(".")] == []


def test_a_program_gets_the_facts_as_json(run_dir: Path, hook: Webhook) -> None:
    asked(run_dir)
    environment = {
        "SLURM_ARRAY_JOB_ID": "70",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_RESTART_COUNT": "2",
        "SLURMD_NODENAME": "gpu7",
    }
    started = str(int(time.time()) - 7300)
    ended(run_dir, printing(RANKED, 1), hook.address, SLURM_JOB_START_TIME=started, **environment)
    body = hook.received[0].body
    cause = body.pop("first_cause")
    assert (cause["rank"], cause["host"], cause["kind"]) == (5, "node2", "python-exception")
    assert "\nrestarts: 2\n" in body.pop("text")
    assert 7300 <= body.pop("seconds") < 7900
    assert body == {
        "schema": "slurmgpu.notification/1", "event": "failed", "job_id": "70_3", "name": "train", "cluster": "big",
        "host": "gpu7", "exit_code": 1, "restart": 2, "logs": [f"{run_dir}/logs/71.out"],
        "run_dir": str(run_dir),
    }  # fmt: skip


EARLIER, LATER = "2026-01-01T00:00:00", "2126-01-01T00:00:00"
ENDS = ["completed", "failed", "stopped", "requeued"]
AGAIN = "slurmgpu: stopped by time at step 9; requeueing, restart {} of at most 3\n"


@pytest.mark.parametrize(
    ("body", "on", "event"),
    [
        ("exit 0\n", ["completed"], "completed"),
        ("exit 0\n", ["failed"], None),
        ("exit 75\n", ["stopped"], "stopped"),
        (printing("slurmgpu: stopped by TERM; not requeued: x; to go on: y\n", 143), ["stopped"], "stopped"),
        (printing(AGAIN.format(2), 75), ["requeued"], "requeued"),
        (printing(AGAIN.format(2), 75), ["completed", "failed", "stopped"], None),
        (printing(AGAIN.format(1), 3), ["requeued", "failed"], "failed"),  # an earlier start said that
        (
            f"echo '*** JOB 71 ON n1 CANCELLED AT {EARLIER} DUE TO JOB REQUEUE ***'\nexit 0\n",
            ENDS,
            "completed",
        ),
        (f"echo '*** JOB 71 ON n1 CANCELLED AT {EARLIER} DUE TO PREEMPTION ***'\nexit 3\n", ENDS, "failed"),
        (f"echo '*** JOB 71 ON n1 CANCELLED AT {LATER} DUE TO JOB REQUEUE ***'\nexit 0\n", ENDS, "requeued"),
        ("echo '*** JOB 71 ON n1 CANCELLED AT 2126-01-01T00:00:00 ***'\nexit 0\n", ["failed"], "failed"),
    ],
)
def test_only_the_ends_that_were_asked_for_are_told(
    run_dir: Path, hook: Webhook, body: str, on: list[str], event: str | None
) -> None:
    asked(run_dir, on=on)
    ended(run_dir, body, hook.address, SLURM_RESTART_COUNT="1")
    assert [received.body["event"] for received in hook.received] == ([event] if event else [])


def test_a_job_without_notify_sends_nothing_and_a_local_run_neither(run_dir: Path, hook: Webhook) -> None:
    assert ended(run_dir, "exit 0\n", hook.address).log.read_text() == ""
    asked(run_dir)
    ended(run_dir, printing(RANKED, 1), hook.address, SLURMGPU_LOCAL_JOB="71")
    assert hook.received == []


@pytest.mark.parametrize("form", sorted(FORMS))
def test_text_of_a_job_pings_nobody_and_is_bounded(run_dir: Path, hook: Webhook, form: str) -> None:
    asked(run_dir, form=form)
    raised = RANKED.replace("'labels'", HOSTILE)
    ended(run_dir, printing(raised, 1), hook.address, SLURM_JOB_NAME=HOSTILE)
    text = texts(form, hook.received[0].body)
    assert len(text) <= 2000 + len("job 71") * 100
    assert "\x1b" not in text
    assert "\u202e" not in text
    if form in ("slack", "discord", "teams"):
        assert "@everyone" not in text
    if form == "slack":
        assert "<" not in text
    if form == "discord":
        assert len(text) <= 2000
        assert text.count("`") == 6
        assert hook.received[0].body["allowed_mentions"] == {"parse": []}


def length_of(body: Mapping[str, Any]) -> int:
    return len(json.dumps(body, ensure_ascii=False).encode())


LIMITS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    # A longer message is turned into a file, which many servers refuse, and longer JSON is refused.
    "ntfy": lambda body: len(body["message"].encode()) <= 4096 and length_of(body) <= 8192,
    "discord": lambda body: len(body["content"]) <= 2000,
    "slack": lambda body: len(body["text"]) <= 40_000 and not (body["unfurl_media"] or body["unfurl_links"]),
    "teams": lambda body: length_of(body) <= 28 << 10,
}
"""What a service takes, by its own documentation."""


@pytest.mark.parametrize("form", sorted(LIMITS))
@pytest.mark.parametrize("letter", ["\u7f51", '"', "\\"])
def test_a_long_message_in_any_alphabet_fits_the_service(hook: Webhook, form: str, letter: str) -> None:
    message = Message("failed", "job 7 failed", (letter * 450,) * 4, {})
    send(address_of(hook.address), message, form)
    (received,) = hook.received
    assert LIMITS[form](received.body)
    assert letter * 400 in texts(form, received.body)
    assert int(received.headers["Content-Length"]) <= 8192


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_what_cannot_be_sent_is_one_line_in_the_log_and_no_exit_code(run_dir: Path, hook: Webhook) -> None:
    asked(run_dir)
    nowhere = f"http://127.0.0.1:{free_port()}/{TOKEN}"
    body = printing(RANKED, 7)
    told = []
    for address in (nowhere, f"http://example.org/{TOKEN}", f"https://a b/{TOKEN}", f"ftp://h/{TOKEN}", ""):
        done = ended(run_dir, body, address)
        assert done.code == 7
        told.append(refusal(done))
        done.log.unlink()
    for status, location in ((404, ""), (302, nowhere), (307, hook.address)):
        hook.status, hook.location = status, location
        told.append(refusal(ended(run_dir, body, hook.address)))
        done.log.unlink()
    assert told == [
        "Connection refused",
        "the address in HOOK is not used: it begins with http://, and anybody on the way could read it; it must be https://",
        "the address in HOOK is not used: it has a blank, a line break or a letter that no address has, or is too long",
        "the address in HOOK is not used: it is not an address of the form https://HOST/PATH",
        f"the secret HOOK is neither set nor in {run_dir}/home/.config/slurmgpu/secrets/HOOK",
        "the server answered 404",
        "the server answered 302, and sends elsewhere, which is not followed",
        "the server answered 307, and sends elsewhere, which is not followed",
    ]
    assert len(hook.received) == 3


def replace_in_reader(run_dir: Path, name: str, old: str, new: str) -> None:
    """Change a module of the reader that the job has."""
    file = run_dir / "code" / "slurmgpu_diagnosis.zip"
    with zipfile.ZipFile(file) as packed:
        texts = {one: packed.read(one).decode() for one in packed.namelist()}
    assert texts[f"slurmgpu_diagnosis/{name}"].count(old) == 1
    texts[f"slurmgpu_diagnosis/{name}"] = texts[f"slurmgpu_diagnosis/{name}"].replace(old, new)
    with zipfile.ZipFile(file, "w") as packed:
        for one, text in texts.items():
            packed.writestr(one, text)


@pytest.mark.parametrize("how", ["server", "python", "no python", "no reader", "broken settings"])
def test_what_hangs_or_is_missing_ends_within_its_bound(run_dir: Path, hook: Webhook, how: str) -> None:
    asked(run_dir)
    script = run_dir / "code" / "at_end.sh"
    text = script.read_text()
    said = {
        "server": "no answer within 1 s", "python": "no answer within 15 s", "broken settings": "JSONDecodeError",
    }.get(how, "no Python 3.9 or newer here can send it")  # fmt: skip
    if how == "server":
        hook.hangs = True
        assert webhooks.SECONDS == 4.0
        replace_in_reader(run_dir, "webhooks.py", "SECONDS = 4.0", "SECONDS = 1.0")
    elif how == "python":
        text = text.replace("by_python 15 ", "by_python 1 ").replace(
            "import sys\nif", "import time, sys; time.sleep(100)\nif"
        )
    elif how == "no python":
        text = re.sub(r"for python in .*; do", "for python in no-such-python; do", text)
    elif how == "no reader":
        (run_dir / "code" / "slurmgpu_diagnosis.zip").write_bytes(b"rubbish")
    else:
        (run_dir / "code" / "notify.json").write_text("{")
    script.write_text(text)
    done = ended(run_dir, "exit 0\n", hook.address)
    assert (done.code, refusal(done)) == (0, said)


@pytest.mark.parametrize("moment", ["while it is sent", "before it can be ignored"])
def test_a_message_is_sent_although_slurm_requeues_the_job(run_dir: Path, hook: Webhook, moment: str) -> None:
    asked(run_dir)
    script = run_dir / "code" / "at_end.sh"
    once = f'"{run_dir / "once"}"'
    term = {
        "while it is sent": "os.kill(os.getppid(), 15)",  # timeout, which passes it on
        "before it can be ignored": f'os.path.exists({once}) or (open({once}, "w"), signal.signal(15, signal.SIG_DFL), '
        "os.kill(os.getpid(), 15))",
    }[moment]
    script.write_text(script.read_text().replace("import sys\nif", f"import os, signal, sys; {term}\nif"))
    done = ended(run_dir, "exit 0\n", hook.address)
    assert (done.code, len(hook.received)) == (0, 1), done.log.read_text()


def test_the_address_is_in_a_file_only_its_owner_reads(run_dir: Path, hook: Webhook, tmp_path: Path) -> None:
    asked(run_dir)
    secrets = tmp_path / "home" / ".config" / "slurmgpu" / "secrets"
    secrets.mkdir(parents=True)
    file = secrets / "HOOK"
    file.write_text(f"{hook.address}\n")
    file.chmod(0o644)
    done = ended(run_dir, "exit 0\n", "", HOME=str(tmp_path / "home"))
    assert refusal(done) == f"{file} is open to others, or somebody else's (chmod 600)"
    file.chmod(0o600)
    ended(run_dir, "exit 0\n", "", HOME=str(tmp_path / "home"))
    assert len(hook.received) == 1


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", "key", "-out", "cert"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("this openssl makes no certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=answer)
        thread.start()
        message = Message("completed", "job 1", (), {})
        with pytest.raises(Unsent, match="certificate is not valid, or not known here"):
            send(address_of(f"https://localhost:{server.getsockname()[1]}/{TOKEN}"), message)
        thread.join()


@pytest.mark.parametrize(
    ("host", "form"),
    [
        ("hooks.slack.com", "slack"), ("discord.com", "discord"), ("prod-1.westeurope.logic.azure.com", "teams"),
        ("me.webhook.office.com", "teams"), ("ntfy.sh", "ntfy"), ("ntfy.lab.example.org", "ntfy"),
        ("example.org", "json"), ("hooks.slack.com.example.org", "json"), ("notdiscord.com", "json"),
    ],
)  # fmt: skip
def test_the_form_is_told_from_the_host(host: str, form: str) -> None:
    assert form_of(address_of(f"https://{host}/x").host) == form


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        asked_for = []

        def refuse() -> None:
            connection, _ = proxy.accept()
            with connection:
                asked_for.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(Unsent, match="the proxy refused"):
            send(address_of(f"https://hook.example.org/{TOKEN}"), Message("completed", "job 1", (), {}))
        thread.join()
    assert asked_for[0].startswith(b"CONNECT hook.example.org:443 ")
    assert TOKEN.encode() not in asked_for[0]


def test_a_login_in_the_address_goes_into_a_header(hook: Webhook) -> None:
    address = hook.address.replace("://", "://me:p%40ss@")
    send(address_of(address), Message("completed", "job 1", (), {}), "ntfy")
    assert hook.received[0].headers["Authorization"] == "Basic bWU6cEBzcw=="


def test_the_forms_of_a_job_file_are_those_that_can_be_sent() -> None:
    literal = next(one for one in get_args(Notify.model_fields["form"].annotation) if one is not type(None))
    assert set(get_args(literal)) == set(FORMS)


def test_an_address_where_a_name_belongs_is_refused_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOOK", f"http://example.org/{TOKEN}")
    address = f"https://hooks.slack.com/{TOKEN}"
    for value in (address, f"{{webhook: '{address}'}}", f"{{url: '{address}'}}", f"['{address}']", "HOOK"):
        (tmp_path / "job.yaml").write_text(f"resources: {{gpus: 1}}\ncommand: echo\nnotify: {value}\n")
        with pytest.raises(SystemExit):
            run(["submit", "job.yaml"])
        said = capsys.readouterr()
        assert "error: " in said.err
        assert "notify" in said.err
        assert TOKEN not in said.err + said.out
    assert not (tmp_path / "runs").exists()
