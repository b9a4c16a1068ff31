"""Requests that name as much as a frame holds, that lie, and that are held between requests."""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

import blown_messages
from attack_parts import Attack, Connection, close_all, exchange, heard, open_many, send
from blown_messages import Shape
from bomb_archive import BOMBS, FORGED, MANY_TOPICS, PARTITIONS_EACH, many_name
from fetchproxy_protocol.apis import ApiKey, is_flexible
from fetchproxy_protocol.headers import request_header
from fetchproxy_protocol.messages import write_response
from frame_mutations import hostile_frames
from hostile_broker import Script
from victims import Victim

from fetchproxy.runtime.cooperative import at_once
from fetchproxy.serving.archive_only.schemas import request_of
from fetchproxy.serving.archive_only.table import ADVERTISED
from fetchproxy.serving.limits import ArchiveOnlyLimits, ServingLimits

_READ_BY_RELAY = (
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.API_VERSIONS,
    ApiKey.DELETE_RECORDS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.PRODUCE,
)
_HELD_BYTES = _READ_BY_RELAY[:2] + _READ_BY_RELAY[5:7]
_NAMES = ("distinct", "distinct", "same", "empty", "full", "known")
_UNREAD_BYTES = 4 << 20  # of a request that the relay passes as it comes


def _api(rng: random.Random, victim: Victim) -> tuple[int, int]:
    if victim.broker is not None:
        often = rng.random() < 0.8
        key = rng.choice(_READ_BY_RELAY if often else blown_messages.described())
        return int(key), rng.choice(blown_messages.versions_of(key))
    known = [key for key in ADVERTISED if key in blown_messages.described()]
    key = rng.choice(known)
    versions = blown_messages.versions_of(key)
    low, high = max(versions[0], ADVERTISED[key].lowest), min(versions[-1], ADVERTISED[key].highest)
    return int(key), rng.randint(low, high)


def _frame_bytes(victim: Victim, key: int) -> int:
    if victim.broker is None:
        return ArchiveOnlyLimits().request_bytes_max
    return ServingLimits().held_request_bytes_max if key in _HELD_BYTES else _UNREAD_BYTES


def _shape(rng: random.Random, name: str, version: int, frame_bytes: int) -> Shape:
    paths = blown_messages.arrays_of(name, version)
    long = rng.choice(paths) if paths else None
    around = {path: rng.choice((1, 1, 30)) for path in paths if long and path == long[: len(path)]}
    around.pop(long or (), None)
    return Shape(
        long=long,
        names=rng.choice(_NAMES),
        frame_bytes=frame_bytes + 4,
        # At the limit of elements, and at its half and third for those with arrays of their own.
        elements_max=rng.choice((1 << 30, 49_900, 19_990, 9_990, 6_660, 2_000)),
        counts=around,
        odd=rng.choice((0, 0, rng.getrandbits(30))),
        fixed={"Timestamp": rng.choice((-1, -2, -3, 0, 5)), "FetchOffset": rng.choice((0, 700))},
    )


def requests(rng: random.Random, victim: Victim) -> Attack:
    """One API, one version, one array; the broker's response is as long."""
    key, version = _api(rng, victim)
    name = blown_messages.message_name(key)
    shape = _shape(rng, name, version, _frame_bytes(victim, key))
    responses = _response_shape(rng, key, version, shape)
    repeats = rng.choice((1, 1, 3))
    long = ".".join(shape.long or ("nothing",))

    async def run(victim: Victim) -> None:
        frame = blown_messages.request(key, version, shape)
        if victim.broker is not None:
            victim.broker.to_hostile = scripted(key, responses)
        await exchange(victim, [frame] * repeats)

    what = f"{repeats} × {name} v{version}, {shape.names} names, long {long}, {shape.elements_max}"
    return Attack(f"{what}; answered {responses and responses.long}", run)


