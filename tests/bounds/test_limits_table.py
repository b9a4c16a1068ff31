"""docs/security/index.md says how much a message may name; the code has the same numbers."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blown_messages import Shape, arrays_of, described, message_name, request, uvarint, versions_of
from fetchproxy_protocol import (
    addresses,
    delete_records,
    fetch,
    headers,
    list_offsets,
    messages,
    offset_for_leader_epoch,
    primitives,
)
from fetchproxy_protocol.apis import ApiKey, MalformedMessage
from fetchproxy_protocol.fetch import parse_fetch_request
from fetchproxy_protocol.headers import peek_request_header
from fetchproxy_protocol.messages import read_request
from fetchproxy_protocol.primitives import Cursor

from fetchproxy.runtime.cooperative import at_once
from fetchproxy.serving.archive_only.handling import ELEMENTS_MAX_OF
from fetchproxy.serving.archive_only.schemas import request_of
from fetchproxy.serving.archive_only.table import ADVERTISED

DOCUMENT = Path(__file__).parents[2] / "docs/security/index.md"
MIB = 1 << 20


def limits() -> dict[str, str]:
    """The last column by the first one."""
    text = DOCUMENT.read_text(encoding="utf-8").partition("### How much a message may name")[2]
    rows = re.findall(r"^\| ([^|]+) \|.*\| ([^|]+) \|$", text.partition("\n### ")[0], re.MULTILINE)
    return {what: limit for what, limit in rows if what != "message"}


def test_the_table_has_the_codes_numbers() -> None:
    in_words = {
        f"{''.join(map(str.capitalize, ApiKey(key).name.split('_')))} in archive-only mode": most
        for key, most in ELEMENTS_MAX_OF.items()
    }
    in_words |= {
        "Fetch": fetch.PARTITIONS_MAX,
        "ListOffsets, OffsetForLeaderEpoch and DeleteRecords through the proxy": (
            messages.ELEMENTS_MAX
        ),
        "any other request in archive-only mode": messages.ELEMENTS_MAX,
        "any message": primitives.TAGGED_FIELDS_MAX,
        "an ApiVersions response": headers.APIS_MAX,
        "a response with addresses": addresses.NODES_MAX,
        "a FindCoordinator response": addresses.COORDINATORS_MAX,
    }
    values = limits()
    assert values == {what: f"{most:,}" for what, most in in_words.items()}


def test_a_fetch_names_so_many_partitions() -> None:
    most = fetch.PARTITIONS_MAX

    def read(count: int) -> int:
        counts = {("ForgottenTopicsData",): 0}
        shape = Shape(long=("Topics", "Partitions"), elements_max=count, frame_bytes=4 * MIB,
                      counts=counts)  # fmt: skip
        frame = request(ApiKey.FETCH, 11, shape)[4:]
        return len(parse_fetch_request(frame, peek_request_header(frame).body_position).partitions)

    assert read(most) == most
    with pytest.raises(MalformedMessage):
        read(most + 1)


def _with_arrays() -> Iterator[tuple[ApiKey, int]]:
    """Each API of archive-only mode that names several things, with its newest version."""
    for key, api in ADVERTISED.items():
        if key in described() and key != ApiKey.FETCH:
            version = max(v for v in versions_of(key) if v <= api.highest)
            if arrays_of(message_name(key), version):
                yield ApiKey(key), version


@pytest.mark.parametrize(("key", "version"), list(_with_arrays()), ids=lambda each: str(each))
def test_a_request_in_archive_only_mode_names_so_much(key: ApiKey, version: int) -> None:
    most = ELEMENTS_MAX_OF.get(key, messages.ELEMENTS_MAX)
    paths = arrays_of(message_name(key), version)
    long = paths[0]

    def read(count: int) -> None:
        counts = {path: 0 for path in paths if path != long}
        shape = Shape(long=long, elements_max=count, frame_bytes=64 * MIB, counts=counts)
        frame = request(key, version, shape)[4:]
        body_at = peek_request_header(frame).body_position
        at_once(read_request(request_of(key), frame, body_at, key, version, most))

    read(most)
    with pytest.raises(MalformedMessage, match=f"{most}"):
        read(most + 1)


def test_every_api_of_archive_only_mode_that_names_several_things_has_a_limit() -> None:
    """Groups, producers and administration among them: no API is without a row of the table."""
    names = {key.name for key, _ in _with_arrays()}
    assert {"PRODUCE", "OFFSET_COMMIT", "JOIN_GROUP", "DELETE_GROUPS", "CREATE_ACLS"} <= names
    assert len(names) > 20


def _delete_records(frame: bytes, body_at: int, version: int) -> Iterator[object]:
    return delete_records.partitions_in(Cursor(frame, body_at), version)


@pytest.mark.parametrize(
    ("key", "version", "asked_in"),
    [
        (ApiKey.LIST_OFFSETS, 1, list_offsets.partitions_in),
        (ApiKey.LIST_OFFSETS, 7, list_offsets.partitions_in),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, offset_for_leader_epoch.partitions_in),
        (ApiKey.DELETE_RECORDS, 2, _delete_records),
    ],
)
def test_a_request_for_offsets_names_so_many_partitions(
    key: ApiKey, version: int, asked_in: Callable[[bytes, int, int], Iterator[object]]
) -> None:
    most = messages.ELEMENTS_MAX

    def read(*long: str, count: int, of_topic: int = 1) -> int:
        counts = {("Topics", "Partitions"): of_topic}
        shape = Shape(long=long, elements_max=count, frame_bytes=4 * MIB, counts=counts)
        frame = request(key, version, shape)[4:]
        return len(list(asked_in(frame, peek_request_header(frame).body_position, version)))

    for long in (("Topics", "Partitions"), ("Topics",)):
        assert read(*long, count=most) == most
        with pytest.raises(MalformedMessage, match=f"more than {most} partitions"):
            read(*long, count=most + 1)
    # Between these nothing else could be done.
    with pytest.raises(MalformedMessage, match="topics without a partition"):
        read("Topics", count=primitives.EMPTY_TOPICS_MAX + 1, of_topic=0)


@pytest.mark.parametrize(
    ("apis", "tag_bytes"), [(headers.APIS_MAX, 9), (headers.APIS_MAX + 1, 9), (1, 70_000)]
)
def test_an_answer_names_so_many_apis(apis: int, tag_bytes: int) -> None:
    """The list is read in one step, and kept."""
    ranges = b"".join(struct.pack(">hhhB", n % 60, 0, 1, 0) for n in range(apis))
    tags = b"\x01\x00" + uvarint(tag_bytes) + bytes(tag_bytes)
    response = struct.pack(">ih", 7, 0) + uvarint(apis + 1) + ranges + bytes(4) + tags
    if apis <= headers.APIS_MAX and tag_bytes < 10:
        assert headers.intersect_response(response, 3)
    else:
        with pytest.raises(MalformedMessage, match="an ApiVersions response"):
            headers.intersect_response(response, 3)


def test_an_answer_names_so_many_coordinators() -> None:
    """The count alone is refused: nothing is read."""
    head = struct.pack(">i", 7) + b"\x00" + struct.pack(">i", 0)
    payload = head + uvarint(addresses.COORDINATORS_MAX + 2) + bytes(200_000)
    with pytest.raises(MalformedMessage, match=f"{addresses.COORDINATORS_MAX + 1} nodes"):
        at_once(addresses.locate_addresses(payload, ApiKey.FIND_COORDINATOR, 4))
