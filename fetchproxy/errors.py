"""Domain errors. The wire's own are in `fetchproxy_protocol.apis`; anything else raised is a bug.

FetchProxyError
├── RemoteStorageError         a backend said no; subclasses say why
│   ├── ObjectNotFound         not retriable
│   ├── RangeNotSatisfiable    not retriable
│   ├── StorageDenied          not retriable: credentials or policy
│   ├── StorageThrottled       retriable
│   ├── StorageUnavailable     retriable: timeout, refused, reset, 5xx
│   │   └── ArchiveMissing     the store answers, and has no archive at this place
│   ├── ArchiveMismatch        the archive is another's, or this process is set otherwise; says how
│   └── DamagedObject          also a CorruptSegment: what lies there nobody has stored; not read
│       ├── SegmentLocked      it is encrypted, and no key at hand opens it; says which is wanted
│       └── MetadataChanged    its metadata are not those that it was encrypted with; says which
├── CorruptSegment             bytes that fail their own checksum or shape
├── LogTruncated               the log was cut, and where it parted from the archive nobody can tell
│   └── LogBeginsAgain         nothing of the archive is in the log: a person says which counts
├── ResolutionRefused          what a person has said of such a log cannot be done; says why
├── LogDiverged                what was gathered is not the leader's log any more: gather anew
├── CopyOvertaken              another archiver has copied from the same offset on: look again
├── LogDirUnusable             a broker's log directory holds nothing that can be archived now
├── CompactedLog               the broker's log has holes that compaction made
├── OffsetNotArchived          no finished segment holds this offset
├── OffsetLost                 a recorded gap has it, and gaps are not to be skipped
├── ClusterError               an answer of the brokers to one of the proxy's own requests
│   ├── ClusterUnavailable     retriable: no broker reachable, time-out
│   └── AuthenticationRefused  not retriable: the proxy's own credentials
├── PipelineFailed             Spark could not carry out a job; what was finished stays
└── ConfigError                the user's configuration; the message names key and place
"""

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
    pass


class StorageThrottled(RemoteStorageError):
    retriable = True


class StorageUnavailable(RemoteStorageError):
    retriable = True


class ArchiveMissing(StorageUnavailable):
    """Never an empty archive: whoever took it for one would have readers skip what is archived."""


class ArchiveMismatch(RemoteStorageError):
    pass


class CorruptSegment(FetchProxyError):
    pass


class DamagedObject(RemoteStorageError, CorruptSegment):
    """Too large for what it is called, or no file at all. The store itself works."""


class SegmentLocked(DamagedObject):
    """Lost for readers as if it were damaged, until somebody puts the key back."""


class MetadataChanged(DamagedObject):
    """By somebody who can write to the store, or to the metadata topic, and has no key."""


def too_large(key: str, size_bytes: int, bytes_max: int) -> DamagedObject:
    return DamagedObject(f"{key} has {size_bytes} bytes, it can have {bytes_max} at most: not read")


class LogTruncated(FetchProxyError):
    pass


class LogBeginsAgain(LogTruncated):
    """The archive stays as it is, and readable, until somebody runs `fetchproxy resolve`."""


class ResolutionRefused(FetchProxyError):
    pass


class LogDirUnusable(FetchProxyError):
    """Says which folder or file and why; another look may find it otherwise."""


class CompactedLog(FetchProxyError):
    pass


class LogDiverged(FetchProxyError):
    """Raised and caught by the archiver, which then follows the new leader."""


class CopyOvertaken(FetchProxyError):
    """Raised and caught by the archiver, which then goes on behind the other one's copy."""


class OffsetNotArchived(FetchProxyError):
    pass


class OffsetLost(FetchProxyError):
    """Where `gateway.gap_policy` is `error`: the reader would rather stop than go on behind it."""


class ClusterError(FetchProxyError):
    """`error_code` is Kafka's code, or None where no answer came."""

    def __init__(self, message: str, error_code: int | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code


class ClusterUnavailable(ClusterError):
    retriable = True


class AuthenticationRefused(ClusterError):
    """Names mechanism and user, never a password or a token."""


class PipelineFailed(FetchProxyError):
    retriable = True


class ConfigError(FetchProxyError):
    """`faults`: each by itself, where there are several."""

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
