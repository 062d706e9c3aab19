"""What another real user of the machine gets of ada's `slurmgpu web`, over loopback and over a Unix socket: nothing."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.two_users import Person, Tool, World, a_world, open_folder, require_two_users, tool_for_all

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("uvicorn", reason="the extra `web` is not installed")

pytestmark = pytest.mark.long

SECRET = "adas-next-paper"

# Sends each request as it is, and prints what came back; where it gets no connection, why.
ASK = """
import json, socket, sys
place, requests = json.load(open(sys.argv[1]))
told = []
for request, more in requests:
    one = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
    one.settimeout(20)
    try:
        one.connect(place if isinstance(place, str) else tuple(place))
        one.sendall(request.encode())
        for _ in range(more):
            one.sendall(b"x" * (1 << 20))
    except OSError as error:
        if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
            told.append(f"no connection: {error.strerror}")
            continue
    answer = b""
    try:
        while piece := one.recv(65536):
            answer += piece
    except OSError:
        pass
    told.append(answer.decode("latin-1"))
json.dump(told, sys.stdout)
"""


@pytest.fixture(scope="module")
def tool() -> Iterator[Tool]:
    require_two_users()
    with open_folder() as folder:
        yield tool_for_all(folder / "tool", "rich", "starlette", "uvicorn", "h11", "anyio", "idna", "sniffio")


@pytest.fixture
def world(tool: Tool) -> Iterator[World]:
    with a_world(tool) as made:
        row = {"JobArrayID": "71", "JobID": "71", "UserName": "54001", "User": "54001", "State": "RUNNING",
               "Name": SECRET, "JobName": SECRET, "Submit": "4000000000"}  # fmt: skip
        made.slurm([row], [row])
        yield made


@contextmanager
def serving(ada: Person, *words: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Ada's server, and the address that it has told her alone."""
    code = "import sys; sys.path.remove(''); from slurmgpu.cli import main; main()"
    process = ada.start(ada.tool.python, "-c", code, "web", *words, cwd=ada.home)
    try:
        address = process.stdout.readline().strip()
        assert address, process.communicate()
        yield process, address
    finally:
        process.terminate()
        process.communicate(timeout=120)


def asked(one: Person, place: object, requests: list[tuple[str, int]]) -> list[str]:
    """What a user is answered."""
    file = one.write(one.home / "requests.json", json.dumps([place, requests]))
    done = one.run(one.tool.python, "-IS", "-c", ASK, file, cwd=one.home)
    file.unlink()
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def get(path: str, *headers: str, host: str = "127.0.0.1") -> str:
    return "\r\n".join([f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers, "", ""])


def post(path: str, length: int, *headers: str) -> str:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Origin: http://127.0.0.1", "Connection: close",
                        f"Content-Length: {length}", *headers, "", ""])  # fmt: skip


def token_of(address: str) -> str:
    return parse_qs(urlsplit(address).query)["token"][0]


def runs_page(welcome: str) -> str:
    """The request of a page by who has been let in."""
    (line,) = (line for line in welcome.split("\r\n") if line.lower().startswith("set-cookie"))
    return get(
        line.partition("Path=")[2].partition(";")[0] + "runs",
        f"Cookie: {line.partition(': ')[2].partition(';')[0]}",
    )


PAGES = ["/", "/runs", "/runs/rows", "/run?job=71", "/run/log?job=71", "/run/graph?job=71", "/script", "/import",
         "/static/app.js",
         "/run/ask?job=71&verb=cancel", "/static/../app.py", "/..%2f..%2fetc/passwd", "//etc/passwd"]  # fmt: skip


