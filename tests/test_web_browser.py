# ruff: noqa: F811 - fixtures of another file
"""The pages of ``slurmgpu web`` in Debian's Chromium: typed into, read, and looked at by axe."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("httpx2", reason="Starlette's client for tests needs it")
pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")

import uvicorn
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from slurmgpu.files.data import data_folder
from slurmgpu.web.app import guarded
from slurmgpu.web.form import FIELDS
from slurmgpu.web.generator import Generator
from slurmgpu.web.guard import Guard
from slurmgpu.web.runs import Runs
from slurmgpu.web.server import listen_on_port
from tests.test_web import TOKEN, Fake, a_form, fake, here, rendered  # noqa: F401

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
AXE = os.environ.get("SLURMGPU_AXE", "")
"""The file axe.min.js of the npm package axe-core, where it is to be asked."""
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="no Chromium here (apt install chromium chromium-driver)"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield made
    made.quit()


@pytest.fixture
def address(fake: Fake, here: Path) -> Iterator[str]:
    guard: Guard = guarded(Generator(here, fake.submit), Runs(fake.source(), lambda _: ["a report"]), TOKEN)
    listening = listen_on_port(0)
    server = uvicorn.Server(uvicorn.Config(guard, log_level="error", lifespan="off", ws="none", http="h11"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    listening.close()


@pytest.fixture
def page(browser: Any, address: str) -> Any:
    browser.get(f"{address}/?token={TOKEN}")
    until(lambda: browser.current_url == f"{address}/" and browser.find_elements(By.ID, "job"))
    return browser


def until(so: Callable[[], Any], seconds: float = 20.0) -> Any:
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
    found = page.execute_script(
        "const e = document.getElementById(arguments[0]); return e && e.textContent;", identity
    )
    return found or ""


def fill(page: Any, values: dict[str, str]) -> None:
    """Put values into the form at once, and wait until the page has answered to all of them."""
    page.execute_script(
        """
        const form = document.getElementById("job");
        for (const field of form.elements) {
          if (!field.name || field.name === "cluster") continue;
          const value = arguments[0][field.name] || "";
          if (field.type === "checkbox") field.checked = value === "true"; else field.value = value;
        }
        document.getElementById("answer").dataset.old = "yes";
        document.getElementById("answer").innerHTML = "";
        htmx.trigger(form, "again");
        """,
        values,
    )
    until(lambda: text_of(page, "link"))


def clusters() -> list[str]:
    names = sorted(path.stem for path in data_folder("clusters").glob("*.yaml"))
    return names[:: max(1, len(names) // 20)][:20]


def test_what_the_browser_shows_is_what_render_prints(page: Any, address: str, here: Path) -> None:
    known = {field.name for field in FIELDS}
    fits = 0
    for cluster in clusters():
        page.get(f"{address}/?{urlencode({'cluster': cluster})}")
        chance = random.Random(f"browser {cluster}")
        for _ in range(10):
            values = a_form(cluster, chance)
            assert set(values) <= known
            fill(page, values)
            code, script = rendered(text_of(page, "job-file"), cluster, here)
            assert text_of(page, "script") == script, (cluster, values)
            fits += code == 0
    assert fits > 50


def test_typing_alone_leads_from_the_first_field_to_a_submitted_job(page: Any, fake: Fake) -> None:
    page.get(page.current_url + "?cluster=uva-afton")
    page.find_element(By.ID, "command").click()
    active = lambda: page.switch_to.active_element  # noqa: E731

    def type_into(identity: str, text: str) -> None:
        for _ in range(60):
            if active().get_attribute("id") == identity:
                active().send_keys(text)
                return
            active().send_keys(Keys.TAB)
        raise AssertionError(f"no tab leads to {identity}")

    type_into("command", "python train.py")
    type_into("resources-gpus", "2")
    type_into("resources-time", "40-0")
    type_into("resources-account", "mine")
    until(lambda: "allows at most" in text_of(page, "error-resources-time"))
    assert page.find_element(By.ID, "resources-time").get_attribute("aria-invalid") == "true"
    until(lambda: "allows at most" in text_of(page, "announcer"))
    for _ in range(60):
        if active().get_attribute("data-values"):
            break
        active().send_keys(Keys.TAB)
    active().send_keys(Keys.ENTER)
    until(lambda: text_of(page, "script"))
    assert text_of(page, "error-resources-time") == ""
    for _ in range(80):
        if active().text == "Submit ...":
            break
        active().send_keys(Keys.TAB)
    active().send_keys(Keys.ENTER)
    until(lambda: active().text == "Yes, submit it")
    assert fake.submitted == []
    active().send_keys(Keys.ENTER)
    until(lambda: "Job 4711" in text_of(page, "question"))
    assert len(fake.submitted) == 1


def test_no_page_has_an_error_of_scripts_or_is_wider_than_a_phone(page: Any, address: str) -> None:
    page.set_window_size(1400, 1000)
    page.get_log("browser")  # what other tests have left
    for place in ("/", "/?cluster=uva-afton&command=python+train.py&resources.gpus=2&resources.account=mine", "/import",
                  "/runs", "/run?job=12", "/compare?job=12&job=14", "/run?job=14"):  # fmt: skip
        page.get(address + place)
        time.sleep(0.3)
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                             {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True})  # fmt: skip
        wide = page.execute_script("return document.documentElement.scrollWidth")
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        assert wide <= 390, place
    wrong = [one["message"] for one in page.get_log("browser") if one["level"] == "SEVERE"]
    assert wrong == []


@pytest.mark.skipif(
    not Path(AXE).is_file(), reason="SLURMGPU_AXE does not name axe.min.js (npm pack axe-core)"
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Any, address: str, scheme: str) -> None:
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    script = Path(AXE).read_text(encoding="utf-8")
    places = ["/", "/?cluster=uva-afton&command=python+train.py&resources.gpus=2&resources.account=mine",
              "/?cluster=uva-afton&command=python+train.py&resources.gpus=200&resources.account=mine", "/import", "/runs",
              "/run?job=12", "/compare?job=12&job=14", "/run?job=14", "/nowhere"]  # fmt: skip
    for place in places:
        page.get(address + place)
        page.execute_script(script)
        found = page.execute_async_script("axe.run().then(arguments[0])")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == [], place


def test_a_click_on_submit_right_after_typing_asks_about_what_was_typed(
    page: Any,
    fake: Fake,
    here: Path,
) -> None:
    page.get(page.current_url + "?cluster=uva-afton&command=python+train.py&resources.account=mine")
    page.find_element(By.ID, "resources-gpus").send_keys("2")
    until(lambda: "--gres=gpu:2" in text_of(page, "script"))
    name = page.find_element(By.ID, "file")
    name.clear()
    name.send_keys("mine.yaml")
    page.find_element(By.CSS_SELECTOR, "#to-submit button").click()
    until(lambda: "2 GPUs" in text_of(page, "question") and "mine.yaml" in text_of(page, "question"))
    page.find_element(By.ID, "resources-gpus").send_keys(Keys.BACKSPACE, "1")
    assert text_of(page, "question").strip() == ""
    until(lambda: "--gres=gpu:1" in text_of(page, "script"))
    page.find_element(By.CSS_SELECTOR, "#to-submit button").click()
    until(lambda: "1 node, 1 GPU" in text_of(page, "question"))
    page.find_element(By.CSS_SELECTOR, "#question form button").click()
    until(lambda: "Job 4711" in text_of(page, "question"))
    assert "gpus: 1" in (here / "mine.yaml").read_text(encoding="utf-8")
    assert len(fake.submitted) == 1
