"""Ten random forms for each of twenty clusters in Chromium: the script of the page is ``slurmgpu render``'s, byte for byte.

``slurmgpu web`` runs as a person starts it; the pages without a server are opened from a web site.
"""

from __future__ import annotations

import functools
import http.server
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("uvicorn", reason="the extra `web` is not installed")
pytest.importorskip("httpx2", reason="the forms come from the tests of the server, which need it")

from slurmgpu.web import export as exporting
from tests.browser import chromium, need, parts_or_skip, until
from tests.test_web import a_form
from tests.web_forms import CLUSTERS, as_render_says, fill

pytestmark = pytest.mark.long
FORMS = 10


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of a user without settings, on a machine without any."""
    top = tmp_path_factory.mktemp("forms")
    folder = top / "work"
    (folder / ".git").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CONFIG_HOME", str(top / "config"))
        patch.setenv("SLURMGPU_SITE", str(top / "site"))
        patch.delenv("SLURMGPU_CLUSTER", raising=False)
        yield folder


@pytest.fixture(scope="module")
def served(here: Path) -> Iterator[tuple[Any, str]]:
    """A browser that has been let in, and the address."""
    need()
    command = [sys.executable, "-m", "slurmgpu", "web"]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            opened = server.stdout.readline().strip()
            with chromium() as page:
                page.get(opened)
                until(lambda: "token" not in page.current_url)
                yield page, page.current_url
        finally:
            server.terminate()


@pytest.mark.parametrize("cluster", [pytest.param(CLUSTERS[0], marks=pytest.mark.chosen), *CLUSTERS[1:]])
def test_the_server_shows_what_render_prints(served: tuple[Any, str], here: Path, cluster: str) -> None:
    page, address = served
    page.get(f"{address}?{urlencode({'cluster': cluster})}")
    chance = random.Random(f"browser {cluster}")
    scripts = 0
    for _ in range(FORMS):
        shown = fill(page, a_form(cluster, chance))
        scripts += as_render_says(shown, cluster, here)
        assert not shown.scrolled, "reasons are beside the values"
    assert scripts


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class _Pages:
    """Pages without a server, one a cluster. While one is typed into, Python starts in the next.

    The next one's window is opened by the one before it: so they share a process of the browser, which then compiles
    Python once.
    """

    def __init__(self, page: Any, top: Path, address: str, work: Path, parts: Path) -> None:
        self.page = page
        self._top, self._address, self._work, self._parts = top, address, work, parts
        self._windows: dict[str, str] = {}

    def of(self, cluster: str) -> Any:
        """The browser with the window of a cluster before it; windows of earlier ones are closed."""
        if cluster not in self._windows:
            self._open(cluster)
        self.page.switch_to.window(self._windows[cluster])
        following = CLUSTERS[CLUSTERS.index(cluster) + 1 :][:1]
        for one in set(following) - set(self._windows):
            self._open(one)
        for one in set(self._windows) - {cluster, *following}:
            self.page.switch_to.window(self._windows.pop(one))
            self.page.close()
        self.page.switch_to.window(self._windows[cluster])
        until(lambda: self.page.execute_script("return slurmgpuOffline.answered()"), 400)
        return self.page

    def _open(self, cluster: str) -> None:
        exporting.export(self._top / cluster, cluster, self._work, self._parts)
        address = f"{self._address}{cluster}/index.html"
        if not self._windows:
            self.page.get(address)
            self._windows[cluster] = self.page.current_window_handle
            return
        before = set(self.page.window_handles)
        self.page.execute_script("window.open(arguments[0])", address)
        (self._windows[cluster],) = until(lambda: set(self.page.window_handles) - before)


@pytest.fixture(scope="module")
def pages(here: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Pages]:
    need()
    parts = parts_or_skip()
    top = tmp_path_factory.mktemp("pages")
    handler = functools.partial(_Quiet, directory=str(top))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, chromium() as page:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exporting, "packed", functools.cache(exporting.packed))  # the same Python in all
            yield _Pages(page, top, f"http://127.0.0.1:{server.server_port}/", here, parts)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("cluster", [pytest.param(CLUSTERS[0], marks=pytest.mark.chosen), *CLUSTERS[1:]])
def test_a_page_without_a_server_shows_what_render_prints(pages: _Pages, here: Path, cluster: str) -> None:
    page = pages.of(cluster)
    chance = random.Random(f"page {cluster}")
    scripts = sum(as_render_says(fill(page, a_form(cluster, chance)), cluster, here) for _ in range(FORMS))
    assert scripts
