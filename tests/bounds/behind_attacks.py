"""What is behind the proxy: a broker that answers as it likes, and odd objects in the store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import blown_messages
from attack_parts import Attack, exchange
from blown_messages import Shape
from bomb_archive import ORDERS
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.messages import write_response
from hostile_broker import TOPIC, TOPIC_ID
from victims import Victim

from fetchproxy.runtime.cooperative import at_once
from fetchproxy.serving.archive_only.schemas import response_of

_TEXTS = (
    "\x1b]0;owned\x07\x1b[2J", "a\r\nb", "‮", "\x00", "kafka-2..svc", "." * 300, "x" * 64 + ".y",
    "", "256.256.256.256", "[::1]", "127.0.0.1", "localhost", "n" * 30_000, "%s%n{}",
)  # fmt: skip
_IDS = (-1, -100_000, -5, 0, 1, 2, 2**31 - 1, -(2**31))
_PORTS = (-1, 0, 1, 65_535, 65_536, 2**31 - 1, -(2**31))
_ERRORS = (-1, 0, 1, 3, 6, 7, 14, 29, 56, 70, 74, 100, 129, 32_767, -32_768)
_OWN_APIS = (ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.FETCH, ApiKey.API_VERSIONS)


def _odd_shape(rng: random.Random, key: int, version: int) -> Shape:
    paths = blown_messages.arrays_of(blown_messages.message_name(key, "Response"), version)
    long = rng.choice(paths) if paths else None
    around = {path: rng.choice((1, 3, 30)) for path in paths if path != long}
    text = rng.choice(_TEXTS)
    node = rng.choice(_IDS)
    fixed = {
        "ErrorCode": rng.choice((0, 0, *_ERRORS)),
        "ErrorMessage": text,
        "Host": text,
        "Rack": rng.choice(_TEXTS),
        "Port": rng.choice(_PORTS),
        "NodeId": node,
        "BrokerId": node,
        "LeaderId": node,
        "ClusterId": text,
    }
    return Shape(
        long=long,
        names=rng.choice(("distinct", "same", "empty", "full", "known")),
        frame_bytes=rng.choice((10_000, 1 << 20, 8 << 20)),
        elements_max=rng.choice((0, 3, 10_000, 1 << 30)),
        counts=around,
        fixed=fixed,
        odd=rng.choice((0, rng.getrandbits(30))),
    )


def _spoiled(rng: random.Random, frame: bytes) -> Callable[[], bytes | AsyncIterator[bytes]]:
    """The answer as it is sent: whole, cut, a byte at a time, with a length that lies, or twice."""
    how = rng.choice(
        ("whole", "whole", "whole", "cut", "drip", "size", "negative", "twice", "other")
    )
    cut = rng.randrange(4, len(frame))

    async def drip() -> AsyncIterator[bytes]:
        for at in range(0, min(len(frame), 2_000)):
            yield frame[at : at + 1]
            await asyncio.sleep(0)

    ways: dict[str, Callable[[], bytes | AsyncIterator[bytes]]] = {
        "whole": lambda: frame,
        "cut": lambda: struct.pack(">i", cut - 4) + frame[4:cut],
        "drip": drip,
        "size": lambda: struct.pack(">i", 2**31 - 1) + frame[4:],
        "negative": lambda: struct.pack(">i", -5) + frame[4:],
        "twice": lambda: frame * 2,
        "other": lambda: frame[:4] + struct.pack(">i", 12_345) + frame[8:],
    }
    return ways[how]


def broker(rng: random.Random, victim: Victim) -> Attack:
    """One API's answers are hostile, to clients or to the proxy itself."""
    to_proxy = rng.random() < 0.5
    keys = _OWN_APIS if to_proxy else blown_messages.described()
    key, seed = rng.choice(keys), rng.getrandbits(30)

    def script(requested_key: int, version: int, correlation: int, frame: bytes) -> object:
        if requested_key != key or (key not in blown_messages.described()):
            return None
        own_rng = random.Random(f"{seed} {version}")
        if key == ApiKey.API_VERSIONS and to_proxy and own_rng.random() < 0.5:
            return None
        shape = _odd_shape(own_rng, key, version)
        return _spoiled(own_rng, blown_messages.response(key, version, shape, correlation))()

    async def run(victim: Victim) -> None:
        assert victim.broker is not None
        victim.broker.to_proxy = script if to_proxy else None
        victim.broker.to_hostile = None if to_proxy else script
        await asyncio.gather(*(exchange(victim, frames) for frames in _questions(key, to_proxy)))
        await asyncio.sleep(0.3)
        victim.broker.peaceful()

    whom = "the proxy" if to_proxy else "clients"
    return Attack(f"answers of {ApiKey(key).name} to {whom} from seed {seed}", run)


def _questions(key: int, to_proxy: bool) -> list[list[bytes]]:
    """Requests that lead to the answers: of each version, or those for which the proxy asks."""
    if not to_proxy:
        known = Shape(names="known", known=TOPIC)
        return [
            [blown_messages.request(key, version, known)]
            for version in blown_messages.versions_of(key)
        ]
    below = Shape(
        names="known",
        known=TOPIC,
        fixed={"FetchOffset": 10, "MaxWaitMs": 300, "TopicId": TOPIC_ID.bytes},
    )
    unknown = Shape(
        fixed={"FetchOffset": 10, "MaxWaitMs": 300, "Timestamp": -2},
        long=("Topics",),
        elements_max=30,
    )
    return [
        [blown_messages.request(api, version, shape, client="ordinary")]
        for api, version in ((1, 11), (1, 13), (2, 5), (2, 8), (23, 4))
        for shape in (below, unknown)
    ]


