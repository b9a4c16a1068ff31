"""Bytes that are no response are a broker's error, whatever kafka-python raises for them."""

from __future__ import annotations

import random
from contextlib import suppress

import blown_messages
import pytest
from blown_messages import Shape
from kafka.protocol import admin, consumer, metadata

from fetchproxy.brokers.messages import body_of
from fetchproxy.errors import ClusterError

RESPONSES = {
    name: getattr(module, name)
    for module in (admin, consumer, metadata)
    for name in dir(module)
    if name.endswith("Response") and hasattr(getattr(module, name), "API_KEY")
}


@pytest.mark.parametrize("seed", range(4))
def test_each_response_with_changed_bytes_is_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    for name, response in sorted(RESPONSES.items()):
        key = response.API_KEY
        if key not in blown_messages.described():
            continue
        for version in blown_messages.versions_of(key):
            paths = blown_messages.arrays_of(name, version)
            shape = Shape(long=rng.choice(paths or [None]), frame_bytes=600, odd=rng.randrange(3))
            frame = bytearray(blown_messages.response(key, version, shape, 1)[4:])
            for _ in range(8):
                changed = frame[: rng.choice((len(frame), rng.randrange(4, len(frame) + 1)))]
                for _ in range(rng.randrange(4)):
                    changed[rng.randrange(len(changed))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
                with suppress(ClusterError):
                    body_of(response, memoryview(bytes(changed)), version)
