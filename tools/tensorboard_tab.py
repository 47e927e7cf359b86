"""Drives the Libra tab of a real TensorBoard in a real browser; takes the pictures of the manual.

    python -m tools.tensorboard_tab --logdir build/runs --out docs/images
    python -m tools.tensorboard_tab --logdir build/bursts --card burst --out docs/images

Selenium, because it is Python like everything else here and drives the browser and the driver that
the distribution has (Debian: chromium, chromium-driver).
"""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import app, flags
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

VIEWS = ("plan", "timeline", "contention", "strategies", "history")
SIZE = (1280, 1400)
DEADLINE_SECONDS = 180.0

_SERVER_FLAGS = ("--host", "127.0.0.1", "--port", "0", "--reload_interval", "1")
# TensorBoard's own script.
_TENSORBOARD = "/index.js?_file_hash="
# What a window is higher than its page.
_FRAME_HEIGHT = 140
# Loads the frame again, without the state that is in the page's address.
_FORGET_AND_RELOAD = (
    "const page = window.parent; page.history.replaceState(page.history.state, '', '#libra');"
    "window.isOld = true; location.reload()"
)
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)


def programs() -> tuple[str, str] | None:
    """The browser and its driver; None where one is missing."""
    found = [
        next(filter(None, map(shutil.which, names)), None)
        for names in (("chromium", "chromium-browser", "google-chrome"), ("chromedriver",))
    ]
    return None if None in found else (str(found[0]), str(found[1]))


