"""Commands that ask: over a real console in a thread, and over store and brokers themselves."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from segment_values import segment_of
from test_console_api import TOKEN, rows_of
from test_console_collect import Process
from typer.testing import CliRunner

from fetchproxy.brokers.group_offsets import GroupOffset
from fetchproxy.cli.ask import with_rates
from fetchproxy.cli.bundle import file_name
from fetchproxy.cli.groups import by_group, position_row
from fetchproxy.cli.main import app
from fetchproxy.config.schema import ConsoleConfig
from fetchproxy.console.server import ConsoleServer
from fetchproxy.metadata.archiver_positions import RecoveryPoint
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.storage.reader_accounts import Client, StoreRequest, paid_by
from lab.process import free_port

HOSTILE = "app\x1b[31m\u202e[bold]\r\n"


class ServedConsole:
    """A console with what a process knows, in a thread of its own."""

    def __init__(self, token_file: Path | None) -> None:
        self.url = ""
        self._token_file = token_file
        self._ready, self._end = threading.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with Process() as process:
            await self._fill(process)
            process.recovery_point = RecoveryPoint(2_100, 8_204)
            config = ConsoleConfig(listen="127.0.0.1:0", token_file=self._token_file)
            rows = rows_of(process)
            async with ConsoleServer(
                config, process.collector, CollectorRegistry(), rows=rows
            ) as http:
                self.url = f"http://{http.address}"
                self._ready.set()
                await self._end.wait()

    async def _fill(self, process: Process) -> None:
        for number in range(2):
            tp = TopicIdPartition(UUID(int=100), "orders", number)
            await process.archive(
                segment_of(tp, number + 1, 0, 99 + number, segment_leader_epochs=())
            )
        await process.collector.update()
        accounts = process.storage.accounts
        for client in (Client("10.0.0.1", HOSTILE, HOSTILE, "billing"), Client("10.0.0.2", "b")):
            with paid_by(client):
                accounts.requested(StoreRequest.GET, 7)
                accounts.received(2_000_000)
            accounts.account_of(client).served_bytes = 3_000_000
        line = {"timestamp": "now", "level": "info", "event": "begun", "topic": HOSTILE}
        process.lines.processor(None, "", line)

    def __enter__(self) -> ServedConsole:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


@pytest.fixture
def console() -> Iterator[ServedConsole]:
    with ServedConsole(None) as console:
        yield console


def output_of(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def test_top_shows_who_reads(console: ServedConsole) -> None:
    output = output_of("top", "--once", "--console", console.url)
    assert "fetchproxy" in output
    assert "billing" in output
    assert "if cluster and archivers were lost now: 2.1 s and 8,204 records lost" in output
    for harm in ("\x1b", "\u202e", "\r"):
        assert harm not in output
    rows = json.loads(output_of("top", "--json", "--rows", "2", "--console", console.url))
    assert [(row["store_bytes"], row["gets"]) for row in rows] == [(2_000_000, 7)] * 2
    assert rows[0]["served_bytes_per_s"] is None  # nothing to compare with yet


def test_rates_are_since_the_look_before() -> None:
    row = {"address": "a", "client_id": "c", "user": "", "group": ""}
    before = {("a", "c", "", ""): {**row, "served_bytes": 1_000, "store_bytes": 500}}
    now = [{**row, "served_bytes": 3_000, "store_bytes": 400}, {**row, "user": "new"}]
    first, second = with_rates(now, before, 2.0)
    assert (first["served_bytes_per_s"], first["store_bytes_per_s"]) == (1_000, 0)
    assert second["served_bytes_per_s"] is None


def test_topics_lag_and_groups_of_a_process(console: ServedConsole) -> None:
    options = ("--console", console.url)
    assert "orders" in output_of("topics", *options)
    rows = json.loads(output_of("topics", "--json", *options))
    assert [(row["topic"], row["partitions"]) for row in rows] == [("orders", 2)]
    rows = json.loads(output_of("lag", "--topic", "orders", "--json", *options))
    assert [row["archive_end"] for row in rows] == [100, 101]
    assert rows == json.loads(output_of("lag", "--json", *options))
    assert "archive end" in output_of("lag", *options)
    assert "/api/topics/none/partitions" in output_of("lag", "--topic", "none", *options, code=2)
    rows = json.loads(output_of("groups", "list", "--json", *options))
    assert [(row["group"], row["gets"]) for row in rows] == [("billing", 7)]
    assert "billing" in output_of("groups", "list", *options)


def test_without_a_console_there_is_one_line_that_says_so() -> None:
    where = f"http://127.0.0.1:{free_port()}"
    for command in (("top",), ("topics",), ("lag",), ("groups", "list"), ("bundle",)):
        assert "does not respond" in output_of(*command, "--console", where, code=2)
    assert "use --console" in output_of("top", code=2)
    assert "use --console" in output_of("bundle", code=2)
    for wrong in ("ftp://h", "http://", "http://user:pw@h:1", "h:port"):
        output = output_of("topics", "--console", wrong, code=2)
        assert "--console" in output
        assert "pw" not in output


def test_a_token_opens_the_console(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with ServedConsole(file) as console:
        console_options = ("--console", console.url)
        refused = output_of("topics", *console_options, code=2)
        assert "--token-file" in refused
        assert "orders" in output_of("topics", *console_options, "--token-file", str(file))
        out = tmp_path / "bundle.zip"
        options = ("--token-file", str(file), "--interval", "0", "--out", str(out))
        output_of("bundle", *console_options, *options)
        with zipfile.ZipFile(out) as zipped:
            assert not any(TOKEN in zipped.read(name).decode() for name in zipped.namelist())


def test_a_bundle_says_first_what_it_holds(console: ServedConsole, tmp_path: Path) -> None:
    out = tmp_path / "bundle.zip"
    options = ("--interval", "0", "--out", str(out), "--partition", "orders:1")
    options += ("--partition", "none:0")
    output = output_of("bundle", "--console", console.url, *options)
    assert "It holds no records" in output
    assert stat.S_IMODE(os.stat(out).st_mode) == 0o600
    with zipfile.ZipFile(out) as zipped:
        names = zipped.namelist()
        parts = {name: zipped.read(name).decode() for name in names}
    assert names[0] == "README.txt"
    assert parts["README.txt"].startswith("A bundle about one process of fetchproxy")
    assert "segments/none-0.json: missing" in parts["README.txt"]
    assert json.loads(parts["segments/orders-1.json"])[0]["last_offset"] == 100
    expected = {"process.json", "status.json", "metrics-1.txt", "metrics-2.txt", "log.jsonl"}
    expected |= {f"{name}.json" for name in ("conditions", "topics", "readers", "groups")}
    assert expected <= set(names)
    assert json.loads(parts["log.jsonl"])["event"] == "begun"
    assert "hunter2" not in "".join(parts.values())  # the collector's store has it in its URL
    assert "exists" in output_of("bundle", "--console", console.url, *options, code=2)
    for wrong in ("orders", "orders:x", ":0"):
        refused = output_of("bundle", "--console", console.url, "--partition", wrong, code=2)
        assert "TOPIC:NUMBER" in refused


def test_a_name_in_a_bundle_leads_to_no_other_folder() -> None:
    assert file_name("../../etc/passwd") == ".._.._etc_passwd"
    assert file_name("or\x1bders") == "or_ders"


def test_where_a_group_goes_on() -> None:
    edges = LogOffsets(50, 90, 90)
    committed = [GroupOffset("g", "t", n, offset, -1, "") for n, offset in enumerate((10, 50, 95))]
    rows = [position_row(one, edges) for one in committed]
    assert [row["reads_from"] for row in rows] == ["archive", "brokers", "brokers"]
    assert [row["lag_offsets"] for row in rows] == [80, 40, 0]
    unknown = position_row(GroupOffset("h", "t", 0, 5, -1, ""), None)
    assert (unknown["lag_offsets"], unknown["reads_from"]) == (None, None)
    assert list(by_group([*rows, unknown])) == [
        {"group": "g", "partitions": 3, "lag_offsets": 120},
        {"group": "h", "partitions": 1, "lag_offsets": None},
    ]
