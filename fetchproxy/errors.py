"""Errors of the domain. The protocol has its own (`fetchproxy_protocol.apis`); others are bugs."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from socket import gaierror

_ERROR_NUMBER = re.compile(r"\[Errno (\d+)\]")


class FetchProxyError(Exception):
    """`retriable`: the same call may succeed later without any change."""

    retriable = False


class RemoteStorageError(FetchProxyError):
    """Storage backends raise this at their edge, never an SDK's own exception.

    `status`: the status of the HTTP response; 0: there was none. `retry_after_s`: the store asked
    for this pause before the next request; 0: it did not. `may_be_of_object`: of the one object, if
    the store gives out others.
    """

    status = 0
    retry_after_s = 0.0
    may_be_of_object = False

    def count_tries(self, attempts: int) -> None:
        """Tell in the text how often the request was sent, if more than once."""
        if attempts > 1:
            self.args = (f"{self} (tried {attempts} times)",)


class ObjectNotFound(RemoteStorageError):
    pass


class RangeNotSatisfiable(RemoteStorageError):
    pass


class StorageDenied(RemoteStorageError):
    """The store denied a request because of credentials or policy."""


class StorageThrottled(RemoteStorageError):
    retriable = True


class StorageUnavailable(RemoteStorageError):
    """A time-out, a connection that was refused or reset, a status from 500 on."""

    retriable = True


class KeyServiceError(RemoteStorageError):
    """The key service gave no data key. This says nothing about the store."""


class KeyServiceDenied(KeyServiceError, StorageDenied):
    pass


class KeyServiceThrottled(KeyServiceError, StorageThrottled):
    pass


class KeyServiceUnavailable(KeyServiceError, StorageUnavailable):
    pass


class ReadCrashed(RemoteStorageError):
    """A read ended by a fault of fetchproxy itself; the log has its traceback. It says nothing
    about the store. The read is tried again, so that its clients keep their places.
    """

    retriable = True


class StoreMissing(StorageUnavailable):
    """The store's folder is not there: a mistyped path, or a mount that is missing. No pause of a
    second brings it, so the request is not sent again at once.
    """


class ArchiveMissing(StorageUnavailable):
    """The store answers, but has no archive at this place. It must not count as an empty archive:
    readers would then skip archived records.
    """


class ArchiveMismatch(RemoteStorageError):
    """The archive is not this process's own, or the process's settings differ from it; says how."""


class CorruptSegment(FetchProxyError):
    """Bytes with a wrong checksum or structure."""


class LogDamaged(CorruptSegment):
    """A batch in the broker's log has a wrong checksum or structure; names its offsets."""


class DamagedObject(RemoteStorageError, CorruptSegment):
    """An object that the proxy cannot have stored: too large for its name, or not a file. It was
    not read. The store itself works.
    """


class ObjectNotReadable(DamagedObject):
    """The store has the object, works, and does not give this one out: it was moved to a cold
    storage class, its key is disabled, it alone is denied, or its blocks are lost. Says which, and
    what to do. Readers wait at its offsets and never skip them; jobs go on with other objects.
    """


class ObjectFailing(ObjectNotReadable):
    """Each try to read this one object failed as if the store were unavailable, and the store gives
    out others. Only jobs are told so (`retries.each_object_alone`).
    """

    retriable = True


class SegmentLocked(DamagedObject):
    """The segment is encrypted, and no available key opens it; says which key is needed. For
    readers it is lost as if damaged, until an operator restores the key.
    """


class MetadataChanged(DamagedObject):
    """The metadata differs from the metadata that the segment was encrypted with; says which. A
    party that can write to the store or the metadata topic, but has no key, has changed it.
    """


class ObjectTooLarge(DamagedObject):
    """It has `size_bytes`, more than its reader has room for. It was not read."""

    size_bytes = 0


def too_large(key: str, size_bytes: int, bytes_max: int) -> ObjectTooLarge:
    text = f"{key} has {size_bytes} bytes, it can have {bytes_max} at most: not read"
    error = ObjectTooLarge(text)
    error.size_bytes = size_bytes
    return error


class RecordsTooLarge(FetchProxyError):
    """A batch's records unpack to more bytes than the process has room for. They are not damaged:
    a process with more memory, and the setting that the message names, reads them.
    """


class LogTruncated(FetchProxyError):
    """The log was cut, and the offset from which it differs from the archive is unknown."""


class LogBeginsAgain(LogTruncated):
    """The log has no record of the archive. The archive stays unchanged and readable until an
    operator runs `fetchproxy resolve`.
    """


class ResolutionRefused(FetchProxyError):
    """An operator's resolution of a log that began again cannot be applied; says why."""


class LogDirUnusable(FetchProxyError):
    """A broker's log directory cannot be archived now; says which folder or file, and why. A later
    attempt may succeed.
    """


class LogDiverged(FetchProxyError):
    """The accumulated records are not in the leader's log any more. The archiver raises and catches
    this, and then follows the new leader.
    """


class CopyOvertaken(FetchProxyError):
    """Another archiver has made a copy from the same offset. The archiver raises and catches this,
    and then goes on after that copy.
    """


class OffsetNotArchived(FetchProxyError):
    """No finished segment holds this offset."""


class OffsetLost(FetchProxyError):
    """A recorded gap has the offset. `gateway.gap_policy` is `error`, so the reader has to stop."""


class ClusterError(FetchProxyError):
    """One of the proxy's own requests to the brokers failed. `error_code`: Kafka's code. None: no
    response came.
    """

    def __init__(self, message: str, error_code: int | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code


class ClusterUnavailable(ClusterError):
    retriable = True


class AuthenticationRefused(ClusterError):
    """A broker refused the proxy's own credentials. The message names mechanism and user, never a
    password or a token.
    """


class PipelineFailed(FetchProxyError):
    """Spark could not finish a job; the finished parts stay."""

    retriable = True


class ConfigError(FetchProxyError):
    """The user's configuration is wrong; names key and place. `messages`: each of its errors."""

    def __init__(self, *messages: str) -> None:
        super().__init__("; ".join(messages))
        self.faults = messages


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group of errors, at any depth. A single error is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def system_error_in_words(error: OSError) -> str:
    """What the system says, such as "Connection refused": asyncio's own texts name the call and the
    address instead, or each address that was tried. A resolver and TLS have their own words.
    """
    if isinstance(error, gaierror | ssl.SSLError):
        return error.strerror or str(error)
    numbers = [error.errno] if error.errno else map(int, _ERROR_NUMBER.findall(str(error)))
    words = dict.fromkeys(os.strerror(number) for number in numbers)
    return "; ".join(words) or error.strerror or str(error) or type(error).__name__
