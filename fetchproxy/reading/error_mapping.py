"""The one table from domain errors to the Kafka error codes that a Fetch answer may carry.

Only codes that every client knows (Java's consumer throws on others, which is what INVALID_RECORD
is for): an outage is never OFFSET_OUT_OF_RANGE, because clients then skip data for good.
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
KAFKA_STORAGE_ERROR = 56
INVALID_RECORD = 87

_CODES: tuple[tuple[type[FetchProxyError], int], ...] = (
    (OffsetNotArchived, OFFSET_OUT_OF_RANGE),
    # No client takes it for an error that passes: applications are told, as was asked for.
    # OFFSET_OUT_OF_RANGE would have `earliest` begin again and come back here for ever, and
    # `latest` skip what is archived. franz-go asks again on CORRUPT_MESSAGE, and says nothing.
    (OffsetLost, INVALID_RECORD),
    (CorruptSegment, KAFKA_STORAGE_ERROR),  # not CORRUPT_MESSAGE: consumers stop for good on it
    (RemoteStorageError, KAFKA_STORAGE_ERROR),
)


def kafka_error_code(error: FetchProxyError) -> int:
    """The int16 for the partition's `error_code`; unlisted domain errors count as storage ones."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return KAFKA_STORAGE_ERROR
