"""The layout of a journal object, and how the entries of several objects become one log."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from contextlib import suppress
from itertools import pairwise
from random import Random
from uuid import UUID

import pytest
from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.primitives import Buffer
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import ByteRange, TopicIdPartition, is_topic_name
from fetchproxy.segments.journal import (
    _END,
    _MAGIC,
    END_BYTES,
    PART_BYTES_MAX,
    TABLE_BYTES_MAX,
    TABLE_COUNTED_BYTES_MAX,
    TABLE_HEAD_BYTES_MAX,
    TABLE_MEMORY_BYTES_MAX,
    JournalEntry,
    JournalParts,
    JournalPlace,
    JournalTable,
    PlacedEntry,
    decode_table,
    encode_table,
    log_of,
    opened_entry,
    table_bytes,
    table_range,
)
from fetchproxy.segments.json_fields import NewerMetadataVersion
from fetchproxy.segments.packing import Cipher, WrappedKey
from fetchproxy.storage.ciphers import AesGcm

ARCHIVER, OTHER = UUID(int=7), UUID(int=8)
TP = TopicIdPartition(UUID(int=1), "orders", 0)
CIPHER = AesGcm(bytes(range(32)))
KEY = WrappedKey("k1", b"wrapped")


def journal_object(bodies: list[bytes], cipher: Cipher | None) -> bytes:
    """An object with an entry for each body, of a partition each."""
    place = JournalPlace(ARCHIVER, 3)
    parts, content, entries = JournalParts(place, cipher, 1), b"", []
    for number, body in enumerate(bodies):
        tp = TopicIdPartition(UUID(int=1), "orders", number)
        split = [body[at : at + PART_BYTES_MAX] for at in range(0, len(body), PART_BYTES_MAX)]
        start, content = len(content), content + b"".join(parts.stored(tp, 10 * number, split))
        pairs = tuple((producer, producer + 1) for producer in range(number % 3))
        stored = ByteRange(start, len(content))
        entries.append(JournalEntry(tp, 10 * number, 10 * number + 5, number - 1, pairs, stored))
    key = None if cipher is None else KEY
    return content + encode_table(JournalTable(place, "cluster", 1234, key, tuple(entries)))


def read(content: bytes) -> JournalTable:
    end, size = content[-END_BYTES:], len(content)
    place = table_range(end, size, "an object")
    return decode_table(content[place.start : place.end], end, size, "an object")


def bodies_of(content: bytes, table: JournalTable, cipher: Cipher | None) -> list[bytes]:
    view = memoryview(content)
    return [
        opened_entry(table.place, entry, view[entry.stored.start : entry.stored.end], cipher)
        for entry in table.entries
    ]


@pytest.mark.parametrize("cipher", [None, CIPHER], ids=["plain", "encrypted"])
@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5))
def test_an_object_gives_back_what_was_written(cipher: Cipher | None, bodies: list[bytes]) -> None:
    content = journal_object(bodies, cipher)
    table = read(content)
    assert bodies_of(content, table, cipher) == bodies
    assert [entry.tp.partition for entry in table.entries] == list(range(len(bodies)))
    assert (table.cluster_id, table.read_at_ms) == ("cluster", 1234)
    assert table.key == (None if cipher is None else KEY)
    assert all(len(entry.aborted) == number % 3 for number, entry in enumerate(table.entries))
    if cipher is not None:
        assert not any(len(body) > 8 and body in content for body in bodies)


def test_an_entry_of_several_parts() -> None:
    body = bytes(range(256)) * (PART_BYTES_MAX // 256 * 2 + 1)
    content = journal_object([body, b"x"], CIPHER)
    assert bodies_of(content, read(content), CIPHER) == [body, b"x"]


@pytest.mark.parametrize("cipher", [None, CIPHER], ids=["plain", "encrypted"])
def test_each_changed_byte_is_noticed(cipher: Cipher | None) -> None:
    content = journal_object([b"first body", b"second body"], cipher)
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 0x10
        with pytest.raises(CorruptSegment):
            bodies_of(bytes(changed), read(bytes(changed)), cipher)


def test_each_shorter_object_is_noticed() -> None:
    content = journal_object([b"first body", b"second body"], None)
    for size in range(len(content)):
        with pytest.raises(CorruptSegment):
            read(content[:size])


def test_a_part_of_another_partition_does_not_open() -> None:
    """Somebody who can write to the store, but has no key, exchanges two entries."""
    content = journal_object([b"first body", b"other body"], CIPHER)
    table = read(content)
    first, second = table.entries
    view: Buffer = memoryview(content)[second.stored.start : second.stored.end]
    with pytest.raises(CorruptSegment, match="authentication"):
        opened_entry(table.place, first, memoryview(view), CIPHER)


def placed(
    start: int, end: int, *, epoch: int = 0, archiver: UUID = ARCHIVER, number: int = 0
) -> PlacedEntry:
    entry = JournalEntry(TP, start, end, epoch, (), ByteRange(0, 1))
    return PlacedEntry(JournalPlace(archiver, number), entry)


def offsets(entries: list[PlacedEntry]) -> list[tuple[int, int]]:
    return [(one.entry.start_offset, one.entry.next_offset) for one in entries]


CASES = {
    "in turn": ([(0, 5, 0), (5, 9, 0), (9, 12, 0)], None, [(0, 5), (5, 9), (9, 12)]),
    "some are archived": ([(0, 5, 0), (5, 9, 0), (9, 12, 0)], 9, [(9, 12)]),
    "the archive ends inside one": ([(0, 5, 0), (5, 9, 0)], 7, [(5, 9)]),
    "offsets are missing": ([(0, 5, 0), (6, 9, 0)], None, [(0, 5)]),
    "they do not continue the archive": ([(6, 9, 0)], 5, []),
    "all are archived": ([(0, 5, 0), (5, 9, 0)], 9, []),
    "two archivers of one leader": (
        [(0, 5, 0), (5, 9, 0), (0, 7, 0), (7, 8, 0)],
        0,
        [(0, 7), (5, 9)],
    ),
    "a new leader replaces the rest": ([(0, 5, 0), (5, 9, 0), (5, 7, 1)], 0, [(0, 5), (5, 7)]),
    "a new leader goes on": ([(0, 5, 0), (5, 9, 1)], 0, [(0, 5), (5, 9)]),
    "a new leader begins in the middle": ([(0, 2, 0), (2, 5, 0), (3, 4, 1)], 0, [(0, 2)]),
    "a new leader goes on where the archive ends": ([(0, 5, 0), (3, 4, 1)], 3, [(3, 4)]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_log_of_several_objects(case: str) -> None:
    entries, end, expected = CASES[case]
    made = [placed(a, b, epoch=epoch, number=n) for n, (a, b, epoch) in enumerate(entries)]
    assert offsets(log_of(made, end)) == expected
    assert offsets(log_of(reversed(made), end)) == expected


@pytest.mark.parametrize(
    ("archived_epoch", "expected"),
    [(-1, [(0, 9)]), (2, [(0, 9)]), (3, [(4, 6)])],
    ids=["not known", "of the same leader", "of a later leader"],
)
def test_what_an_unclean_election_has_cut_off_does_not_continue_the_archive(
    archived_epoch: int, expected: list[tuple[int, int]]
) -> None:
    """The leader of epoch 2 had offsets up to 8. The next one had less, and wrote offset 4."""
    made = [placed(0, 9, epoch=2), placed(4, 6, epoch=-1, archiver=OTHER)]
    assert offsets(log_of(made, 5, archived_epoch)) == expected


@given(st.lists(st.integers(0, 30), min_size=2, max_size=12, unique=True), st.integers(0, 30))
def test_one_archivers_entries_are_all_taken(cuts: list[int], archive_end: int) -> None:
    cuts.sort()
    made = [placed(a, b, number=n) for n, (a, b) in enumerate(pairwise(cuts))]
    taken = offsets(log_of(made, archive_end))
    if archive_end < cuts[0]:
        assert taken == []
    else:
        assert taken == [pair for pair in pairwise(cuts) if pair[1] > archive_end]


def with_table(text: bytes) -> bytes:
    """An object with this table and no entry's bytes."""
    return text + _END.pack(len(text), crc32c(text), _MAGIC)