@pytest.mark.chosen
def test_over_loopback_another_user_is_told_nothing_and_nothing_runs(world: World) -> None:
    ada, mallory = world.ada, world.mallory
    with serving(ada) as (process, address):
        place = ["127.0.0.1", urlsplit(address).port]
        token = token_of(address)
        requests = [(get(path), 0) for path in PAGES]
        requests += [(get(f"/?token={other}"), 0) for other in ("", "x" * len(token), token[:-1])]
        requests += [
            (get("/", f"Cookie: slurmgpu-{'0' * 8}={token}"), 0)
        ]  # the token under a name of mallory's
        requests += [(get(f"/?token={token}", host="evil.example"), 0)]  # not even with it
        requests += [(get("/", "Origin: http://evil.example"), 0)]
        requests += [
            (post(path, 10 << 20), 10) for path in ("/plan", "/submit", "/import", "/run/do", "/ask-submit")
        ]
        requests += [("\0\1\2 nonsense\r\n\r\n", 0), ("GET / HTTP/1.1\r\n" + "A: b\r\n" * 20000, 0)]
        told = asked(mallory, place, requests)
        assert len(told) == len(requests)
        for (request, _), answer in zip(requests, told, strict=True):
            status = answer.split(" ")[1] if answer else "none"
            assert status in ("400", "403", "404", "413", "none"), (request[:60], answer[:200])
            assert SECRET not in answer
            assert token not in answer
            assert "set-cookie" not in answer.lower()
            assert str(ada.home) not in answer
        # It goes on, and its owner is let in, and sees what others did not.
        (welcome,) = asked(ada, place, [(get(f"/?token={token}"), 0)])
        (runs,) = asked(ada, place, [(runs_page(welcome), 0)])
        assert SECRET in runs
        # Nor does the system tell what the token is, or files.
        looked = mallory.run(
            "sh", "-c", f"cat /proc/{process.pid}/cmdline /proc/{process.pid}/environ; ps axewwww", cwd=mallory.home
        )  # fmt: skip
        assert "slurmgpu" in looked.stdout
        assert token not in looked.stdout + looked.stderr
        found = mallory.run("grep", "-rlF", token, world.folder, cwd=mallory.home)
        assert found.stdout == ""
    assert not (ada.home / "sbatch").exists()
    assert not (ada.home / "scancel").exists()
    assert not list(ada.home.glob("*.yaml"))


def test_a_token_of_a_server_that_has_ended_opens_none_after_it_on_the_same_port(world: World) -> None:
    with serving(world.ada) as (_, address):
        place, old = ["127.0.0.1", urlsplit(address).port], token_of(address)
        (welcome,) = asked(world.mallory, place, [(get(f"/?token={old}"), 0)])
        assert welcome.startswith("HTTP/1.1 200")  # whoever has it is let in: it is all that there is
    with serving(world.ada, "--port", str(place[1])) as (_, address):
        requests = [(get(f"/?token={old}"), 0), (runs_page(welcome), 0)]
        assert [one[:12] for one in asked(world.mallory, place, requests)] == ["HTTP/1.1 403"] * 2


def test_a_port_is_not_shared_with_a_socket_of_another_user(world: World) -> None:
    from slurmgpu.web.server import listen_on_port

    with world.ada.acting():
        listening = listen_on_port(0)
    take = f"""
import socket
for kind in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, kind, 1)
    try:
        one.bind(("127.0.0.1", {listening.getsockname()[1]})); one.listen(); print("taken")
    except OSError:
        pass
"""
    done = world.mallory.run(world.mallory.tool.python, "-c", take, cwd=world.mallory.home)
    listening.close()
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("where", ["scratch/web", "scratch/adas/web", "ada/web"])
@pytest.mark.chosen
def test_a_unix_socket_is_not_even_opened_by_another_user(world: World, where: str) -> None:
    path = world.folder / where
    world.ada.home.chmod(0o755)
    with serving(world.ada, "--socket", path) as (_, address):
        token = token_of(address)
        request = [(get(f"/?token={token}"), 0)]
        for _ in range(1000):
            if asked(world.ada, str(path), request)[0].startswith("HTTP/1.1 200"):
                break
            time.sleep(0.1)
        else:
            raise AssertionError("it does not serve")
        assert asked(world.mallory, str(path), request) == ["no connection: Permission denied"]
        gone = world.mallory.run(
            "sh", "-c", f"rm -f {path} || mv {path} {world.scratch}/x", cwd=world.mallory.home
        )
        assert gone.returncode != 0
        assert path.is_socket()


@pytest.mark.parametrize("where", ["lab/web", "lab/sub/web", "open/web"])
def test_no_socket_is_made_where_another_user_can_replace_it(world: World, where: str) -> None:
    (world.folder / "open").mkdir()
    (world.folder / "open").chmod(0o777)
    code = "import sys; sys.path.remove(''); from slurmgpu.cli import main; main()"
    path = world.folder / where
    done = world.ada.run(world.ada.tool.python, "-c", code, "web", "--socket", path, cwd=world.ada.home)
    assert done.returncode == 2, done
    assert "somebody else could put a socket of theirs there" in done.stderr
    assert not path.exists()


def test_a_socket_of_another_user_in_the_way_is_not_used(world: World) -> None:
    path = world.scratch / "web"
    with world.mallory.acting(), socket.socket(socket.AF_UNIX) as squat:
        squat.bind(str(path))
        squat.listen()
        path.chmod(0o777)
        code = "import sys; sys.path.remove(''); from slurmgpu.cli import main; main()"
    done = world.ada.run(world.ada.tool.python, "-c", code, "web", "--socket", path, cwd=world.ada.home)
    assert done.returncode == 2, done
    assert done.stdout == ""
    shutil.rmtree(world.scratch, ignore_errors=True)
