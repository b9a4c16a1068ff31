"""What the S3 client says, in the domain's words. Decides nothing about retries beyond the class.

The S3 client is asked not to retry, so that one back-off (the fetcher's, the archiver's) does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from fetchproxy.errors import (
    ObjectNotFound,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
)

# Codes that say more than their status does (S3 API reference, "Error responses").
_BY_CODE: dict[str, type[RemoteStorageError]] = {
    "NoSuchKey": ObjectNotFound,
    "InvalidRange": RangeNotSatisfiable,
    # An archive whose bucket is missing is not an empty archive.
    "NoSuchBucket": StorageUnavailable,
    # Somebody took the upload for a stale one; a new attempt starts a new upload.
    "NoSuchUpload": StorageUnavailable,
    "SlowDown": StorageThrottled,
    "Throttling": StorageThrottled,
    "ThrottlingException": StorageThrottled,
    "RequestLimitExceeded": StorageThrottled,
    "RequestThrottled": StorageThrottled,
    "TooManyRequests": StorageThrottled,
    "AccessDenied": StorageDenied,
    "ExpiredToken": StorageDenied,
    "InvalidToken": StorageDenied,
    "InvalidAccessKeyId": StorageDenied,
    "SignatureDoesNotMatch": StorageDenied,
    "AuthorizationHeaderMalformed": StorageDenied,
    # Status 400, but a matter of what happened on the way.
    "RequestTimeout": StorageUnavailable,
    "BadDigest": StorageUnavailable,
    "IncompleteBody": StorageUnavailable,
    "InternalError": StorageUnavailable,
}

_UNAVAILABLE = (
    boto.HTTPClientError,  # connection closed, streaming broke off
    boto.ConnectionError,  # refused, reset, unresolved, connect time-out, TLS, proxy
    boto.IncompleteReadError,
    boto.ChecksumError,
    boto.FlexibleChecksumError,
    boto.CredentialRetrievalError,  # the service that hands out credentials is away
    boto.MetadataRetrievalError,
    aiohttp.ClientError,  # the body's own reader does not translate all of them
    ResponseParserError,  # an answer cut short, or of something that is no S3 server
    OSError,  # with TimeoutError among them
)
_DENIED = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.NoAuthTokenError,
    boto.TokenRetrievalError,
    boto.SSOError,
)


def client_error(error: boto.ClientError, what: str) -> RemoteStorageError:
    """By the answer's code where that is telling, else by its status."""
    code = error_code(error)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    kind = _BY_CODE.get(code) or by_status(status)
    return kind(f"{what}: {error}")


def error_code(error: BaseException | None) -> str:
    """As the server named it; empty: it named none."""
    response = error.response if isinstance(error, boto.ClientError) else {}
    return str(response.get("Error", {}).get("Code", ""))


def by_status(status: int) -> type[RemoteStorageError]:
    if status == 404:
        return ObjectNotFound
    if status == 416:
        return RangeNotSatisfiable
    if status in (401, 403):
        return StorageDenied
    if status in (429, 503):
        return StorageThrottled
    # S3 reports some errors within an answer of status 200, after it has begun to answer.
    if status in (408, 409) or status >= 500 or status < 300:
        return StorageUnavailable
    return RemoteStorageError  # a request that this store does not understand


@contextmanager
def translated(what: str, *, may_be_absent: bool = False) -> Iterator[None]:
    """Raise the domain's errors for the client's; `what` begins their text.

    `may_be_absent`: the call reads one object. For all others a 404 says that the store is not
    as it should be, which must not be taken for an absent object.
    """
    try:
        yield
    except boto.ClientError as error:
        mapped = client_error(error, what)
        if isinstance(mapped, ObjectNotFound) and not may_be_absent:
            mapped = StorageUnavailable(str(mapped))
        raise mapped from error
    except _UNAVAILABLE as error:
        raise StorageUnavailable(f"{what}: {error or type(error).__name__}") from error
    except _DENIED as error:
        raise StorageDenied(f"{what}: {error}") from error
    except boto.BotoCoreError as error:
        raise RemoteStorageError(f"{what}: {error}") from error
