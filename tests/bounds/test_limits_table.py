"""docs/security.md says how much a message may name; the code has the same numbers."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from blown_messages import Shape, request, uvarint
from fetchproxy_protocol import addresses, fetch, messages, primitives
from fetchproxy_protocol.apis import ApiKey, MalformedMessage
from fetchproxy_protocol.fetch import parse_fetch_request
from fetchproxy_protocol.headers import peek_request_header

from fetchproxy.runtime.loop import at_once
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.serving.standalone.handling import ELEMENTS_MAX_OF

DOCUMENT = Path(__file__).parents[2] / "docs/security.md"
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
        "any other request in archive-only mode": messages.ELEMENTS_MAX,
        "any message": primitives.TAGGED_FIELDS_MAX,
        "an answer with addresses": addresses.NODES_MAX,
        "a FindCoordinator answer": addresses.COORDINATORS_MAX,
    }
    found = limits()
    held = found.pop("ListOffsets, OffsetForLeaderEpoch and DeleteRecords through the proxy")
    assert held.startswith(f"{ServingLimits().held_request_bytes_max // MIB} MiB")
    assert found == {what: f"{most:,}" for what, most in in_words.items()}


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


def test_an_answer_names_so_many_coordinators() -> None:
    """The count alone is refused: nothing is read."""
    head = struct.pack(">i", 7) + b"\x00" + struct.pack(">i", 0)
    payload = head + uvarint(addresses.COORDINATORS_MAX + 2) + bytes(200_000)
    with pytest.raises(MalformedMessage, match=f"{addresses.COORDINATORS_MAX + 1} nodes"):
        at_once(addresses.locate_addresses(payload, ApiKey.FIND_COORDINATOR, 4))
