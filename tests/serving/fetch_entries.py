"""A partition's entry in a client's Fetch request."""

from __future__ import annotations

from struct import pack

from fetchproxy_protocol.fetch import FetchEntry


def entry(
    partition: int, offset: int, bytes_max: int = 1_000, leader_epoch: int = -1
) -> FetchEntry:
    """The entry in versions 9 to 11."""
    return pack(">iiqqi", partition, leader_epoch, offset, -1, bytes_max)
