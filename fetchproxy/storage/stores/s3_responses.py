"""Checks that an S3 server's responses match the requests, and translates its errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from fetchproxy.errors import (
    RemoteStorageError,
    StorageDenied,
    StorageUnavailable,
)
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.object_store import (
    StoredObject,
    responded,
)
from fetchproxy.storage.stores.retries import retry_pause_s

# In practice servers, proxies and caches give wrong responses: they ignore a range, list in another
# order, or return a page that is not from an S3 server. Such a response must pass neither as data
# nor as "there is nothing".

# The client's responses are untyped dictionaries, built at run time from the service description.
S3Response = Mapping[str, Any]

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_UNAVAILABLE = (
    boto.HTTPClientError,  # connection closed, streaming broke off
    boto.ConnectionError,  # refused, reset, unresolved, connect time-out, TLS, proxy
    boto.IncompleteReadError,
    boto.ChecksumError,
    boto.FlexibleChecksumError,
    boto.CredentialRetrievalError,  # the credential service is unreachable
    boto.MetadataRetrievalError,
    aiohttp.ClientError,  # the body's own reader does not translate all of them
    ResponseParserError,  # a response cut short, or not from an S3 server
    OSError,  # includes TimeoutError
)
_DENIED = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.NoAuthTokenError,
    boto.TokenRetrievalError,
    boto.SSOError,
)


def object_length(response: S3Response, operation: str) -> int:
    """Bytes of a whole object. Raises StorageUnavailable if the response does not name it."""
    length = response.get("ContentLength")
    if response["ResponseMetadata"]["HTTPStatusCode"] != 200 or length is None:
        raise StorageUnavailable(f"{operation}: no whole object of a stated length")
    return int(length)


def range_length(response: S3Response, byte_range: ByteRange, operation: str) -> int:
    """Bytes of the requested part. Raises StorageUnavailable if it is another part."""
    length = int(response.get("ContentLength") or 0)
    if response["ResponseMetadata"]["HTTPStatusCode"] == 200:
        # RFC 9110 lets a server ignore Range: correct only if the range covers the whole object.
        if byte_range.start == 0 and 0 < length <= byte_range.length:
            return length
        raise StorageUnavailable(f"{operation}: the store ignores ranges")
    match = _CONTENT_RANGE.fullmatch(str(response.get("ContentRange", "")))
    if match is None:
        raise StorageUnavailable(f"{operation}: the response does not say which range it is")
    first, last, size = int(match[1]), int(match[2]), match[3]
    end = byte_range.end if size == "*" else min(byte_range.end, int(size))
    if (first, last + 1, length) != (byte_range.start, end, end - byte_range.start):
        raise StorageUnavailable(f"{operation}: the response has {match[0]}, {length} bytes")
    return length


def listed_objects(page: S3Response, after: str, operation: str) -> Iterable[StoredObject]:
    """The objects of one page, all after the key `after`. Raises StorageUnavailable otherwise."""
    for entry in page.get("Contents", ()):
        key = str(entry["Key"])
        if key <= after:
            raise StorageUnavailable(f"{operation}: {key} is listed after {after}")
        after = key
        if not key.endswith("/"):  # consoles store empty objects with such names as folders
            yield StoredObject(key, int(entry["Size"]), str(entry["ETag"]).strip('"'))


def next_page(page: S3Response, operation: str) -> str | None:
    """The token of the next page, None after the last. Raises StorageUnavailable if unclear."""
    if "IsTruncated" not in page:
        raise StorageUnavailable(f"{operation}: the response is not a listing")
    if not page["IsTruncated"]:
        return None
    if not page.get("NextContinuationToken"):
        raise StorageUnavailable(f"{operation}: the listing breaks off")
    return str(page["NextContinuationToken"])


def error_code(error: BaseException | None) -> str:
    """The server's error code; "" if the server gave none."""
    response = error.response if isinstance(error, boto.ClientError) else {}
    return str(response.get("Error", {}).get("Code", ""))


@contextmanager
def translated_s3_error(operation: str, *, may_be_absent: bool = False) -> Iterator[None]:
    """Raise the domain's errors for the client's; `operation` begins their text.

    `may_be_absent`: the call reads one object. For all other calls a 404 means a problem of the
    store, not an absent object.
    """
    try:
        yield
    except boto.ClientError as error:
        about = error.response.get("ResponseMetadata", {})
        status = int(about.get("HTTPStatusCode", 0))
        request = f" (request {about['RequestId']})" if about.get("RequestId") else ""
        text = f"{error}{request}".replace(" (reached max retries: 0)", "")
        code = error_code(error)
        failure = responded(operation, status, code, text, may_be_absent=may_be_absent)
        headers = about.get("HTTPHeaders", {})
        failure.retry_after_s = retry_pause_s(headers.get("retry-after"), headers.get("date"))
        raise failure from error
    except _UNAVAILABLE as error:
        raise StorageUnavailable(f"{operation}: {error or type(error).__name__}") from error
    except _DENIED as error:
        raise StorageDenied(f"{operation}: {error}") from error
    except boto.BotoCoreError as error:
        raise RemoteStorageError(f"{operation}: {error}") from error