@pytest.mark.parametrize("value", [b"{}", b"[]", b'{"a":{}}'])
def test_a_table_of_tiny_values_is_refused_before_it_is_read(value: bytes) -> None:
    """Each would take twenty times its bytes."""
    text = b'{"version":1,"entries":[' + value + (b"," + value) * 200_000 + b"]}"
    tracemalloc.start()
    with pytest.raises(CorruptSegment, match="more entries than its bytes have room for"):
        read(with_table(text))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(text)  # two of them are the object and its copy


ENTRY = (
    b'{"topic":"%b","topic_id":"AAAAAAAAAAAAAAAAAAAAAQ","partition":%d,"start_offset":%d,'
    b'"next_offset":%d,"leader_epoch":1000,"stored_start":%d,"stored_end":%d'
)
HEAD = (
    b'{"version":%d,"journal":"AAAAAAAAAAAAAAAAAAAAAQ","number":1,"cluster_id":"c",'
    b'"read_at_ms":1,"entries":['
)


def entry_text(number: int, aborted: int = 0, topic: bytes = b"t" * 40) -> bytes:
    fields = ENTRY % (topic, number, 10**12, 10**12 + 1_000, number, number + 1)
    if not aborted:
        return fields + b"}"
    numbers = b",".join(b"%d" % (10**6 + n) for n in range(aborted))
    return fields + b',"aborted_producers":[%b],"aborted_offsets":[%b]}' % (numbers, numbers)


