# ruff: noqa: F811 - fixtures of another file
"""The pages of ``slurmgpu web`` in Debian's Chromium: typed into, read, and looked at by axe."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browser import BACKSPACE, ENTER, TAB, axe, chromium, need, text_of, until

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("httpx2", reason="Starlette's client for tests needs it")

import uvicorn

from slurmgpu.web.generator import Generator
from slurmgpu.web.http import Guard
from slurmgpu.web.runs import Runs
from slurmgpu.web.server import guarded, listen_on_port
from tests.test_web import TOKEN, Fake, a_sweep, fake, here  # noqa: F401

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    need()
    with chromium() as made:
        yield made


@pytest.fixture
def address(fake: Fake, here: Path) -> Iterator[str]:
    guard: Guard = guarded(Generator(here, fake.submit), Runs(fake.source(), lambda _: ["a report"]), TOKEN)
    listening = listen_on_port(0)
    server = uvicorn.Server(uvicorn.Config(guard, log_level="error", lifespan="off", ws="none", http="h11"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}{guard.prefix}"
    server.should_exit = True
    thread.join(10)
    listening.close()


@pytest.fixture
def page(browser: Any, address: str) -> Any:
    browser.get(f"{address}/?token={TOKEN}")
    until(lambda: browser.current_url == f"{address}/" and browser.find_elements("id", "job"))
    return browser


def test_a_server_on_another_port_of_the_host_is_sent_no_cookie(page: Any, address: str) -> None:
    sent: list[str] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.extend([self.path, *self.headers.get_all("cookie", [])])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        for path in ("/", "/runs"):
            page.get(f"http://127.0.0.1:{other.server_port}{path}")
        other.shutdown()
    assert {"/", "/runs"} <= {*sent} <= {"/", "/runs", "/favicon.ico"}
    page.get(f"{address}/runs")  # and the page's own server still has it
    until(lambda: page.find_elements("css selector", "h1"))


# What the generator shows: tests/test_web_forms.py.


@pytest.mark.chosen
def test_typing_alone_leads_from_the_first_field_to_a_submitted_job(page: Any, fake: Fake) -> None:
    from selenium.webdriver import ActionChains

    page.get(page.current_url + "?cluster=uva-afton")
    page.find_element("id", "command").click()
    active = lambda: page.switch_to.active_element  # noqa: E731

    def press(keys: str) -> None:  # to what has the focus, whatever the page has put in its place meanwhile
        ActionChains(page).send_keys(keys).perform()

    def type_into(identity: str, text: str) -> None:
        for _ in range(60):
            if active().get_attribute("id") == identity:
                press(text)
                return
            press(TAB)
        raise AssertionError(f"no tab leads to {identity}")

    type_into("command", "python train.py")
    type_into("resources-gpus", "2")
    type_into("resources-time", "40-0")
    type_into("resources-account", "mine")
    until(lambda: "allows at most" in text_of(page, "error-resources-time"))
    assert page.find_element("id", "resources-time").get_attribute("aria-invalid") == "true"
    until(lambda: "allows at most" in text_of(page, "announcer"))
    for _ in range(60):
        if active().get_attribute("data-values"):
            break
        press(TAB)
    press(ENTER)
    until(lambda: text_of(page, "script"))
    assert text_of(page, "error-resources-time") == ""
    for _ in range(80):
        if active().text == "Submit ...":
            break
        press(TAB)
    press(ENTER)
    until(lambda: active().text == "Yes, submit it")
    assert fake.submitted == []
    press(ENTER)
    until(lambda: "Job 4711" in text_of(page, "question"))
    assert len(fake.submitted) == 1


@pytest.mark.chosen
def test_no_page_has_an_error_of_scripts_or_is_wider_than_a_phone(page: Any, address: str) -> None:
    page.set_window_size(1400, 1000)
    page.get_log("browser")  # what other tests have left
    for place in ("/", "/?cluster=uva-afton&command=python+train.py&resources.gpus=2&resources.account=mine", "/import",
                  "/runs", "/run?job=12", "/compare?job=12&job=14", "/run?job=14", "/run?job=16", "/run?job=11"):  # fmt: skip
        page.get(address + place)
        time.sleep(0.3)
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                             {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True})  # fmt: skip
        wide = page.execute_script("return document.documentElement.scrollWidth")
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        assert wide <= 390, place
    wrong = [one["message"] for one in page.get_log("browser") if one["level"] == "SEVERE"]
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.chosen
def test_axe_finds_nothing(page: Any, address: str, scheme: str) -> None:
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    # In the dark only colours are others.
    rules = {"light": "{}", "dark": "{runOnly: ['color-contrast']}"}[scheme]
    script = axe()
    places = ["/", "/?cluster=uva-afton&command=python+train.py&resources.gpus=2&resources.account=mine",
              "/?cluster=uva-afton&command=python+train.py&resources.gpus=200&resources.account=mine", "/import", "/runs",
              "/run?job=12", "/compare?job=12&job=14", "/run?job=14", "/run?job=16", "/run?job=11", "/nowhere"]  # fmt: skip
    for place in places if scheme == "light" else places[1::2]:
        page.get(address + place)
        page.execute_script(script)
        found = page.execute_async_script(f"axe.run({rules}).then(arguments[0])")
        assert found["passes"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == [], place


def test_a_click_right_after_typing_asks_about_what_was_typed(page: Any, fake: Fake, here: Path) -> None:
    page.get(page.current_url + "?cluster=uva-afton&command=python+train.py&resources.account=mine")
    page.find_element("id", "resources-gpus").send_keys("2")
    until(lambda: "--gres=gpu:2" in text_of(page, "script"))
    name = page.find_element("id", "file")
    name.clear()
    name.send_keys("mine.yaml")
    page.find_element("css selector", "#to-submit button").click()
    until(lambda: "2 GPUs" in text_of(page, "question") and "mine.yaml" in text_of(page, "question"))
    page.find_element("id", "resources-gpus").send_keys(BACKSPACE, "1")
    assert text_of(page, "question").strip() == ""
    until(lambda: "--gres=gpu:1" in text_of(page, "script"))
    page.find_element("css selector", "#to-submit button").click()
    until(lambda: "1 node, 1 GPU" in text_of(page, "question"))
    page.find_element("css selector", "#question form button").click()
    until(lambda: "Job 4711" in text_of(page, "question"))
    assert "gpus: 1" in (here / "mine.yaml").read_text(encoding="utf-8")
    assert len(fake.submitted) == 1


@pytest.mark.parametrize("job", ["16", "16_0"])
def test_plots_fill_cells_at_any_width(page: Any, address: str, fake: Fake, tmp_path: Path, job: str) -> None:
    a_sweep(tmp_path, fake)
    page.get(f"{address}/run?job={job}")
    widths = """
        return [...document.querySelectorAll("figure")].filter((one) => one.offsetParent).map((one) =>
            [one.clientWidth, one.querySelector(".uplot").clientWidth, document.documentElement.scrollWidth, innerWidth]);
    """
    for width in (1400, 700, 390, 1400):
        page.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )

        def filled() -> bool:
            seen = page.execute_script(widths)
            return len(seen) == {"16": 3, "16_0": 2}[job] and all(
                cell - 1 <= plot <= cell and wide <= window for cell, plot, wide, window in seen
            )

        until(filled)
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize(
    ("place", "polls", "identity"),
    [("/run?job=12", "now", "act-cancel"), ("/runs", "rows", "job-14"), ("/run?job=11", "graph", "box-12")],
)
def test_reading_anew_keeps_the_focus(page: Any, address: str, place: str, polls: str, identity: str) -> None:
    page.get(address + place)
    focus = "const e = document.getElementById(arguments[0]); e.dataset.old = 'yes'; e.focus();"
    until(lambda: text_of(page, identity))
    page.execute_script(focus, identity)
    page.execute_script("htmx.trigger(document.getElementById(arguments[0]), 'again')", polls)
    until(lambda: page.execute_script("return !document.getElementById(arguments[0]).dataset.old", identity))
    until(lambda: page.switch_to.active_element.get_attribute("id") == identity)
