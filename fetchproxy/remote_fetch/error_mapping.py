"""The one table from domain errors to the Kafka error codes that a Fetch answer may carry.

Only codes that every client knows (Java's consumer throws on others): an outage is never
OFFSET_OUT_OF_RANGE, because clients then skip data for good.
"""

from __future__ import annotations

from fetchproxy.errors import (
    CorruptSegment,
    FetchProxyError,
    OffsetLost,
    OffsetNotArchived,
    RemoteStorageError,
)

OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
KAFKA_STORAGE_ERROR = 56

_CODES: tuple[tuple[type[FetchProxyError], int], ...] = (
    (OffsetNotArchived, OFFSET_OUT_OF_RANGE),
    # Consumers stop for good on it, as was asked for. OFFSET_OUT_OF_RANGE would have `earliest`
    # begin again and come back here for ever, and `latest` skip what is archived.
    (OffsetLost, CORRUPT_MESSAGE),
    (CorruptSegment, KAFKA_STORAGE_ERROR),  # not CORRUPT_MESSAGE: consumers stop for good on it
    (RemoteStorageError, KAFKA_STORAGE_ERROR),
)


def kafka_error_code(error: FetchProxyError) -> int:
    """The int16 for the partition's `error_code`; unlisted domain errors count as storage ones."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return KAFKA_STORAGE_ERROR
