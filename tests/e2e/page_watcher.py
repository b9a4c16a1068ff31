"""A user with nothing but a process's page in a real browser, its /metrics and its log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.error import HTTPError

from proxy_process import ProxyProcess, wait_for

from lab.browser import Browser

# Folder for pictures of the page; set it to look at them.
PICTURES = os.environ.get("PICTURES_OF_THE_PAGE")


class Watcher:
    def __init__(self, page: Browser, proxy: ProxyProcess) -> None:
        self._page, self._proxy = page, proxy
        page.open(f"http://127.0.0.1:{proxy.console_port}/")

    def sees(self, *words: str) -> bool:
        text = self._page.text("main")
        return all(word in text for word in words)

    def begins_with(self, *words: str) -> bool:
        """The headline has the words."""
        text = self._page.text("#headline")
        return all(word in text for word in words)

    def alarms(self) -> list[str]:
        """The texts of everything on the page that reports a problem."""
        banners = self._page.evaluate(
            "[...document.querySelectorAll('.banner.bad:not([hidden]), .banner.warn:not([hidden]),"
            " .tiles .alarm, #partitions .fault')].map((node) => node.innerText)"
        )
        return list(banners)

    def metric(self, name: str, labels: str = "") -> float:
        return self._proxy.metric(name, labels)

    def lines(self, event: str, **values: object) -> list[dict[str, object]]:
        return [line for line in self._proxy.logged(event) if values.items() <= line.items()]

    def logged(self, event: str, **values: object) -> bool:
        return bool(self.lines(event, **values))

    def store_fails(self, operation: str) -> bool:
        return self.metric("fetchproxy_store_up", f'operation="{operation}"') == 0

    def is_ready(self) -> bool:
        try:
            self._proxy.get("/readyz")
        except HTTPError:
            return False
        return True

    def is_calm(self) -> bool:
        return self.sees("The store responds", "leads 1 of 1") and not self.alarms()

    def waits(self, name: str, begun_at: float, signs: Mapping[str, Callable[[], bool]]) -> None:
        """Wait for each sign and print how long it took."""
        for sign, is_there in signs.items():
            wait_for(f"{name}: {sign}", is_there)
            print(f"{name}: {sign} after {time.monotonic() - begun_at:.1f} s")
        self.picture(name)

    def picture(self, name: str) -> None:
        if PICTURES:
            self._page.screenshot(Path(PICTURES) / f"{name}.png")
