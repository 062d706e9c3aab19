"""Debian's Chromium, driven by Selenium: started without a screen, and waited for."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.web.export import download, find, parts

__all__ = ["BACKSPACE", "ENTER", "TAB", "axe", "chromium", "need", "parts_or_skip", "text_of", "until"]

PARTS = Path("~/.cache/slurmgpu/browser").expanduser()
# Keys, as WebDriver writes them.
BACKSPACE, TAB, ENTER = "\ue003", "\ue004", "\ue007"


def need() -> None:
    """Skip where there is no browser to drive; with CI=true fail."""
    missing = []
    if _program() is None or shutil.which("chromedriver") is None:
        missing.append("Chromium and chromedriver (.ci/install-browser)")
    if importlib.util.find_spec("selenium") is None:
        missing.append("selenium (pip install selenium)")
    if importlib.util.find_spec("axe_playwright_python") is None:
        missing.append("axe (pip install --no-deps axe-playwright-python)")
    if missing:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"not here: {', '.join(missing)}")


def parts_or_skip() -> Path:
    """The folder with what a page without a server needs; with CI=true it is downloaded, elsewhere skip where it is not there."""
    folder = PARTS
    for part in parts():
        if os.environ.get("CI") == "true":
            download(part, folder)
        if not (folder / part.name).is_file():
            pytest.skip(f"{part.name} is not in {folder} (slurmgpu web --export DIR --fetch)")
        find(part, folder)
    return folder


def _program() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def chromium(*more: str) -> Iterator[Any]:
    """A browser of its own, without a screen, with ``more`` options."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = _program() or ""
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--window-size=1400,1000",
        *more,
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    made = webdriver.Chrome(options=options, service=service)
    made.set_script_timeout(300)  # of a busy machine
    try:
        yield made
    finally:
        made.quit()


def axe() -> str:
    """The script of axe-core, which the package for Playwright carries; Playwright itself is not needed."""
    found = importlib.util.find_spec("axe_playwright_python")
    assert found.origin is not None
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def until(so: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What a function gives as soon as it gives something; while it raises, it is asked again."""
    end = time.monotonic() + seconds
    while True:
        try:
            if found := so():
                return found
        except Exception:
            if time.monotonic() > end:
                raise
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.03)


def text_of(page: Any, identity: str) -> str:
    """The text of an element; empty where there is none."""
    found = page.execute_script(
        "const e = document.getElementById(arguments[0]); return e && e.textContent;", identity
    )
    return found or ""
