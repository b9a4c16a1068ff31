"""What the whole matrix found, as data and as a table in docs/reference/compatibility.md."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from matrix_all_clients import CLIENTS
from matrix_client import CASES, MatrixClient

from lab.compatibility import document
from lab.kafka_versions import KAFKA_3_9, KAFKA_NEWEST, KAFKA_OLDEST, KAFKA_VERSION

PAGE = Path(__file__).parents[2] / "docs/reference/compatibility.md"
RESULTS = PAGE.with_suffix("") / "clients.toml"
BROKERS = {
    "kafka-oldest": KAFKA_OLDEST,
    "kafka-3.9": KAFKA_3_9,
    "kafka": KAFKA_VERSION,
    "kafka-newest": KAFKA_NEWEST,
}
_HEADER = """\
# Written by the matrix of clients and brokers (make test-all); not by hand.
# Each cell: pass, fail, not run, or why the client cannot do it.
"""


class MatrixResults:
    """A run of some of the tests replaces their cells and leaves the others as they were."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str], dict[str, str]] = {}

    def tell(self, client: MatrixClient, broker: str, case: str, result: str) -> None:
        self._cells.setdefault((client.name, broker), {})[case] = result

    def write(self) -> None:
        before = {(row["client"], row["broker"]): row for row in written()}
        text = _HEADER
        for client in CLIENTS:
            for broker in BROKERS.values():
                row = before.get((client.name, broker), {})
                text += self._table(client, broker, row)
        RESULTS.parent.mkdir(exist_ok=True)
        if not RESULTS.exists() or RESULTS.read_text() != text:
            RESULTS.write_text(text)
            PAGE.write_text(document(RESULTS.parent), encoding="utf-8")

    def _table(self, client: MatrixClient, broker: str, row: Mapping[str, str]) -> str:
        cells_found = self._cells.get((client.name, broker), {})
        version = client.version() if cells_found else row.get("version", "")
        # What another version of the client has shown says nothing about this one.
        cells_kept = row if row.get("version") == version else {}
        cells = {case: cells_found.get(case, cells_kept.get(case, "not run")) for case in CASES}
        lines = [
            "\n[[result]]",
            f'client = "{client.name}"',
            f'version = "{version}"',
            f'broker = "{broker}"',
            *(f'{case} = "{cells[case]}"' for case in CASES),
        ]
        return "\n".join(lines) + "\n"


def written() -> list[dict[str, str]]:
    """The rows that the file has."""
    if not RESULTS.exists():
        return []
    rows: list[dict[str, str]] = tomllib.loads(RESULTS.read_text())["result"]
    return rows
