"""The page's calculator gives what Python's function gives, in Node.js and in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_loads import loads

from fetchproxy.sizing.coefficients import EXAMPLE_PRICES, Prices
from fetchproxy.sizing.document import CALCULATOR, EXAMPLE, SIZING_PAGE, with_example, with_figures
from fetchproxy.sizing.estimate import Workload, estimate
from fetchproxy.sizing.table import rows
from lab.browser import Browser, find_browser
from lab.errors import PartMissing

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / CALCULATOR
# Reads [[load, prices], …], prints [[estimate, rows], …].
PROGRAM = """
const its = require(process.argv[1]);
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(([load, prices]) => {
  const found = its.estimate(load, prices, its.COEFFICIENTS);
  return [found, its.rows(found)];
})));
"""
PRICES = st.builds(
    Prices,
    name=st.just("generated"),
    **dict.fromkeys(
        ("per_1000_writes", "per_1000_reads", "gb_month", "egress_gb"), st.floats(0, 10)
    ),
)
FindPart = Callable[[str, Callable[[], str]], str]


def node() -> str:
    if (node_path := shutil.which("node")) is None:
        raise PartMissing("node", "there is no Node.js on PATH", "Install Node.js.")
    return node_path


def leaves_of(value: object, path: str = "") -> dict[str, float]:
    if not isinstance(value, dict):
        return {path: value}  # type: ignore[dict-item]
    return {
        k: v for name, below in value.items() for k, v in leaves_of(below, f"{path}.{name}").items()
    }


def test_the_calculator_gives_what_the_command_gives(find_part: FindPart) -> None:
    program = find_part("node", node)

    @settings(max_examples=5, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(loads(), PRICES), min_size=20, max_size=20))
    def compared(cases: list[tuple[Workload, Prices]]) -> None:
        text = json.dumps([(asdict(load), asdict(prices)) for load, prices in cases])
        result = subprocess.run(
            [program, "-e", PROGRAM, str(SCRIPT)],
            input=text, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for case, (estimate_shown, _) in zip(cases, json.loads(result.stdout), strict=True):
            expected = leaves_of(asdict(estimate(*case)))
            assert leaves_of(estimate_shown) == pytest.approx(expected, rel=1e-9), case

    compared()


def test_the_rows_are_those_of_the_command(find_part: FindPart) -> None:
    cases = json.dumps([(asdict(EXAMPLE), asdict(EXAMPLE_PRICES))])
    result = subprocess.run(
        [find_part("node", node), "-e", PROGRAM, str(SCRIPT)],
        input=cases, capture_output=True, text=True, check=True,
    )  # fmt: skip
    ((_, rows_shown),) = json.loads(result.stdout)
    assert [tuple(row) for row in rows_shown] == rows(estimate(EXAMPLE, EXAMPLE_PRICES))


def test_both_files_on_disk_are_the_generated_ones() -> None:
    page, script = (ROOT / SIZING_PAGE).read_text("utf-8"), SCRIPT.read_text("utf-8")
    assert page == with_example(page), "run python -m fetchproxy.sizing.document"
    assert script == with_figures(script), "run python -m fetchproxy.sizing.document"


def test_the_page_loads_its_calculator_and_nothing_else() -> None:
    page = (ROOT / SIZING_PAGE).read_text("utf-8")
    assert re.findall(r"<script src=\"([^\"]+)\"", page) == [SCRIPT.name]
    assert '<div id="sizing-calculator">' in page
    words = ("fetch(", "XMLHttpRequest", "import ", "http:", "https:", "innerHTML")
    assert not [word for word in words if word in SCRIPT.read_text("utf-8")]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


def test_the_browser_shows_the_commands_table_and_follows_a_field(
    find_part: FindPart, tmp_path: Path
) -> None:
    find_part("browser", lambda: str(find_browser()))
    (tmp_path / SCRIPT.name).write_bytes(SCRIPT.read_bytes())
    body = '<div id="sizing-calculator"></div><script src="sizing.js"></script>'
    (tmp_path / "page.html").write_text(f'<!doctype html><meta charset="utf-8">{body}')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        with Browser() as page:
            page.open(f"http://127.0.0.1:{server.server_port}/page.html")
            while not page.evaluate("document.querySelectorAll('#sizing-calculator tr').length"):
                time.sleep(0.1)
            assert rows_on_page(page) == rows(estimate(EXAMPLE, EXAMPLE_PRICES))
            page.evaluate(
                "(() => { const f = document.querySelector('[name=manager]'); f.value = 'topic';"
                "f.dispatchEvent(new Event('input', {bubbles: true})); })()"
            )
            by_topic = Workload(**{**asdict(EXAMPLE), "manager": "topic"})
            assert rows_on_page(page) == rows(estimate(by_topic, EXAMPLE_PRICES))
            page.evaluate(
                "(() => { const f = document.querySelector('[name=partitions]'); f.value = '0';"
                "f.dispatchEvent(new Event('input', {bubbles: true})); })()"
            )
            assert "out of its bounds" in page.text("#sizing-calculator table")
    finally:
        server.shutdown()
        server.server_close()


def rows_on_page(page: Browser) -> list[tuple[str, ...]]:
    cells = page.evaluate(
        "[...document.querySelectorAll('#sizing-calculator tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return [tuple(row) for row in cells]
