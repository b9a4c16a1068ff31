"""Who reads history: all accounts together have what the store itself has counted."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from random import Random

from calm_replay import BATCH_BYTES, BATCH_OFFSETS, PlainReader, Replay, now, run_replay
from faulty_store import NO_FAULTS, Faults

from fetchproxy.config.schema import GatewayConfig, KiB, RemoteFetchConfig
from fetchproxy.model import ByteRange
from fetchproxy.observability import metrics
from fetchproxy.observability.metrics import series_of
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.storage.reader_accounts import (
    FORGOTTEN_AFTER_S,
    OTHER,
    SERIES_MAX,
    THIS_PROCESS,
    ReaderAccount,
)
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, Content, WrappedObjectStore

CLIENTS = 1_000
PARTITIONS = 20
BATCHES = 60
# A fifth of the archive, so that most clients find their chunks gone.
SMALL_CACHE = RemoteFetchConfig(chunk_cache_bytes_max=240 * KiB)
SMALL_CHUNKS = ReadingLimits(chunk_bytes=16 * KiB, read_ahead_chunks_max=2)
MANY = GatewayConfig(listen="127.0.0.1:9192", connections_max=4_000, connections_per_ip_max=4_000)
PASSING = Faults(latency_s_min=0.01, latency_s_max=0.6, failing_share=0.02)


class CountingStore(WrappedObjectStore):
    """The store's own counters. Requests that a fault ends do not come here."""

    gets = lists = sent_bytes = 0

    def around(self, verb: str, key: str | None = None) -> AbstractAsyncContextManager[object]:
        self.lists += verb in ("list", "list_folders")
        return nullcontext(lambda: None)

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        return self._count(await self.inner.get(key, bytes_max))

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        return self._count(await self.inner.get_range(key, byte_range))

    def _count(self, content):  # type: ignore[no-untyped-def]
        self.gets += 1
        self.sent_bytes += len(content)
        return content


def total(replay: Replay, name: str) -> int:
    accounts = replay.accounts
    every = [*accounts.clients(), accounts.others, accounts.this_process]
    return sum(getattr(account, name) for account in every)


def near(counted: int, true: int) -> bool:
    return abs(counted - true) <= 0.02 * true


async def read_all(
    replay: Replay, clients: int, rng: Random, name: str = "app"
) -> list[PlainReader]:
    """Each client reads one partition to its end, at a time of its own."""
    readers = [
        PlainReader(f"{name}-{number}", [rng.choice(replay.logs).tp], host=f"10.0.{number % 50}.1")
        for number in range(clients)
    ]

    async def read(reader: PlainReader, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await reader.read(now() + 10_000, BATCHES * BATCH_OFFSETS)

    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(read(reader, rng.uniform(0, 60)))
    return readers


def test_the_accounts_of_a_thousand_clients_add_up_to_the_stores_own_counters() -> None:
    async def main(replay: Replay) -> None:
        store = replay.store.inner = CountingStore(replay.store.inner)
        replay.store.faults = PASSING
        begun, reads_before = total(replay, "gets"), len(replay.store.reads)
        lists, came = total(replay, "lists"), total(replay, "store_bytes")
        readers = await read_all(replay, CLIENTS, Random(11))
        replay.store.faults = NO_FAULTS
        gets = len(replay.store.reads) - reads_before
        assert gets > CLIENTS
        assert store.sent_bytes > 20 * PARTITIONS * BATCHES * BATCH_BYTES
        assert near(total(replay, "gets") - begun, gets)
        assert near(total(replay, "store_bytes") - came, store.sent_bytes)
        assert total(replay, "lists") - lists >= store.lists > 0
        accounts = {one.client.client_id: one for one in replay.accounts.clients()}
        assert len(accounts) == CLIENTS
        for reader in readers:
            account = accounts[reader.name]
            assert account.client.address == reader.host
            assert account.served_bytes >= reader.size() == BATCHES * BATCH_BYTES
        # Nearly all of it was read for the clients, and not for the process itself.
        assert replay.accounts.this_process.store_bytes < 0.02 * store.sent_bytes

    run_replay(
        *(SMALL_CACHE, main),
        partitions=PARTITIONS,
        batches=BATCHES,
        gateway=MANY,
        reading=SMALL_CHUNKS,
    )


def test_the_first_that_asks_pays_for_a_read_that_others_share() -> None:
    async def main(replay: Replay) -> None:
        tps = [replay.logs[0].tp]
        first, second = (PlainReader(name, tps, host="10.0.0.1") for name in ("first", "second"))
        await first.read(now() + 100, BATCHES * BATCH_OFFSETS)
        await second.read(now() + 100, BATCHES * BATCH_OFFSETS)
        paid, free = replay.accounts.clients()
        assert (paid.client.client_id, free.client.client_id) == ("first", "second")
        assert paid.store_bytes >= BATCHES * BATCH_BYTES
        assert (free.gets, free.store_bytes) == (0, 0)
        assert free.served_bytes == paid.served_bytes == BATCHES * BATCH_BYTES

    run_replay(RemoteFetchConfig(), main, partitions=1, batches=BATCHES)


def series() -> set[tuple[str, ...]]:
    return {tuple(labels) for labels in series_of(metrics.READER_SERVED_BYTES)}


def served_in_metrics() -> float:
    samples = [s for family in metrics.READER_SERVED_BYTES.collect() for s in family.samples]
    return sum(sample.value for sample in samples)


def test_series_are_bounded_and_go_with_their_clients() -> None:
    async def main(replay: Replay) -> None:
        before, served = series(), served_in_metrics()
        clients = 2 * SERIES_MAX
        await read_all(replay, clients, Random(12), "series")
        await replay.accounts.settle()
        added = series() - before
        assert len(added - {tuple(OTHER), tuple(THIS_PROCESS)}) == SERIES_MAX
        assert served_in_metrics() - served == total(replay, "served_bytes")
        hungry = next(one for one in replay.accounts.clients() if one.series is None)
        await replay.accounts.look()
        tps = [log.tp for log in replay.logs]
        reader = PlainReader(hungry.client.client_id, tps, host=hungry.client.address)
        await reader.read(now() + 100, BATCHES * BATCH_OFFSETS)
        await replay.accounts.look()
        assert tuple(hungry.client) in series()  # it has read most since the last look
        assert len(series() - before - {tuple(OTHER), tuple(THIS_PROCESS)}) == SERIES_MAX
        whole = total(replay, "served_bytes"), total(replay, "gets")
        await asyncio.sleep(FORGOTTEN_AFTER_S + 1)
        await replay.accounts.look()
        assert not replay.accounts.clients()
        assert series() - before <= {tuple(OTHER), tuple(THIS_PROCESS)}
        assert (total(replay, "served_bytes"), total(replay, "gets")) == whole

    run_replay(RemoteFetchConfig(), main, partitions=3, batches=BATCHES, gateway=MANY)


def test_the_time_that_a_client_was_told_to_wait_is_on_its_account() -> None:
    async def main(replay: Replay) -> None:
        reader = PlainReader("slow", [replay.logs[0].tp], host="10.0.0.1")
        await reader.read(now() + 1_000, BATCHES * BATCH_OFFSETS)
        account: ReaderAccount = replay.accounts.clients()[0]
        told_s = sum(reader.throttles_ms) / 1000
        assert told_s > 3
        assert told_s - 0.001 * reader.responses <= account.throttle_s <= told_s

    run_replay(
        RemoteFetchConfig(client_bytes_per_s_max=10_000), main, partitions=1, batches=BATCHES
    )
