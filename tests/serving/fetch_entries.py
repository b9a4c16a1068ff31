"""What a client writes of a partition in a Fetch."""

from __future__ import annotations

from struct import pack

from fetchproxy_protocol.fetch import FetchEntry


def entry(
    partition: int, offset: int, bytes_max: int = 1_000, leader_epoch: int = -1
) -> FetchEntry:
    """As of v9 to v11."""
    return pack(">iiqqi", partition, leader_epoch, offset, -1, bytes_max)
