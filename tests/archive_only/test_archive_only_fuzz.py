"""A hostile client (see tests/fuzz) beside others: nothing fails, nothing is left of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import struct
from typing import Any

import pytest
from fetchproxy_protocol.messages import ELEMENTS_MAX
from frame_mutations import TOPIC_ID, hostile_frames, recorded_frames
from hostile_client import CONNECTIONS, Hostility
from planted_archive import PlantedArchive, batch
from served_archive import ServedArchive, serve_archive
from structlog.testing import capture_logs
from test_archive_only_apis import ORDERS, fetch, one

from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import ARCHIVE_ONLY_REQUESTS, WIRE_ERRORS

FRAMES = 3_000
FUZZED = TopicIdPartition(TOPIC_ID, "fuzzed", 0)


async def plant() -> PlantedArchive:
    planted = PlantedArchive()
    await planted.add([batch(0), batch(10)])
    await planted.add([batch(10 * i) for i in range(100)], tp=FUZZED)
    return planted


async def attack(served: ServedArchive, seed: int) -> Hostility:
    rng = random.Random(seed)
    frames = itertools.islice(hostile_frames(rng, recorded_frames(TOPIC_ID)), FRAMES)
    hostility = Hostility(served.server.port, frames, rng)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(hostility.attack())
    return hostility


def total(counter: Any) -> float:
    return sum(sample.value for metric in counter.collect() for sample in metric.samples
               if sample.name.endswith("_total"))  # fmt: skip


async def test_hostile_frames_harm_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    unhandled: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    responded, malformed = total(ARCHIVE_ONLY_REQUESTS), total(WIRE_ERRORS)
    # The longest that a request may wait, so that the end of the test waits for nobody.
    settings = {"gateway": {"idle_max_ms": 2_000}}
    with capture_logs() as lines, caplog.at_level(logging.WARNING):
        async with serve_archive(await plant(), settings, half_frame_max_ms=2_000) as served:
            hostility = await attack(served, seed=3)
            good = await served.client()
            part = one(await fetch(good, 11, {ORDERS: 0}))
            assert bytes(part.records) == batch(0) + batch(10)
            await good.close()
            async with asyncio.timeout(30):
                while served.server.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
    assert hostility.frames_sent == FRAMES
    assert total(ARCHIVE_ONLY_REQUESTS) - responded > FRAMES / 10, "most must get past the start"
    assert total(WIRE_ERRORS) - malformed > FRAMES / 50, "and many be read in vain"
    assert not unhandled
    assert not caplog.records
    assert not [line for line in lines if line["log_level"] in ("error", "critical")]


async def test_an_entry_named_often_is_answered_once() -> None:
    """Few bytes of a request must not make a response that fills the memory."""
    async with serve_archive(await plant()) as served:
        client = await served.client()
        names = ELEMENTS_MAX * b"\x00\x06orders"
        body = struct.pack(">hhih", 3, 1, 5, -1) + struct.pack(">i", ELEMENTS_MAX) + names
        client.writer.write(struct.pack(">i", len(body)) + body)
        assert len(await client.receive()) < 1_000