_MANY = 10_000


def _many_partitions(version: int, correlation: int, topics: int, partitions: int) -> bytes:
    node = {"node_id": 1, "host": "127.0.0.1", "port": 1}
    place = {"leader_id": 1, "leader_epoch": 0, "replica_nodes": [1], "isr_nodes": [1]}
    every = [place | {"partition_index": number} for number in range(partitions)]
    named = [
        {"name": f"huge-{n}", "topic_id": TOPIC_ID, "partitions": every} for n in range(topics)
    ]
    values = {"brokers": [node], "topics": named, "cluster_id": "c", "controller_id": 1}
    return bytes(at_once(write_response(response_of(3), values, 3, version, correlation)))


def metadata(rng: random.Random, victim: Victim) -> Attack:
    """Metadata of very many topics and partitions, for a client and for the proxy itself."""
    topics, partitions = rng.choice(((_MANY, 1), (1_000, 20), (1, 20_000), (_MANY, 3)))
    version = rng.choice((1, 9, 12))
    made: dict[tuple[int, int], bytes] = {}

    def script(requested_key: int, version: int, correlation: int, frame: bytes) -> bytes | None:
        if requested_key != ApiKey.METADATA:
            return None
        at = 4 + 4
        if (version, 0) not in made:
            made[version, 0] = _many_partitions(version, 0, topics, partitions)
        whole = made[version, 0]
        return whole[:4] + struct.pack(">i", correlation) + whole[at:]

    async def run(victim: Victim) -> None:
        assert victim.broker is not None
        victim.broker.to_hostile = victim.broker.to_proxy = script
        ask = blown_messages.request(3, version, Shape(names="known", known=TOPIC))
        await exchange(victim, [ask] * 3)
        for frames in _questions(ApiKey.METADATA, True)[:4]:
            await exchange(victim, frames)
        victim.broker.peaceful()

    return Attack(f"Metadata v{version} of {topics} topics × {partitions} partitions", run)


# -- the store ---------------------------------------------------------------------------------


def _metadata_file(archive: Path) -> Path:
    return next(iter(sorted(archive.rglob("*.metadata"))))


def _odd_objects(rng: random.Random, archive: Path) -> tuple[str, list[Path]]:
    """Puts odd files there; what it has done, and the paths to take away again."""
    folder = (
        archive / f"{ORDERS.topic}-{_metadata_file(archive).parent.parent.name.partition('-')[2]}"
    )
    partition = _metadata_file(archive).parent
    sound = _metadata_file(archive).read_bytes()
    name = partition / f"{900:020d}-AAAAAAAAAAAAAAAAAAAAAA.metadata"
    made: list[Path] = []

    def file(path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        made.append(path)

    def many(count: int, content: bytes) -> None:
        for number in range(count):
            file(
                partition / f"{10_000 + number:020d}-AAAAAAAAAAAAAAAAAAA{number % 64:03d}.metadata",
                content,
            )

    def odd_kinds() -> None:
        os.mkfifo(partition / "fifo.metadata")
        os.symlink("/dev/zero", partition / f"{901:020d}-AAAAAAAAAAAAAAAAAAAAAB.metadata")
        os.symlink(partition, partition / "loop")
        (partition / f"{902:020d}-AAAAAAAAAAAAAAAAAAAAAC.metadata").mkdir()
        made.extend(partition / each for each in ("fifo.metadata", "loop"))
        made.extend(partition.glob("000000000000000009*"))

    def folders() -> None:
        for number in range(3_000):
            (archive / f"made-up-{number}").mkdir(exist_ok=True)
            made.append(archive / f"made-up-{number}")

    ways = {
        "large .metadata": lambda: file(name, b"{" + b" " * (64 << 20) + sound[1:]),
        "nested .metadata": lambda: file(name, b"[" * 2_000_000),
        "huge numbers in .metadata": lambda: file(name, sound.replace(b"0", b"9" * 4_000)),
        "5,000 broken .metadata": lambda: many(5_000, b"{}"),
        "5,000 copies of .metadata": lambda: many(5_000, sound),
        "large finished-offsets": lambda: file(partition / "finished-offsets.new", bytes(1 << 20)),
        "large description": lambda: file(archive / "odd.topic", b"{" * (8 << 20)),
        "odd kinds of files": odd_kinds,
        "3,000 empty topics": folders,
        "names of 250": lambda: file(folder / ("n" * 250), b""),
        "bytes that are no text": lambda: file(
            Path(os.fsdecode(os.fsencode(partition) + b"/\xff\xfe")), b""
        ),
        "large log-history": lambda: file(partition / "log-history", b"x" * (16 << 20)),
    }
    how = rng.choice(list(ways))
    ways[how]()
    return how, made


def store(rng: random.Random, victim: Victim) -> Attack:
    seed = rng.getrandbits(30)

    async def run(victim: Victim) -> None:
        _, made = _odd_objects(random.Random(seed), victim.archive)
        try:
            known = Shape(
                names="known", fixed={"FetchOffset": 10, "MaxWaitMs": 600, "Timestamp": 5}
            )
            frames = [
                blown_messages.request(key, version, known)
                for key, version in ((1, 11), (2, 5), (3, 4))
            ]
            for _ in range(3):
                await exchange(victim, frames)
                await asyncio.sleep(0.6)
        finally:
            for path in made:
                with contextlib.suppress(OSError):
                    shutil.rmtree(
                        path
                    ) if path.is_dir() and not path.is_symlink() else path.unlink()

    return Attack(f"odd objects in the store from seed {seed}", run)
