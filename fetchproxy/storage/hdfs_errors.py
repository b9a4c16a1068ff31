"""What an HDFS says, in the domain's words. Decides nothing about retries beyond the class.

A NameNode names the Java exception in its answer, which is told by: nearly all of them come with
status 403, from a missing permission to a DataNode that is away. An answer without a name is not a
NameNode's, so that even its 404 says nothing about an object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from fetchproxy.errors import (
    ObjectNotFound,
    RemoteStorageError,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
)

NOT_FOUND = frozenset(
    {
        "FileNotFoundException",
        "ParentNotDirectoryException",  # a part of the path is a file
    }
)
TAKEN = "FileAlreadyExistsException"
# Another NameNode of the same cluster may be the one that answers.
STANDBY = frozenset({"StandbyException", "ObserverRetryOnActiveException"})

_DENIED = frozenset(
    {
        "AccessControlException",
        "AuthorizationException",
        "AuthenticationException",
        "SecurityException",
        "InvalidToken",
    }
)
_THROTTLED = frozenset({"ServerTooBusyException", "RetriableException"})
# No retry mends these; everything else that HDFS throws comes and goes with its nodes.
_LASTING = frozenset(
    {
        "IllegalArgumentException",
        "InvalidPathException",
        "UnsupportedOperationException",
        "PathComponentTooLongException",
        "MaxDirectoryItemsExceededException",
        TAKEN,
        "NSQuotaExceededException",
        "DSQuotaExceededException",
        "QuotaByStorageTypeExceededException",
    }
)


_TOKEN = re.compile(r"(delegation(?:=|%3d))[^&\s\"'<>)]+", re.IGNORECASE)


def without_token(text: str) -> str:
    """Errors of the HTTP client, and servers' pages, repeat the URL that was asked for."""
    return _TOKEN.sub(r"\1...", text)


class RemoteFault(Exception):
    """An answer that is none: `exception` is Java's name for it, empty where it has none."""

    def __init__(self, status: int, exception: str, message: str) -> None:
        first_line = message.strip().splitlines()[:1]
        super().__init__(without_token(": ".join([exception or f"status {status}", *first_line])))
        self.status = status
        self.exception = exception


def remote_fault(status: int, body: bytes) -> RemoteFault:
    """From an answer whose status is not the one that was asked for."""
    try:
        said = json.loads(body)["RemoteException"]
        return RemoteFault(status, str(said["exception"]), str(said.get("message", "")))
    except (ValueError, KeyError, TypeError):
        return RemoteFault(status, "", body[:200].decode("ascii", "replace"))


def storage_error(fault: RemoteFault, what: str) -> RemoteStorageError:
    return _kind(fault)(f"{what}: {fault}")


def _kind(fault: RemoteFault) -> type[RemoteStorageError]:
    name, status = fault.exception, fault.status
    if name in NOT_FOUND:
        return ObjectNotFound
    if name in _DENIED or status == 401 or (status == 403 and not name):
        return StorageDenied
    if name in _THROTTLED or (not name and status in (429, 503)):
        return StorageThrottled
    return RemoteStorageError if name in _LASTING else StorageUnavailable


@contextmanager
def translated(what: str, *, may_be_absent: bool = False) -> Iterator[None]:
    """Raise the domain's errors for the client's; `what` begins their text.

    `may_be_absent`: the call reads one object. For all others "not found" says that the store is
    not as it should be, which must not be taken for an absent object.
    """
    try:
        yield
    except RemoteFault as fault:
        mapped = storage_error(fault, what)
        if isinstance(mapped, ObjectNotFound) and not may_be_absent:
            mapped = StorageUnavailable(str(mapped))
        raise mapped from fault
    except (aiohttp.ClientError, OSError) as error:  # with TimeoutError among them
        said = str(error) or type(error).__name__
        told = without_token(said)
        raise StorageUnavailable(f"{what}: {told}") from (error if told == said else None)
