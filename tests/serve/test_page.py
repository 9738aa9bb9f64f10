"""The page in a real browser: what it shows is what happened, its buttons act, it fits a phone, light and dark."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from service_parts import glyphs, served, settings_for

import wildtta
from real_browser import NEEDS_BROWSER, show, started
from wildtta.serve import Client
from wildtta.serve.replica import Replica

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Replica]]:
    """Two tenants that have sent something; the state of one was lost with a process, which is an alarm."""
    guard = wildtta.Guard(shadow=1.0, sample=8, memory=16)
    folder = tmp_path_factory.mktemp("states")
    (folder / "requests").mkdir()
    (folder / "requests" / "loud.ids").write_text('{"call": 1, "ids": ["x"]}\n{"call": 2, "ids": ["y"]}\n')
    with served(settings_for(folder, guarded=True, guard=guard)) as (address, replica):
        for number in range(4):
            Client(address, "calm").predict(glyphs(8, first=8 * number))
            Client(address, "loud").predict(glyphs(8, first=8 * number))
        yield address, replica


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def opened(browser: Any, address: str, *, width: int = 1280, dark: bool = False) -> Any:
    show(browser, address, width=width, dark=dark)
    wait_for(lambda: len(tenants(browser)) == 2)
    return browser


def wait_for(condition: Callable[[], Any], seconds: float = 15.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.1)


def tenants(browser: Any) -> list[str]:
    """Whose cards are shown, in one look: the page may change between two."""
    return list(browser.execute_script("return [...document.querySelectorAll('.card')].map(c => c.dataset.tenant)"))


def card(browser: Any, tenant: str) -> Any:
    return browser.find_element("css selector", f'.card[data-tenant="{tenant}"]')


def press(browser: Any, tenant: str, verb: str) -> None:
    button = card(browser, tenant).find_element("css selector", f'button[data-verb="{verb}"]')
    browser.execute_script("arguments[0].click()", button)


def brightness(browser: Any) -> float:
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(browser.get_screenshot_as_base64()))).convert("L")
    return float(np.median(np.asarray(picture)))


def test_it_shows_what_happened_and_asks_nobody_else(browser: Any, service: tuple[str, Replica]) -> None:
    address, _ = service
    browser.get_log("performance")
    browser.get_log("browser")
    opened(browser, address)
    assert tenants(browser) == ["loud", "calm"], "alarms come first"
    assert "4 requests, 32 images, 4 steps, 0 alarms" in card(browser, "calm").text
    assert "1 alarm" in card(browser, "loud").text
    assert "2 steps since the last save are lost" in card(browser, "loud").text
    for name in ("requests", "entropy", "top_share", "distance", "learned"):
        plot = card(browser, "calm").find_element("css selector", f'figure[data-plot="{name}"]')
        assert plot.find_elements("css selector", ".curve, .bar"), f"nothing is drawn for {name}"
    assert card(browser, "loud").find_elements("css selector", ".mark")
    assert not card(browser, "calm").find_elements("css selector", ".mark")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:"))] == []


def test_it_follows_without_being_loaded_again(browser: Any, service: tuple[str, Replica]) -> None:
    address, _ = service
    opened(browser, address)
    before = Client(address, "calm").status()["requests"]
    Client(address, "calm").predict(glyphs(2, first=300))
    wait_for(lambda: f"{before + 1} requests" in card(browser, "calm").text)


def test_buttons_pause_reset_and_roll_back(browser: Any, service: tuple[str, Replica]) -> None:
    address, _ = service
    client = Client(address, "calm")
    opened(browser, address)
    press(browser, "calm", "pause")
    wait_for(lambda: client.status()["paused"])
    wait_for(lambda: "paused" in card(browser, "calm").find_element("css selector", ".state").text)
    press(browser, "calm", "resume")
    wait_for(lambda: not client.status()["paused"])
    assert client.status()["distance"] > 0
    press(browser, "calm", "reset")
    time.sleep(0.3)
    assert "reset" not in [event["text"] for event in client.status()["events"]], "it asks first"
    press(browser, "calm", "reset")
    wait_for(lambda: "reset" in [event["text"] for event in client.status()["events"]])
    press(browser, "calm", "rollback")
    press(browser, "calm", "rollback")
    wait_for(lambda: card(browser, "calm").find_element("css selector", ".said").text)
    said = card(browser, "calm").find_element("css selector", ".said").text
    assert "snapshot" in said, "after a few images there is nothing to go back to, and the page says so"


def test_a_tenant_is_found_by_its_name(browser: Any, service: tuple[str, Replica]) -> None:
    opened(browser, service[0])
    browser.find_element("css selector", "#search").send_keys("lou")
    wait_for(lambda: tenants(browser) == ["loud"])


def test_light_dark_and_a_phone(browser: Any, service: tuple[str, Replica]) -> None:
    light = brightness(opened(browser, service[0]))
    dark = brightness(opened(browser, service[0], dark=True))
    assert light > 200
    assert dark < 60
    opened(browser, service[0], width=360)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    for button in browser.find_elements("css selector", ".verbs button"):
        if button.is_displayed():
            assert button.size["height"] >= 36


def test_the_description_of_the_interface_is_readable(browser: Any, service: tuple[str, Replica]) -> None:
    browser.get(f"{service[0]}/docs")
    wait_for(lambda: browser.find_elements("css selector", "h2"))
    text = browser.find_element("css selector", "body").text
    assert "/v1/tenants/{tenant}/{verb}" in text
    assert "X-Request-Id" in text
