"""Every request parser of the gateway over hostile frames: a value, or a `WireError`."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from contextlib import suppress
from uuid import UUID

import pytest
from fetchproxy_protocol import delete_records, list_offsets, offset_for_leader_epoch
from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey, WireError
from fetchproxy_protocol.fetch import parse_fetch_request
from fetchproxy_protocol.headers import peek_request_header
from fetchproxy_protocol.primitives import Cursor
from frame_mutations import hostile_frames, recorded_frames

FRAMES = 40_000


def parse(frame: bytes) -> ApiKey | None:
    """The API of a request that was understood; raises WireError for all others that we read."""
    payload = memoryview(frame)[4:]
    head = peek_request_header(payload, 0, len(payload))
    low, high = PROXIED_VERSIONS.get(head.api_key, (0, -1))
    if not low <= head.api_version <= high:
        return None
    match head.api_key:
        case ApiKey.FETCH:
            parse_fetch_request(payload, head.body_position)
        case ApiKey.LIST_OFFSETS:
            list(list_offsets.partitions_in(payload, head.body_position, head.api_version))
        case ApiKey.OFFSET_FOR_LEADER_EPOCH:
            list(
                offset_for_leader_epoch.partitions_in(payload, head.body_position, head.api_version)
            )
        case ApiKey.DELETE_RECORDS:
            list(
                delete_records.partitions_in(Cursor(payload, head.body_position), head.api_version)
            )
        case _:
            return None
    return ApiKey(head.api_key)


@pytest.mark.parametrize("seed", range(3))
def test_a_hostile_request_is_understood_or_refused(seed: int) -> None:
    understood: Counter[ApiKey | None] = Counter()
    refused = 0
    seeds = recorded_frames(UUID(int=1))
    for frame in itertools.islice(hostile_frames(random.Random(seed), seeds), FRAMES):
        refused += 1
        with suppress(WireError):
            understood[parse(frame)] += 1
            refused -= 1
    assert refused > FRAMES / 10
    assert set(understood) >= {ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.DELETE_RECORDS}
    assert understood[ApiKey.FETCH] > FRAMES / 50
