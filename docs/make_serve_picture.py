"""The picture of the page in docs/serve.md: the demonstration for a minute, then a screenshot (chromium, selenium).

python docs/make_serve_picture.py
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.support.ui import WebDriverWait

from wildtta.serve.demo import CAMERAS, DEMO, Demonstration
from wildtta.serve.service import Service, prepared

PICTURE = Path(__file__).parent / "images" / "serve.png"
SECONDS, WIDTH, HEIGHT = 50.0, 1240, 590


def screenshot(address: str, path: Path) -> None:
    """The page as it is now, once it shows every tenant."""
    options = Options()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser") or ""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
    for flag in (*flags, f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={tempfile.mkdtemp()}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Driver(shutil.which("chromedriver")))
    try:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(address)
        WebDriverWait(browser, 20).until(
            lambda page: len(page.find_elements("css selector", ".card .curve")) >= 4 * len(CAMERAS)
        )
        browser.save_screenshot(str(path))
    finally:
        browser.quit()


def main() -> None:
    demonstration = Demonstration(say=print)
    settings = prepared(**DEMO, folder=Path(tempfile.mkdtemp(prefix="wildtta-picture-")))
    with Service(settings, port=8790) as service:
        ended = threading.Event()
        streaming = threading.Thread(target=demonstration.run, args=(service.address, ended), kwargs={"page": False})
        streaming.start()
        ended.wait(SECONDS)
        screenshot(service.address, PICTURE)
        ended.set()
        streaming.join()
    print(f"written: {PICTURE}")


if __name__ == "__main__":
    main()