def _response_shape(
    rng: random.Random, key: int, version: int, expected_shape: Shape
) -> Shape | None:
    """None: a good broker's response."""
    paths = blown_messages.arrays_of(blown_messages.message_name(key, "Response"), version)
    if not paths or rng.random() < 0.2:
        return None
    like = [
        path for path in paths if expected_shape.long and len(path) == len(expected_shape.long)
    ] or paths
    return Shape(
        long=rng.choice(like),
        names=expected_shape.names,
        frame_bytes=expected_shape.frame_bytes,
        elements_max=expected_shape.elements_max,
        counts={tuple(path): count for path, count in expected_shape.counts.items()},
        odd=rng.choice((0, 0, rng.getrandbits(30))),
        fixed={"ErrorCode": rng.choice((0, 0, 1)), "Offset": 500, "EndOffset": 500},
    )


def scripted(key: int, shape: Shape | None) -> Script:
    """Every request of the API gets a response of this shape."""

    def response(asked_key: int, version: int, correlation: int, frame: bytes) -> bytes | None:
        if asked_key != key or shape is None:
            return None
        return blown_messages.response(key, version, shape, correlation)

    return response


def lies(rng: random.Random, victim: Victim) -> Attack:
    """Counts and lengths that are not true, tagged fields without end, cut and joined requests."""
    seed, count = rng.getrandbits(30), 200

    def sound(rng: random.Random) -> bytes:
        key, version = _api(rng, victim)
        name = blown_messages.message_name(key)
        return blown_messages.request(key, version, _shape(rng, name, version, 2_000))

    async def run(victim: Victim) -> None:
        own_rng = random.Random(seed)
        seeds = [sound(own_rng) for _ in range(30)]
        frames = list(itertools.islice(hostile_frames(own_rng, seeds), count))
        async with asyncio.TaskGroup() as tasks:
            for piece in range(0, count, 5):
                tasks.create_task(exchange(victim, frames[piece : piece + 5]))

    return Attack(f"{count} lying requests from seed {seed}", run)