def table_text(entries: list[bytes], version: int = 1) -> bytes:
    return HEAD % version + b",".join(entries) + b"]}"


def decoded(text: bytes, body_bytes: int) -> JournalTable:
    end = _END.pack(len(text), crc32c(text), _MAGIC)
    return decode_table(text, end, body_bytes + len(text) + END_BYTES, "k")


MOST_ENTRIES = TABLE_COUNTED_BYTES_MAX // 320
MOST_ABORTED = (TABLE_COUNTED_BYTES_MAX - 320) // 40


@pytest.mark.parametrize(("entries", "aborted"), [(MOST_ENTRIES, 0), (1, MOST_ABORTED)])
def test_a_table_at_its_limits_takes_its_memory_and_none_is_read_above(
    entries: int, aborted: int
) -> None:
    text = table_text([entry_text(n, aborted) for n in range(entries)])
    assert len(text) < TABLE_BYTES_MAX
    script = (
        "import sys\n"
        "from fetchproxy.segments.journal import decode_table\n"
        "def status(name):\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024\n"
        f"raw = sys.stdin.buffer.read({len(text)})\n"
        "end = sys.stdin.buffer.read()\n"
        "before = status('VmRSS')\n"
        f"table = decode_table(raw, end, {entries + len(text) + END_BYTES}, 'k')\n"
        "print(status('VmHWM') - before, len(table.entries), len(table.entries[0].aborted))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], input=with_table(text), capture_output=True, check=True
    )
    took, *counts = map(int, run.stdout.split())
    assert counts == [entries, aborted]
    assert TABLE_MEMORY_BYTES_MAX // 4 < took < TABLE_MEMORY_BYTES_MAX
    above = [entry_text(n, aborted and aborted + 1) for n in range(entries + (not aborted))]
    with pytest.raises(CorruptSegment, match="more than a writer puts into one"):
        decoded(table_text(above), len(above))


