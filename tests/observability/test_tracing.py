"""Traces of archived fetches and of copies, and the collector that they go to."""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from archive_harness import open_archive
from bomb_archive import ORDERS
from faulty_store import HANG
from fetchproxy_command import COMMAND
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from planted_archive import PlantedArchive, batch
from proxy_process import PROJECT
from raw_fetch import RawConnection
from read_side import batches, fetched, read_side
from test_segment_copier import FINISHED, HeldStore, accumulated, confirmed, copier

from fetchproxy.errors import ConfigError, StorageUnavailable
from fetchproxy.observability.tracing import NO_SPAN, begin_span, span, tracing
from fetchproxy.reading.segment_reader import CompletionReason
from lab.process import ServerProcess, free_port, port_responses

FETCH_VERSION = 16
FETCH_TREE = {
    "archived fetch": None,
    "remote read": "archived fetch",
    "remote load": "remote read",
    "store read": "remote load",
}


def tree(spans: tuple[ReadableSpan, ...]) -> dict[str, str | None]:
    """The parent's name by the name of each span."""
    names = {each.context.span_id: each.name for each in spans if each.context is not None}
    return {each.name: each.parent and names[each.parent.span_id] for each in spans}


def named(spans: tuple[ReadableSpan, ...], name: str) -> list[ReadableSpan]:
    return [each for each in spans if each.name == name]


async def test_a_fetch_is_the_parent_of_all_that_is_read_for_it() -> None:
    spans = InMemorySpanExporter()
    async with tracing(True, spans), read_side() as side:
        await side.segment(batches(side.rng, 0, 8))
        for _ in ("from the store", "from memory"):
            fetch = await fetched(side, 15)
            assert fetch.reason is CompletionReason.DATA
    finished_spans = spans.get_finished_spans()
    assert FETCH_TREE.items() <= tree(finished_spans).items()
    first, second = (each.attributes or {} for each in named(finished_spans, "archived fetch"))
    assert (first["partitions"], first["reason"], first["bytes"]) == (1, "data", 3_000)
    assert second["bytes"] == 3_000
    (read_span,) = named(finished_spans, "remote read")
    assert (read_span.attributes or {})["offset"] == 15
    keys = {
        str((each.attributes or {})["key"])[-4:] for each in named(finished_spans, "store read")
    }
    assert ".log" in keys


async def test_a_store_that_hangs_is_a_fetch_that_expires() -> None:
    spans = InMemorySpanExporter()
    async with tracing(True, spans), read_side() as side:
        await side.segment(batches(side.rng, 0, 8))
        side.store.faults = HANG
        fetch = side.watch(side.request(15), wait_s=0.2)
        await fetch.completed.wait()
        assert fetch.reason is CompletionReason.DEADLINE
    (expired,) = named(spans.get_finished_spans(), "archived fetch")
    assert (expired.attributes or {})["reason"] == CompletionReason.DEADLINE.value


async def test_a_copy_is_the_parent_of_its_uploads(tmp_path: Path) -> None:
    spans, store = InMemorySpanExporter(), HeldStore()
    store.go_on.set()
    async with tracing(True, spans), open_archive(store) as archive:
        copied = await copier(archive).copy(accumulated(tmp_path / "log"), (), confirmed)
        assert copied.state is FINISHED
    finished_spans = spans.get_finished_spans()
    (copy,) = named(finished_spans, "copy segment")
    assert copy.status.status_code is StatusCode.UNSET
    writes = [each for each in named(finished_spans, "store write") if each.parent == copy.context]
    assert any(str((each.attributes or {})["key"]).endswith(".log") for each in writes)


async def test_a_copy_that_fails_says_so(tmp_path: Path) -> None:
    spans, store = InMemorySpanExporter(), HeldStore()
    async with tracing(True, spans), open_archive(store) as archive:
        with pytest.raises(StorageUnavailable):
            await copier(archive, copy_max_ms=50).copy(accumulated(tmp_path / "log"), (), confirmed)
    (copy,) = named(spans.get_finished_spans(), "copy segment")
    assert copy.status.status_code is StatusCode.ERROR
    assert "took over 50 ms" in str(copy.status.description)


async def test_without_traces_there_are_no_spans() -> None:
    spans = InMemorySpanExporter()
    async with tracing(False, spans):
        assert begin_span("archived fetch") is NO_SPAN
        with span("remote load"), NO_SPAN.as_parent():
            NO_SPAN.end(bytes=1)
    assert not spans.get_finished_spans()


async def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[tracing\]'"):
        async with tracing(True):
            raise AssertionError


class SilentCollector(InMemorySpanExporter):
    """Takes spans, and says nothing until it `responds`."""

    def __init__(self) -> None:
        super().__init__()
        self.responds = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.responds.wait()
        return super().export(spans)


async def test_a_collector_that_does_not_respond_holds_up_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fetchproxy.observability.tracing._FLUSH_MAX_S", 0.1)
    collector = SilentCollector()
    try:
        async with asyncio.timeout(60):
            async with tracing(True, collector):
                for _ in range(2_000):
                    with span("remote load"):
                        pass
        assert not collector.responds.is_set()
        assert collector.get_finished_spans() == ()
    finally:
        collector.responds.set()


class Collector:
    """Takes OTLP over HTTP. `token`: the header that each request has to have."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.port = free_port()
        self.names: list[str] = []
        self.services: set[str] = set()

    async def take(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != self.token:
            return web.Response(status=401)
        message = ExportTraceServiceRequest.FromString(await request.read())
        for one in message.resource_spans:
            self.services |= {
                pair.value.string_value
                for pair in one.resource.attributes
                if pair.key == "service.name"
            }
            self.names += [each.name for scope in one.scope_spans for each in scope.spans]
        return web.Response(content_type="application/x-protobuf")


@asynccontextmanager
async def collecting(token: str) -> AsyncIterator[Collector]:
    collector = Collector(token)
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", collector.port).start()
    yield collector
    await runner.cleanup()


async def plant(folder: Path) -> None:
    planted = PlantedArchive()
    await planted.add([batch(10 * number) for number in range(10)], tp=ORDERS)
    async for stored_object in planted.store.list(""):
        (folder / stored_object.key).parent.mkdir(parents=True, exist_ok=True)
        (folder / stored_object.key).write_bytes(await planted.store.get(stored_object.key))


def served_one_fetch(folder: Path) -> None:
    port = free_port()
    words = ["serve", "--archive-only", "--store", (folder / "archive").as_uri()]
    words += ["--listen", f"127.0.0.1:{port}", "--set", "tracing.enabled=true"]
    process = ServerProcess("fetchproxy", [*COMMAND, *words], folder / "log", cwd=PROJECT)
    process.start()
    try:
        process.wait_until(lambda: port_responses(port), timeout_s=120)
        with RawConnection(f"127.0.0.1:{port}") as raw:
            fetched = raw.fetch_until_data(FETCH_VERSION, ORDERS.topic, ORDERS.topic_id, 0)
        assert fetched.batches
    finally:
        process.stop()


@pytest.mark.parametrize("away", [False, True])
async def test_a_process_sends_its_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """With the collector away it serves, and ends, as ever."""
    await plant(tmp_path)
    async with collecting(f"Bearer {uuid.uuid4()}") as collector:
        port = free_port() if away else collector.port
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={collector.token}")
        await asyncio.to_thread(served_one_fetch, tmp_path)
    if away:
        assert not collector.names
    else:
        assert FETCH_TREE.keys() <= set(collector.names)
        assert collector.services == {"fetchproxy"}