@contextlib.contextmanager
def serving(logdir: Path) -> Iterator[str]:
    """Runs TensorBoard on a log directory; yields its address."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.txt"
        with output.open("wb") as file:
            server = subprocess.Popen(
                [sys.executable, "-m", "tensorboard.main", *_SERVER_FLAGS, "--logdir", logdir],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        try:
            yield _address(server, output)
        finally:
            server.terminate()
            server.wait(60)


def _address(server: subprocess.Popen[bytes], output: Path) -> str:
    """Returns the address at which TensorBoard reports that it listens."""
    until = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < until and server.poll() is None:
        words = output.read_text(errors="replace").split()
        found = [word for word in words if word.startswith("http://127.0.0.1:")]
        if found:
            return found[0].rstrip("/")
        time.sleep(0.2)
    raise RuntimeError(f"TensorBoard did not start:\n{output.read_text(errors='replace')}")


def answer(address: str, route: str) -> Any:
    """Returns the answer of a route of the plugin."""
    with urllib.request.urlopen(f"{address}/data/plugin/libra/{route}", timeout=60) as response:
        return json.load(response)


@contextlib.contextmanager
def browsing(dark: bool = False, width: int = SIZE[0]) -> Iterator["Tab"]:
    """Runs a headless browser with an empty profile."""
    found = programs()
    if found is None:
        raise RuntimeError("no browser: install Debian's chromium and chromium-driver")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = found[0]
        for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{SIZE[1]}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options, Service(found[1]))
        try:
            driver.set_script_timeout(DEADLINE_SECONDS)
            yield Tab(driver, dark, width)
        finally:
            driver.quit()


class Tab:
    """The Libra tab, as someone who looks at it has it."""

    def __init__(self, driver: webdriver.Chrome, dark: bool, width: int = SIZE[0]) -> None:
        self.driver = driver
        self._width = width
        self._dark = dark

    def open(self, address: str) -> None:
        """Opens the tab and waits for its first view.

        The TensorBoard that the browser shows is not loaded again: only the tab's own frame is.
        """
        scheme = "dark" if self._dark else "light"
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        shown = self.driver.current_url  # of the whole page
        is_new = not (shown.startswith(f"{address}/") and "#libra" in shown)
        if is_new:
            self.driver.get("about:blank")
        for kind in ("browser", "performance"):  # of the page before, whose server may be gone
            self.driver.get_log(kind)
        if is_new:
            self.driver.get(f"{address}/#libra")
            frame = self.wait(lambda: self.driver.find_elements(By.CSS_SELECTOR, "iframe"))[0]
            self.driver.switch_to.frame(frame)
        else:
            self.script(_FORGET_AND_RELOAD)
            self.wait(lambda: self.script("return !window.isOld"))
        self.wait(self._ready)

    @property
    def address(self) -> str:
        """Address of the page that the tab is in."""
        return str(self.script("return window.parent.location.href"))

    def again(self) -> None:
        """Loads the page again, as the browser's own button does, and waits for its first view."""
        address = self.address
        self.driver.get("about:blank")
        self.driver.get(address)
        frame = self.wait(lambda: self.driver.find_elements(By.CSS_SELECTOR, "iframe"))[0]
        self.driver.switch_to.frame(frame)
        self.wait(self._ready)

    def wait(self, condition: Any) -> Any:
        """Waits until a condition holds, whatever is drawn meanwhile; returns its value."""
        waiting = WebDriverWait(
            self.driver, DEADLINE_SECONDS, 0.1, [StaleElementReferenceException]
        )
        return waiting.until(lambda _: condition())

    def _ready(self) -> str | None:
        found = self.find("main")
        return found[0].get_attribute("data-ready") if found else None

    def find(self, selector: str) -> list[WebElement]:
        """All elements that a CSS selector finds now."""
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def one(self, selector: str) -> WebElement:
        """The first element that a CSS selector finds, once there is one."""
        return self.wait(lambda: self.find(selector))[0]

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that a CSS selector finds."""
        return [element.text for element in self.find(selector)]

    def view(self, name: str) -> None:
        """Goes to a view and waits until it is drawn, with what takes longer."""
        self.one(f"#tab-{name}").click()
        self.wait(lambda: self._ready() == name)
        self.wait(lambda: not self.find("#view [data-pending]"))
        self.wait(lambda: all(plot.get_attribute("data-drawn") for plot in self.find(".plot")))

    def reload(self) -> None:
        """Reads again what there is, and waits until it is drawn."""
        self.script("delete document.querySelector('main').dataset.ready")
        self.one("#reload").click()
        self.wait(self._ready)

    def choose(self, selector: str, text: str) -> None:
        """Chooses the first option that has this text in it, and waits for what it brings."""
        select = Select(self.one(selector))
        texts = [option.text for option in select.options]
        index = next(i for i, candidate in enumerate(texts) if text in candidate)
        if not select.options[index].is_selected():
            self.script("delete document.querySelector('main').dataset.ready")
            select.select_by_index(index)
        self.wait(self._ready)

    def script(self, code: str, *arguments: Any) -> Any:
        """Runs JavaScript in the tab's frame."""
        return self.driver.execute_script(code, *arguments)

    def trouble(self) -> list[str]:
        """Errors on the console and requests that failed, since the last call.

        Warnings count where they are the plugin's: TensorBoard has some of its own, and errors in
        its Graphs tab.
        """
        found = [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if (entry["level"] == "SEVERE" and _TENSORBOARD not in entry["message"])
            or "/plugin/libra/" in entry["message"]
        ]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            parameters = message["params"]
            if message["method"] == "Network.loadingFailed" and not parameters.get("canceled"):
                found.append(json.dumps(parameters))
            elif message["method"] == "Network.responseReceived":
                response = parameters["response"]
                if response["status"] >= 400:
                    found.append(f"{response['status']} {response['url']}")
        return found

    @contextlib.contextmanager
    def far_away(self, seconds: float) -> Iterator[None]:
        """While it lasts, every answer takes so much longer."""
        conditions = {"offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
        name = "Network.emulateNetworkConditions"
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd(name, conditions | {"latency": 1e3 * seconds})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd(name, conditions | {"latency": 0})

    def picture(self, path: Path) -> None:
        """Takes a picture of the tab, as high as what it shows."""
        height = self.script(
            "return document.querySelector('main').getBoundingClientRect().bottom + scrollY"
        )
        self.driver.switch_to.default_content()
        above = self.script("return document.querySelector('iframe').getBoundingClientRect().top")
        self.driver.set_window_size(self._width, min(int(height + above) + _FRAME_HEIGHT, 2400))
        path.write_bytes(self.driver.get_screenshot_as_png())
        self.driver.set_window_size(self._width, SIZE[1])
        self.driver.switch_to.frame(self.driver.find_element(By.CSS_SELECTOR, "iframe"))


def compact(path: Path) -> None:
    """Brings a picture down to 256 colours, which a user interface hardly has more of."""
    from PIL import Image

    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)


def main(_: list[str]) -> None:
    """Takes pictures of all views, and of the first in dark, or of what a run without one shows."""
    out = Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    pictures = {"light": (_CARD.value,)} if _CARD.value else {"light": VIEWS, "dark": VIEWS[:1]}
    with serving(Path(_LOGDIR.value or "")) as address:
        for theme, names in pictures.items():
            with browsing(dark=theme == "dark") as tab:
                tab.open(address)
                if _RUN.value:
                    tab.choose("#run", _RUN.value)
                for name in names:
                    if not _CARD.value:
                        tab.view(name)
                    path = out / f"tensorboard_{name}_{theme}.png"
                    tab.picture(path)
                    compact(path)
                    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
                for line in tab.trouble():
                    print(line)


if __name__ == "__main__":
    _LOGDIR = flags.DEFINE_string("logdir", None, "Log directory of runs to show (required).")
    _RUN = flags.DEFINE_string("run", None, "A part of the name of the run to show.")
    _CARD = flags.DEFINE_string("card", None, "Of a run without views: the picture's name.")
    _OUT = flags.DEFINE_string("out", "docs/images", "Folder for the pictures.")
    flags.mark_flag_as_required("logdir")
    app.run(main)