def test_a_writers_first_entry_may_have_all_transactions_of_a_segment() -> None:
    assert table_bytes("t", 490_000) - 1 <= TABLE_COUNTED_BYTES_MAX
    assert (TABLE_BYTES_MAX - TABLE_HEAD_BYTES_MAX) // table_bytes("t", 0) < MOST_ENTRIES


@pytest.mark.parametrize(
    "text",
    [
        table_text([entry_text(0)[:-1] + b"," + b",".join(b'"%x":1' % n for n in range(400_000))]),
        table_text([entry_text(0)[:-1] + b',"aborted_offsets":[' + b"0," * 4_000_000 + b"0]}"]),
        table_text([b"0" + b",0" * 4_000_000]),
        table_text([entry_text(0), b"0" + b",0" * 4_000_000]),
        table_text([entry_text(0, topic=b"\\ud83d\\ude00" + b"a" * 8_000_000)]),
        table_text([entry_text(0, topic="\U0001f600".encode() + b"a" * 8_000_000)]),
        b'{"version":1,"cluster_id":"\\ud83d\\ude00' + b"a" * 8_000_000 + b'","entries":[]}',
        b'{"version":1' + b",0" * 4_000_000 + b"]}",
        b'{"version":1,"entries":[],"x":[0' + b",0" * 4_000_000 + b"]}",
    ],
    ids=[
        "names",
        "numbers",
        "no entry",
        "no second",
        "escaped",
        "not ascii",
        "head",
        "none",
        "end",
    ],
)
def test_what_no_writer_writes_is_refused_by_its_bytes(text: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(CorruptSegment):
        decoded(text, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(text)


def test_a_newer_table_is_no_broken_one() -> None:
    text = table_text([entry_text(0)[:-1] + b',"of_a_newer_version":1}'], version=2)
    with pytest.raises(NewerMetadataVersion):
        decoded(text, 1)


def test_a_longer_table_is_refused_by_its_length_alone() -> None:
    end = _END.pack(TABLE_BYTES_MAX + 1, 0, _MAGIC)
    with pytest.raises(CorruptSegment, match="does not end as a journal does"):
        table_range(end, 1 << 40, "k")
    assert (
        table_range(_END.pack(TABLE_BYTES_MAX, 0, _MAGIC), 1 << 40, "k").length == TABLE_BYTES_MAX
    )


@given(
    st.text("abc._-", min_size=1, max_size=249).filter(is_topic_name),
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=20),
    st.integers(0, 2**63 - 3),
)
def test_no_entry_takes_more_of_a_table_than_is_counted(
    topic: str, aborted: list[tuple[int, int]], offset: int
) -> None:
    def size(entries: int) -> int:
        entry = JournalEntry(
            TopicIdPartition(UUID(int=2**128 - 1), topic, 2**31 - 1),
            *(offset, 2**63 - 1, 2**31 - 1, tuple(aborted)),
            ByteRange(offset, 2**63 - 1),
        )
        place = JournalPlace(UUID(int=1), 2**63 - 1)
        return len(encode_table(JournalTable(place, "c", 2**63 - 1, None, (entry,) * entries)))

    assert 128 <= size(2) - size(1) <= table_bytes(topic, len(aborted))


def test_damaged_tables_are_read_or_refused_and_raise_nothing_else() -> None:
    rng = Random(5)
    sound = journal_object([b"abc" * 20, b"d" * 50], None)
    (length, _, _) = _END.unpack(sound[-END_BYTES:])
    text = sound[-END_BYTES - length : -END_BYTES]
    odd = (b"-1", b"9" * 4_000, b"null", b"[]", b"{}", b'"\\ud800"', b"1e400", b"true", b"NaN")
    for _ in range(3_000):
        changed = bytearray(text)
        at = rng.randrange(len(text))
        changed[at : at + rng.choice((1, 1, 3))] = rng.choice((*odd, rng.randbytes(2)))
        with suppress(CorruptSegment):
            table = read(sound[: -END_BYTES - length] + with_table(bytes(changed)))
            bodies_of(sound, table, None)
