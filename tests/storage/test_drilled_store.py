"""The faults of a drill, on a store that notes each request that reaches it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from memory_object_store import MemoryObjectStore
from virtual_loop import run_virtual

from fetchproxy.errors import ConfigError, StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.runtime.drills import DRILL_MAX_S, LEASE_S, SLOW_S, Drill, Fault
from fetchproxy.storage.drilled_store import DrilledObjectStore

LOG, OTHER = "t/0/1.log", "t/0/1.metadata"
CONTENT = b"0123456789"


class Scene:
    def __init__(self) -> None:
        self.inner, self.drill = MemoryObjectStore(), Drill()
        self.drill.allow()
        self.store = DrilledObjectStore(self.inner, self.drill)

    async def fill(self) -> None:
        for key in (LOG, OTHER):
            await self.store.put(key, CONTENT)

    async def keys(self) -> list[str]:
        return [stored_object.key async for stored_object in self.inner.list("")]


@pytest.mark.parametrize("fault", [Fault.STORE_DOWN, Fault.STORE_CORRUPT])
async def test_no_write_reaches_the_store(fault: Fault, tmp_path: Path) -> None:
    scene, path = Scene(), tmp_path / "file"
    path.write_bytes(b"x")
    await scene.fill()
    scene.drill.begin(fault, 60)
    store = scene.store
    for write in (
        store.put(LOG, b"x"),
        store.put_new("new", b"x"),
        store.put_file("new", path),
        store.delete(LOG),
        store.abort_stale_uploads("", 0, lambda _: True),
    ):
        with pytest.raises(StorageUnavailable, match="the drill"):
            await write
    scene.drill.end("test")
    assert await scene.keys() == [LOG, OTHER]
    assert [await store.get(key) for key in (LOG, OTHER)] == [CONTENT, CONTENT]
    await store.put("new", b"x")


async def test_a_store_that_is_down_gives_nothing_out() -> None:
    scene = Scene()
    await scene.fill()
    scene.drill.begin(Fault.STORE_DOWN, 60)
    for store_read in (scene.store.get(LOG), scene.store.get_range(LOG, ByteRange(0, 1))):
        with pytest.raises(StorageUnavailable):
            await store_read
    with pytest.raises(StorageUnavailable):
        [_ async for _ in scene.store.list("")]
    with pytest.raises(StorageUnavailable):
        [_ async for _ in scene.store.list_folders("")]
    scene.drill.end("test")


async def test_only_what_a_reader_gets_of_a_log_is_damaged() -> None:
    scene = Scene()
    await scene.fill()
    scene.drill.begin(Fault.STORE_CORRUPT, 60)
    damaged = await scene.store.get_range(LOG, ByteRange(0, 10))
    assert [one ^ other for one, other in zip(damaged, CONTENT, strict=True)].count(1) == 1
    assert await scene.store.get_range(OTHER, ByteRange(0, 10)) == CONTENT
    assert await scene.store.get(LOG) == CONTENT
    assert await scene.inner.get_range(LOG, ByteRange(0, 10)) == CONTENT
    scene.drill.end("test")
    assert await scene.store.get_range(LOG, ByteRange(0, 10)) == CONTENT


def test_reads_are_slow_until_the_drill_ends() -> None:
    async def steps() -> list[float]:
        scene, clock = Scene(), asyncio.get_running_loop().time
        await scene.fill()
        scene.drill.begin(Fault.STORE_SLOW, SLOW_S * 1.5)
        times = [clock()]
        for _ in range(3):
            await scene.store.get(LOG)
            times.append(clock())
        return [after - before for before, after in pairwise(times)]

    assert run_virtual(steps) == pytest.approx([SLOW_S, SLOW_S / 2, 0])


@pytest.mark.parametrize(
    ("for_s", "asks_s", "ends_s"),
    [(5.0, 1.0, 5.0), (100.0, 1.0, 100.0), (100.0, 1_000.0, LEASE_S)],
)
def test_a_drill_ends_at_its_time_or_when_nobody_asks(
    for_s: float, asks_s: float, ends_s: float
) -> None:
    async def lasts() -> float:
        drill, clock = Drill(), asyncio.get_running_loop().time
        drill.allow()
        began_at = clock()
        drill.begin(Fault.STORE_DOWN, for_s)
        next_at = began_at + asks_s
        while drill.fault is not None:
            assert drill.left_s == pytest.approx(began_at + for_s - clock())
            await asyncio.sleep(0.5)
            if clock() >= next_at:
                drill.renew()
                next_at += asks_s
        assert drill.left_s == 0
        return clock() - began_at

    assert run_virtual(lasts) == pytest.approx(ends_s, abs=0.5)


async def test_what_is_refused() -> None:
    drill = Drill()
    with pytest.raises(ConfigError, match="not allowed here"):
        drill.begin(Fault.STORE_DOWN, 1)
    drill.allow()
    for for_s in (0.0, -1.0, float("nan"), float("inf"), DRILL_MAX_S + 1):
        with pytest.raises(ConfigError, match="at most 3600 s"):
            drill.begin(Fault.STORE_DOWN, for_s)
    drill.begin(Fault.STORE_DOWN, DRILL_MAX_S)
    with pytest.raises(ConfigError, match="is running"):
        drill.begin(Fault.STORE_SLOW, 1)
    drill.end("test")
    drill.end("again")
    assert drill.fault is None


class Connection(asyncio.Transport):
    aborted = False

    def abort(self) -> None:
        self.aborted = True


async def test_only_the_named_broker_is_away() -> None:
    drill = Drill()
    drill.allow()
    to_a, to_b = Connection(), Connection()
    drill.dialed(("a", 1), to_a)
    drill.dialed(("b", 1), to_b)
    with pytest.raises(ConfigError, match="no broker c:1 is connected; there are: a:1, b:1"):
        drill.begin(Fault.BROKER_DOWN, 10, ("c", 1))
    drill.begin(Fault.BROKER_DOWN, 10, ("a", 1))
    assert (to_a.aborted, to_b.aborted) == (True, False)
    drill.before_dial(("b", 1))
    with pytest.raises(ConnectionRefusedError):
        drill.before_dial(("a", 1))
    drill.end("test")
    drill.before_dial(("a", 1))
    drill.begin(Fault.BROKER_DOWN, 10)
    with pytest.raises(ConnectionRefusedError):
        drill.before_dial(("b", 1))
    drill.end("test")
