"""Errors of the domain. The wire has its own (`fetchproxy_protocol.apis`); others are bugs."""

from __future__ import annotations

from collections.abc import Iterator


class FetchProxyError(Exception):
    """`retriable`: the same call may succeed later without anybody changing anything."""

    retriable = False


class RemoteStorageError(FetchProxyError):
    """Raised by storage backends at their edge, never an SDK's own exception."""


class ObjectNotFound(RemoteStorageError):
    pass


class RangeNotSatisfiable(RemoteStorageError):
    pass


class StorageDenied(RemoteStorageError):
    """Credentials or policy."""


class StorageThrottled(RemoteStorageError):
    retriable = True


class StorageUnavailable(RemoteStorageError):
    """A time-out, a connection that was refused or reset, a status from 500 on."""

    retriable = True


class ArchiveMissing(StorageUnavailable):
    """The store answers, and has no archive at this place. Never an empty archive: whoever took it
    for one would have readers skip what is archived.
    """


class ArchiveMismatch(RemoteStorageError):
    """The archive is another's, or this process is set otherwise; says how."""


class CorruptSegment(FetchProxyError):
    """Bytes that fail their own checksum or shape."""


class DamagedObject(RemoteStorageError, CorruptSegment):
    """Nobody has stored it so: too large for what it is called, or no file at all. It was not read.
    The store itself works.
    """


class SegmentLocked(DamagedObject):
    """Encrypted, and no key at hand opens it: says which is wanted. Lost for readers as if it were
    damaged, until somebody puts the key back.
    """


class MetadataChanged(DamagedObject):
    """Not what the segment was encrypted with: says which. Changed by somebody who can write to the
    store, or to the metadata topic, and has no key.
    """


def too_large(key: str, size_bytes: int, bytes_max: int) -> DamagedObject:
    return DamagedObject(f"{key} has {size_bytes} bytes, it can have {bytes_max} at most: not read")


class LogTruncated(FetchProxyError):
    """The log was cut, and where it parted from the archive nobody can tell."""


class LogBeginsAgain(LogTruncated):
    """Nothing of the archive is in the log. The archive stays as it is, and readable, until
    somebody runs `fetchproxy resolve`.
    """


class ResolutionRefused(FetchProxyError):
    """What a person has said of a log that began again cannot be done; says why."""


class LogDirUnusable(FetchProxyError):
    """A broker's log directory holds nothing that can be archived now: says which folder or file
    and why. Another look may find it otherwise.
    """


class CompactedLog(FetchProxyError):
    """The broker's log has holes that compaction made."""


class LogDiverged(FetchProxyError):
    """What was gathered is not the leader's log any more. Raised and caught by the archiver, which
    then follows the new leader.
    """


class CopyOvertaken(FetchProxyError):
    """Another archiver has copied from the same offset on. Raised and caught by the archiver,
    which then goes on behind that copy.
    """


class OffsetNotArchived(FetchProxyError):
    """No finished segment holds this offset."""


class OffsetLost(FetchProxyError):
    """A recorded gap has it, and `gateway.gap_policy` is `error`: the reader would rather stop."""


class ClusterError(FetchProxyError):
    """An answer of the brokers to one of the proxy's own requests; `error_code` is Kafka's code, or
    None where no answer came.
    """

    def __init__(self, message: str, error_code: int | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code


class ClusterUnavailable(ClusterError):
    retriable = True


class AuthenticationRefused(ClusterError):
    """The proxy's own credentials: names mechanism and user, never a password or a token."""


class PipelineFailed(FetchProxyError):
    """Spark could not carry out a job; what was finished stays."""

    retriable = True


class ConfigError(FetchProxyError):
    """The user's configuration: names key and place. `faults`: each, where there are several."""

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Of a group of errors, however deep; an error alone is its only leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
