"""A real headless Chromium, driven by its DevTools protocol, for tests of pages.

It is the machine's own (Debian: packages `chromium`, or Google's Chrome); the lab downloads none.
The flags switch off requests to the vendor's servers. Each command uses a connection of its own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Self

import aiohttp

from lab.errors import PartFailed, PartMissing
from lab.process import ServerProcess

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_HOW = "Install chromium with the system's package manager."
_FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-port=0", "--window-size=1280,1400",
)  # fmt: skip
_START_S = 60.0
_COMMAND_S = 60.0


def find_browser() -> Path:
    """Raises PartMissing with the reason."""
    for name in _NAMES:
        if path := shutil.which(name):
            return Path(path)
    raise PartMissing("browser", f"none of {', '.join(_NAMES)} is on PATH", _HOW)


class Browser:
    """`with Browser() as page: page.open(url); page.text()`. One page."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="lab-browser-",
            ignore_cleanup_errors=True,  # its processes end, and write, after it
        )
        self._profile = Path(self._folder.name) / "profile"
        command = [str(find_browser()), *_FLAGS, f"--user-data-dir={self._profile}"]
        if os.geteuid() == 0:  # Chromium's sandbox does not run as root
            command.append("--no-sandbox")
        log = Path(self._folder.name) / "log"
        self._process = ServerProcess("browser", [*command, "about:blank"], log)
        self._page = ""

    def __enter__(self) -> Self:
        try:
            self._process.start()
            self._process.wait_until(self._find_page, _START_S)
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
        self._folder.cleanup()

    def open(self, url: str) -> None:
        self._do("Page.navigate", url=url)

    def text(self, selector: str = "body") -> str:
        """The visible text, without hidden elements."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText"))

    def evaluate(self, expression: str) -> Any:
        """Raises PartFailed if the expression throws."""
        evaluation = self._do("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in evaluation:
            raise PartFailed(f"{expression}: {evaluation['exceptionDetails']}")
        return evaluation["result"].get("value")

    def screenshot(self, file: Path, height_px: int | None = None) -> None:
        """`height_px`: of the page from its top, also below the window. None: the window."""
        part: dict[str, object] = {}
        if height_px is not None:
            width_px = self.evaluate("document.documentElement.clientWidth")
            clip = {"x": 0, "y": 0, "width": width_px, "height": height_px, "scale": 1}
            part = {"captureBeyondViewport": True, "clip": clip}
        picture = self._do("Page.captureScreenshot", format="png", **part)
        file.write_bytes(base64.b64decode(picture["data"]))

    def _find_page(self) -> bool:
        try:
            port = (self._profile / "DevToolsActivePort").read_text().splitlines()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as response:
                pages = [each for each in json.load(response) if each["type"] == "page"]
        except (OSError, IndexError):
            return False
        self._page = pages[0]["webSocketDebuggerUrl"] if pages else ""
        return bool(pages)

    def _do(self, method: str, **params: object) -> dict[str, Any]:
        """Raises PartFailed, TimeoutError."""
        return asyncio.run(self._ask(method, params))

    async def _ask(self, method: str, params: dict[str, object]) -> dict[str, Any]:
        async with (
            asyncio.timeout(_COMMAND_S),
            aiohttp.ClientSession() as session,
            session.ws_connect(self._page, max_msg_size=0) as page,
        ):
            await page.send_json({"id": 1, "method": method, "params": params})
            async for message in page:
                message_json = json.loads(message.data)
                if message_json.get("id") == 1:
                    if "error" in message_json:
                        raise PartFailed(f"{method}: {message_json['error']}")
                    return dict(message_json["result"])
        raise PartFailed(f"{method}: the browser has closed its connection")
