from __future__ import annotations

import pytest

from fetchproxy import errors
from fetchproxy.reading.segment_reader import kafka_error_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.OffsetNotArchived, 1),
        (errors.OffsetLost, 87),
        (errors.CorruptSegment, 56),
        (errors.StorageUnavailable, 56),
        (errors.StorageThrottled, 56),
        (errors.StorageDenied, 56),
        (errors.ObjectNotFound, 56),
        (errors.RangeNotSatisfiable, 56),
        (errors.RemoteStorageError, 56),
        (errors.FetchProxyError, 56),
    ],
)
def test_an_outage_is_never_out_of_range(error: type[errors.FetchProxyError], code: int) -> None:
    assert kafka_error_code(error("x")) == code