def tags(rng: random.Random, victim: Victim) -> Attack:
    """Tagged fields: very many, or one that is long, in the header or the body."""
    key, version = _api(rng, victim)
    while not is_flexible(key, version):
        key, version = _api(rng, victim)
    size = _frame_bytes(victim, key) - 100
    in_header, many = rng.random() < 0.3, rng.random() < 0.7

    async def run(victim: Victim) -> None:
        field = blown_messages.uvarint
        fields = field(size // 3) + b"\x64\x00" * (size // 3) if many else b"\x01\x64" + field(size)
        fields += b"" if many else bytes(size)
        head = request_header(key, version, 7, blown_messages.CLIENT_ID)
        shape = Shape(frame_bytes=1_000)
        sound = blown_messages.request(key, version, shape)[4 + len(head) :]
        frame = head[:-1] + fields + sound if in_header else head + sound[:-1] + fields
        await exchange(victim, [struct.pack(">i", len(frame)) + frame] * 2)

    place = "header" if in_header else "body"
    how = "many" if many else "one long"
    return Attack(f"{how} tagged fields in the {place} of {ApiKey(key).name} v{version}", run)


def sessions(rng: random.Random, victim: Victim) -> Attack:
    """Fetch sessions of made-up topics that are held while ordinary clients come."""
    version = rng.choice((11, 12, 13))
    count, names = rng.choice(((3, 45_000), (10, 20_000), (30, 2_000)))
    ordinary = 5

    def response(key: int, version: int, correlation: int, frame: bytes) -> bytes | None:
        if key != ApiKey.FETCH:
            return None
        empty = Shape(
            long=("Responses",),
            elements_max=0,
            fixed={"SessionId": 1_000 + correlation, "ErrorCode": 0},
        )
        return blown_messages.response(key, version, empty, correlation)

    async def hold(connection: Connection, number: int) -> None:
        reader, writer = connection
        first = Shape(
            long=("Topics",),
            frame_bytes=2 << 20,
            elements_max=names,
            counts={("ForgottenTopicsData",): 0},
            fixed={"SessionEpoch": 0, "FetchOffset": 10, "MaxWaitMs": 500},
            salt=number,
        )
        follow = Shape(
            long=("Topics",),
            elements_max=0,
            counts={("ForgottenTopicsData",): 0},
            fixed={"SessionEpoch": 1, "SessionId": 1_000 + number, "MaxWaitMs": 500},
        )
        for correlation, shape in ((number, first), (number, follow)):
            await send(writer, [blown_messages.request(1, version, shape, correlation)])
            await heard(reader, 1)

    async def run(victim: Victim) -> None:
        if victim.broker is not None:
            victim.broker.to_hostile = response
        connections = await open_many(victim, count)
        await asyncio.gather(*(hold(each, number) for number, each in enumerate(connections, 1)))
        known = Shape(names="known", fixed={"FetchOffset": 10})
        frame = blown_messages.request(1, 11, known, client="ordinary")
        await asyncio.gather(*(exchange(victim, [frame]) for _ in range(ordinary)))
        close_all(connections)

    return Attack(f"{count} sessions (v{version}) of {names} topics, then ordinary clients", run)


def connections(rng: random.Random, victim: Victim) -> Attack:
    """Very many connections: silent, with half a request, or that read no answers."""
    how = rng.choice(("silent", "half", "pipelined", "one by one", "half closed"))
    count = rng.choice((200, 1_000)) if how != "pipelined" else 30
    ask = blown_messages.request(18, 0, Shape())

    async def one(connection: Connection) -> None:
        reader, writer = connection
        if how == "half":
            whole = blown_messages.request(3, 1, Shape(long=("Topics",), frame_bytes=100_000))
            await send(writer, [whole[: len(whole) // 2]])
        elif how == "pipelined":
            await send(writer, [ask * 5_000])
        elif how == "one by one":
            await send(writer, [ask[at : at + 1] for at in range(len(ask))])
            await heard(reader, 1)
        elif how == "half closed":
            await send(writer, [ask])
            if writer.can_write_eof():
                writer.write_eof()
            await heard(reader, 2)

    async def run(victim: Victim) -> None:
        every = await open_many(victim, count)
        await asyncio.gather(*(one(each) for each in every))
        await asyncio.sleep(0.5)
        close_all(every)

    return Attack(f"{count} connections, {how}", run)


def bombs(rng: random.Random, victim: Victim) -> Attack:
    """Look-ups by time and fetches of batches that unpack to much."""
    topic = rng.choice(list(BOMBS))
    fetches = rng.random() < 0.3
    repeats = rng.choice((1, 3))

    async def run(victim: Victim) -> None:
        fixed = {"Timestamp": 200_000 + 7, "FetchOffset": 0, "MaxWaitMs": 100, "PartitionIndex": 0}
        shape = Shape(names="known", known=topic, fixed={**fixed, "Partition": 0})
        key, version = (1, 11) if fetches else (2, 5)
        await exchange(victim, [blown_messages.request(key, version, shape)] * repeats)

    return Attack(f"{repeats} × {'Fetch' if fetches else 'ListOffsets by time'} of {topic}", run)


def transactions(rng: random.Random, victim: Victim) -> Attack:
    """Committed reads of segments with forged lists of aborted transactions."""
    topics = rng.sample(list(FORGED), rng.randint(1, len(FORGED)))
    count, version = rng.choice((1, 4, 16)), rng.choice((4, 11, 12))
    seed = rng.getrandbits(30)

    async def one(victim: Victim, own_rng: random.Random) -> None:
        frames = [
            blown_messages.request(
                1,
                version,
                Shape(
                    names="known",
                    known=own_rng.choice(topics),
                    fixed={
                        "FetchOffset": own_rng.randrange(9_000),
                        "Partition": 0,
                        "IsolationLevel": 1,
                        "MaxWaitMs": 500,
                        "PartitionMaxBytes": 1 << 20,
                    },
                ),
            )
            for _ in range(6)
        ]
        await exchange(victim, frames)

    async def run(victim: Victim) -> None:
        own_rng = random.Random(seed)
        await asyncio.gather(*(one(victim, own_rng) for _ in range(count)))

    return Attack(f"{count} × committed reads (v{version}) of {', '.join(topics)}", run)


def repeats(rng: random.Random, victim: Victim) -> Attack:
    """Fetches that repeat the one before, then one that differs in a byte or two."""
    version = rng.choice(blown_messages.versions_of(1)[7:])
    epoch, frames_each = rng.choice((-1, 0, 1)), rng.choice((3, 30, 300))
    seed = rng.getrandbits(30)
    shape = _shape(rng, "FetchRequest", version, rng.choice((300, 4_000, 5_000)))
    answers = _response_shape(rng, 1, version, replace(shape, frame_bytes=2_000))

    async def run(victim: Victim) -> None:
        own_rng = random.Random(seed)
        fixed = {**shape.fixed, "SessionEpoch": epoch, "SessionId": 7, "MaxWaitMs": 0}
        sound = blown_messages.request(1, version, replace(shape, fixed=fixed))
        frames = []
        for number in range(frames_each):
            frame = bytearray(sound)
            frame[8:12] = struct.pack(">i", number)
            if own_rng.random() < 0.1:
                frame[own_rng.randrange(8, len(frame))] = own_rng.randrange(256)
            frames.append(bytes(frame))
        if victim.broker is not None:
            victim.broker.to_hostile = scripted(1, answers) if own_rng.random() < 0.5 else None
        await asyncio.gather(*(exchange(victim, frames) for _ in range(3)))

    return Attack(f"3 × {frames_each} fetches (v{version}, epoch {epoch}) that repeat", run)


def crowds(rng: random.Random, victim: Victim) -> Attack:
    """Very many clients with the same large request, or with a short one for all there is."""
    how = rng.choice(list(_CROWDS))
    count = rng.choice((30, 100, 300))

    async def run(victim: Victim) -> None:
        frame = _CROWDS[how]()
        await asyncio.gather(*(exchange(victim, [frame]) for _ in range(count)))

    return Attack(f"{count} clients at once: {how}", run)


def groups(rng: random.Random, victim: Victim) -> Attack:
    """Groups with many members, protocols and names."""
    how = rng.choice((_many_protocols, _many_members, _many_groups))
    return Attack(how.__doc__ or "", how)


def tables(rng: random.Random, victim: Victim) -> Attack:
    """All that a table holds: 100,000 commits, or every topic."""
    how = rng.choice((_many_commits, _all_topics))
    return Attack(how.__doc__ or "", how)


async def _many_protocols(victim: Victim) -> None:
    """60 members with 9,000 protocols each"""
    shape = Shape(long=("Protocols",), elements_max=9_000, fixed={"GroupId": "protocols"})
    await _joined(victim, 60, [blown_messages.request(11, 1, shape)])


async def _many_members(victim: Victim) -> None:
    """300 members with 100 protocols each, then a sync with 19,900 assignments, and a leave"""
    shape = Shape(long=("Protocols",), elements_max=100, fixed={"GroupId": "members"})
    sync = Shape(long=("Assignments",), elements_max=19_900, fixed={"GroupId": "members"})
    leave = Shape(long=("Members",), elements_max=19_900, fixed={"GroupId": "members"})
    frames = [blown_messages.request(11, 1, shape)]
    every = await _joined(victim, 300, frames, close=False)
    await exchange(victim, [blown_messages.request(14, 4, sync)])
    await exchange(victim, [blown_messages.request(13, 4, leave)])
    close_all(every)


async def _many_groups(victim: Victim) -> None:
    """10,000 groups of which each has one member that is about to join, then they are listed"""
    frames = [
        blown_messages.request(11, 5, Shape(fixed={"GroupId": f"g{n}"})) for n in range(10_000)
    ]
    await exchange(victim, frames)
    named = Shape(long=("Groups",), elements_max=19_900)
    await exchange(
        victim, [blown_messages.request(16, 4, Shape(long=("StatesFilter",), elements_max=0))]
    )
    await exchange(victim, [blown_messages.request(15, 5, named)])
    await exchange(
        victim, [blown_messages.request(42, 2, Shape(long=("GroupsNames",), elements_max=19_900))]
    )


async def _joined(
    victim: Victim, count: int, frames: list[bytes], *, close: bool = True
) -> list[Connection]:
    every = await open_many(victim, count)
    for _, writer in every:
        await send(writer, frames)
    await asyncio.gather(*(heard(reader, 1) for reader, _ in every[:3]))
    if close:
        close_all(every)
    return every


def _commit(group: str, offset: int) -> bytes:
    head = request_header(8, 2, 7, blown_messages.CLIENT_ID)
    partitions = [
        {"partition_index": p, "committed_offset": offset, "committed_metadata": "m" * 10}
        for p in range(PARTITIONS_EACH - 1)
    ]
    every = [{"name": many_name(n), "partitions": partitions} for n in range(MANY_TOPICS)]
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time_ms": -1,
        "topics": every,
    }
    body = at_once(write_response(request_of(8), values, 8, 2, 0))[8:]  # behind size and id
    return struct.pack(">i", len(head) + len(body)) + head + body


def _fetch_of_all() -> bytes:
    """Of 19,900 partitions without a record, so that it waits."""
    partitions = [{"partition": n, "partition_max_bytes": 1_024} for n in range(PARTITIONS_EACH)]
    every = [{"topic": many_name(n), "partitions": partitions} for n in range(MANY_TOPICS - 1)]
    values = {"replica_id": -1, "max_wait_ms": 30_000, "min_bytes": 1, "max_bytes": 1 << 20}
    head = request_header(1, 4, 7, blown_messages.CLIENT_ID)
    body = at_once(write_response(request_of(1), values | {"topics": every}, 1, 4, 0))[8:]
    return struct.pack(">i", len(head) + len(body)) + head + body


def _one_name_of_many_ids() -> bytes:
    """Of a topic with partitions: the response has each topic once."""
    name = many_name(1).encode()
    ids = [
        b"%016d" % n + blown_messages.uvarint(len(name) + 1) + name + b"\0" for n in range(19_900)
    ]
    head = request_header(3, 12, 7, blown_messages.CLIENT_ID)
    body = blown_messages.uvarint(len(ids) + 1) + b"".join(ids) + b"\0\0\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def _named_again(key: int, version: int, path: tuple[str, ...]) -> bytes:
    shape = Shape(names="known", long=path, frame_bytes=1 << 20, elements_max=19_900)
    return blown_messages.request(key, version, shape)


_CROWDS: Mapping[str, Callable[[], bytes]] = {
    "fetches of all partitions": _fetch_of_all,
    "one name with many ids": _one_name_of_many_ids,
    "commits of all partitions": lambda: _commit("crowd", 1),
    "epochs of one partition": lambda: _named_again(23, 4, ("Topics", "Partitions")),
    "offsets of one partition": lambda: _named_again(2, 5, ("Topics", "Partitions")),
    "types of resources": lambda: _named_again(74, 1, ("ResourceTypes",)),
    "all topics": lambda: blown_messages.request(3, 1, Shape(long=("Topics",), elements_max=0)),
    "all offsets": lambda: _fetch_all("commits-0"),
}


async def _many_commits(victim: Victim) -> None:
    """19,800 commits of 5 groups each, and again, then they are fetched and deleted"""
    for offset in range(2):
        frames = [_commit(f"commits-{n}", offset) for n in range(5)]
        await asyncio.gather(*(exchange(victim, [frame]) for frame in frames))
    await exchange(victim, [_fetch_all("commits-0")])
    for n in range(5):
        one = Shape(fixed={"GroupsNames": f"commits-{n}"})
        await exchange(victim, [blown_messages.request(42, 1, one)])


def _fetch_all(group: str) -> bytes:
    """A null array asks for all topics."""
    head = request_header(9, 5, 7, blown_messages.CLIENT_ID)
    body = struct.pack(">h", len(group)) + group.encode() + struct.pack(">i", -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


async def _all_topics(victim: Victim) -> None:
    """Metadata, DescribeTopicPartitions and DescribeLogDirs of all topics, ten times each"""
    head = request_header(3, 1, 7, blown_messages.CLIENT_ID) + struct.pack(">i", -1)
    dirs = request_header(35, 1, 7, blown_messages.CLIENT_ID) + struct.pack(">i", -1)
    some = Shape(long=("Topics",), elements_max=0, fixed={"Cursor": None})
    pages = blown_messages.request(75, 0, some)
    for frame in (head, dirs):
        await exchange(victim, [struct.pack(">i", len(frame)) + frame] * 10)
    await exchange(victim, [pages] * 10)
