"""One object states an archive's identity: its layout, cluster and metadata manager.

    remote-log-layout 1
    generation 3vQ1x0fVRmG1jO1cA2bPzg
    cluster-id MkU3OEVBNTcwNTJENDM2Qk
    metadata-manager topic __remote_log_metadata

The first line is the layout's version. Each archive gets a new `generation`, which distinguishes a
replaced archive from a changed one. The next archiver adds a missing line. A missing object means a
wrong prefix, a missing mount or an emptied bucket, never an empty archive.

If the cluster was lost, `cluster restore` states the cluster that goes on, with `handed-over-…`
lines (docs/adr/0090). What processes of another cluster write is refused from then on: each of them
reads this object again before it writes or deletes.

When an archive moves (docs/adr/0057), two places have this object. `metadata-manager mirror`:
`fetchproxy mirror` writes to this place, and the archive is elsewhere. `metadata-manager moved`,
with the lines `moved-…`: the archive was here. No process can be set to either manager, so every
process with a cluster refuses such a place, even a program version that does not know these words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID, uuid4

import structlog

from fetchproxy.errors import (
    ArchiveMismatch,
    ArchiveMissing,
    ObjectNotFound,
    RemoteStorageError,
    StorageDenied,
)
from fetchproxy.observability.logs import utc_text
from fetchproxy.runtime.single_flight import SingleFlight
from fetchproxy.segments.object_keys import (
    LAYOUT_OBJECT,
    LAYOUT_VERSION,
    layout_text,
    parse_layout_version,
    parse_uuid,
    uuid_text,
)
from fetchproxy.storage.stores.object_store import SMALL_OBJECT_BYTES_MAX, ObjectStore

log = structlog.get_logger(__name__)

# An identity read this recently is not read again: a caller that lists many empty partitions checks
# it for each.
LOOK_AGE_MAX_S = 1.0
AT_ONCE_S = 0.0  # the age of an identity that is read now
# If two processes make an archive at once, the first one's identity stays, and both read it. If two
# processes `state` an identity, or the S3 server has no conditional put, the later one's stays.
CREATION_SETTLE_S = 0.5
_GENERATION, _CLUSTER, _MANAGER = "generation", "cluster-id", "metadata-manager"
_MOVED_TO, _MOVED_AT, _MOVED_MANAGER = "moved-to", "moved-at-ms", "moved-manager"
_HANDED_FROM, _HANDED_AT = "handed-over-from", "handed-over-at-ms"
MIRROR, _MOVED = "mirror", "moved"
_EPOCH_MS_DIGITS_MAX = 18
LISTING_CHECK = "listing-check"


@dataclass(frozen=True, slots=True)
class Moved:
    """`to`: the archive's place now. `at_ms`: epoch ms. `manager`: the archive's manager."""

    to: str
    at_ms: int
    manager: str | None = None


@dataclass(frozen=True, slots=True)
class HandedOver:
    """`from_cluster`: the one that the archive had before. `at_ms`: epoch ms."""

    from_cluster: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class ArchiveIdentity:
    """`manager`: "store", "topic" and its name, or `MIRROR`; None: the archive does not name one,
    or it has `moved`. `handed_over`: how it came to this cluster; None: it was never another's.
    """

    generation: UUID | None = None
    cluster_id: str | None = None
    manager: str | None = None
    moved: Moved | None = None
    handed_over: HandedOver | None = None

    @property
    def is_mirror(self) -> bool:
        return self.manager == MIRROR

    def completed(self, identity: ArchiveIdentity) -> ArchiveIdentity:
        """This identity, with missing values taken from `identity`."""
        return ArchiveIdentity(
            self.generation or identity.generation,
            self.cluster_id or identity.cluster_id,
            self.manager or identity.manager,
            self.moved,
            self.handed_over,
        )

    def check_is_of_cluster(self, cluster_id: str | None) -> None:
        """Raises ArchiveMismatch if the archive is another cluster's."""
        if not _differ(self.cluster_id, cluster_id):
            return
        handed = self.handed_over
        if handed is None:
            raise ArchiveMismatch(
                f"cluster.bootstrap: the archive at store.url belongs to the cluster "
                f"{self.cluster_id}, but the brokers to the cluster {cluster_id}"
            )
        raise ArchiveMismatch(
            f"cluster.bootstrap: the archive at store.url has belonged to the cluster "
            f"{self.cluster_id} since {utc_text(handed.at_ms)}, when `fetchproxy cluster restore` "
            f"handed it over from {handed.from_cluster}, but the brokers belong to the cluster "
            f"{cluster_id}: stop this process, or give its cluster an archive in another place "
            "(store.url)"
        )

    def check_is_the_archive(self) -> None:
        """Raises ArchiveMismatch if the archive itself is at another place."""
        if self.is_mirror:
            raise ArchiveMismatch(
                "store.url: there is a mirror at that place, not an archive; --archive-only can "
                "read it, and `fetchproxy mirror --cut-over` makes it the archive"
            )
        if self.moved is not None:
            raise ArchiveMismatch(
                f"store.url: the archive has moved to {self.moved.to}; set store.url to that"
            )


def _differ(one: str | None, other: str | None) -> bool:
    return None not in (one, other) and one != other


def encode_identity(identity: ArchiveIdentity) -> bytes:
    lines = {
        _GENERATION: identity.generation and uuid_text(identity.generation),
        _CLUSTER: identity.cluster_id,
        _MANAGER: identity.manager,
    }
    if (moved := identity.moved) is not None:
        lines |= {_MANAGER: _MOVED, _MOVED_TO: moved.to, _MOVED_AT: str(moved.at_ms)}
        lines[_MOVED_MANAGER] = moved.manager
    if (handed := identity.handed_over) is not None:
        lines |= {_HANDED_FROM: handed.from_cluster, _HANDED_AT: str(handed.at_ms)}
    text = "".join(f"{name} {value}\n" for name, value in lines.items() if value)
    return layout_text() + text.encode()


def parse_identity(content: bytes) -> ArchiveIdentity:
    """Ignores unknown lines, which later versions may add. Raises RemoteStorageError."""
    first, newline, remainder = content.partition(b"\n")
    version = parse_layout_version(first + newline)
    if version != LAYOUT_VERSION:
        named = "unknown" if version is None else f"version {version}"
        raise RemoteStorageError(
            f"the archive's layout is {named}; this program knows version {LAYOUT_VERSION}"
        )
    lines = remainder.decode(errors="replace").splitlines()
    fields = dict(line.split(" ", 1) for line in lines if " " in line)
    generation = parse_uuid(fields[_GENERATION]) if _GENERATION in fields else None
    if _GENERATION in fields and generation is None:
        raise RemoteStorageError(f"{LAYOUT_OBJECT}: {fields[_GENERATION]!r} is not a generation")
    manager, handed = fields.get(_MANAGER), _handed_over(fields)
    if manager != _MOVED:
        return ArchiveIdentity(generation, fields.get(_CLUSTER), manager, handed_over=handed)
    to, at_ms = fields.get(_MOVED_TO, ""), _epoch_ms(fields.get(_MOVED_AT, ""))
    if not to or at_ms is None:
        raise RemoteStorageError(f"{LAYOUT_OBJECT}: it does not say where the archive has moved to")
    moved = Moved(to, at_ms, fields.get(_MOVED_MANAGER))
    return ArchiveIdentity(generation, fields.get(_CLUSTER), None, moved, handed)


def _handed_over(fields: Mapping[str, str]) -> HandedOver | None:
    at_ms = _epoch_ms(fields.get(_HANDED_AT, ""))
    return None if at_ms is None else HandedOver(fields.get(_HANDED_FROM, ""), at_ms)


def _epoch_ms(text: str) -> int | None:
    """None: it is no time. Python refuses to read numbers of thousands of digits."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _EPOCH_MS_DIGITS_MAX
    return int(text) if is_number else None


async def read_identity(store: ObjectStore, prefix: str) -> ArchiveIdentity | None:
    """None: there is no archive below `prefix`. Raises RemoteStorageError."""
    try:
        return parse_identity(await store.get(prefix + LAYOUT_OBJECT, SMALL_OBJECT_BYTES_MAX))
    except ObjectNotFound:
        return None


async def check_listings(store: ObjectStore, prefix: str) -> None:
    """Write an object and look for it by the listings that readers use, with and without folders.
    Removes it. Raises ArchiveMismatch: with such a store the archive would look empty.
    """
    folder = f"{LISTING_CHECK}.{uuid4().hex}"  # no topic's name
    key = f"{prefix}{folder}/{LISTING_CHECK}"
    await store.put(key, b"removed at once\n")
    try:
        listed = [stored.key async for stored in store.list(f"{prefix}{folder}/")]
        folders = [name async for name in store.list_folders(prefix)]
        if key not in listed or folder not in folders:
            by = "without" if key not in listed else "with"
            raise ArchiveMismatch(
                f"store.url: the server's listing {by} a delimiter does not show the object {key}, "
                "which was just written: readers would find no archive there. Use another server, "
                "or a version of it whose listings are complete"
            )
    finally:
        try:
            await store.delete(key)
        except StorageDenied as error:  # an archiver needs no right to delete
            log.warning("listing_check_stays", key=key, error=str(error))


class OwnIdentity:
    """The archive's identity as one process has read it, checked against the process's settings.

    `manager`: the metadata manager that this process is set to; None: it accepts any.
    `must_exist`: a missing archive is an error; otherwise the first put makes the archive.
    """

    def __init__(
        self, store: ObjectStore, prefix: str, manager: str | None, *, must_exist: bool
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._manager = manager
        self._must_exist = must_exist
        self._identity: ArchiveIdentity | None = None
        self.is_mirror = False  # as last read
        self._generation: UUID | None = None  # as first read: it never changes
        self._identity_at = float("-inf")
        self._making = asyncio.Lock()  # several copies may begin at once
        self._cluster_id: str | None = None  # of this process; None: it belongs to no cluster
        self._follows = False  # that is the archive's own, as first read
        self._looks = SingleFlight[ArchiveIdentity | None]()

    @property
    def _expected(self) -> bool:
        return self._must_exist or self._generation is not None

    async def check(self) -> None:
        """Read it if unknown. Raises ArchiveMissing, ArchiveMismatch, RemoteStorageError."""
        if self._identity is None and await self.look() is None and self._expected:
            raise ArchiveMissing(
                "there is no archive at store.url: the prefix is wrong, a mount is missing, the "
                "bucket was emptied, or no archiver has created one yet"
            )

    async def check_still_there(self) -> None:
        """For a caller that got an empty response from the store. Raises as `check`."""
        now = asyncio.get_running_loop().time()
        if self._expected and now - self._identity_at > LOOK_AGE_MAX_S:
            self._identity = None
            await self.check()

    @property
    def was_handed_over(self) -> bool:
        """As last read. An archive that was never another cluster's continues no topic."""
        return self._identity is not None and self._identity.handed_over is not None

    def belongs_to(self, cluster_id: str | None) -> None:
        """From now on this process works for that cluster: `check_owner` compares. None: it has
        none, or its brokers report no id.
        """
        self._cluster_id = cluster_id

    async def follow_owner(self) -> None:
        """For a job without brokers: it works for the cluster that has the archive now, and may not
        go on when another one has it. Raises as `look`.
        """
        identity = await self.look()
        self._follows = True
        self.belongs_to(None if identity is None else identity.cluster_id)

    async def check_owner(self, age_max_s: float = LOOK_AGE_MAX_S) -> None:
        """Before this process writes or deletes: the archive is still that of its cluster, as read
        at most `age_max_s` ago. Raises as `check`.

        A store has no condition about another object, so the identity is read before the write.
        """
        if self._cluster_id is None:
            return
        oldest = asyncio.get_running_loop().time() - age_max_s
        while (
            self._identity is None or self._identity_at < oldest
        ):  # the shared look may have begun before
            if await self._looks.run(None, self.look) is None:
                return await self.check()

    async def check_to_put(self, age_max_s: float = LOOK_AGE_MAX_S) -> None:
        """`age_max_s`: see `check_owner`."""
        await self.check()
        if self._identity is None:
            async with self._making:
                await self._make()
        await self.check_owner(age_max_s)

    async def _make(self) -> None:
        if self._identity is None:
            no_identity = encode_identity(ArchiveIdentity())
            await self._store.put_new(self._prefix + LAYOUT_OBJECT, no_identity)
            await self.look()

    async def look(self) -> ArchiveIdentity | None:
        """Read the identity again; None: there is no archive. Raises as `check`."""
        began_at = asyncio.get_running_loop().time()
        try:
            identity = await read_identity(self._store, self._prefix)
            if identity is not None:
                self._compare(identity)
        except BaseException:
            self._identity = None
            raise
        if identity is None:
            self._identity = None
        else:
            self._generation = self._generation or identity.generation
            self._identity, self._identity_at, self.is_mirror = (
                identity,
                began_at,
                identity.is_mirror,
            )
        return identity

    async def create(self, identity: ArchiveIdentity) -> ArchiveIdentity:
        """Make the archive, or take the identity of a faster process. Raises as `check`, and
        ArchiveMismatch if readers would not find what is written.
        """
        await check_listings(self._store, self._prefix)
        await self._store.put_new(self._prefix + LAYOUT_OBJECT, encode_identity(identity))
        await self._settle()
        if self._identity is None:
            raise ArchiveMissing(f"{LAYOUT_OBJECT} was written, but is not there")
        return self._identity

    async def state(self, identity: ArchiveIdentity) -> None:
        """Replace the archive's identity. Raises as `look`; at a new place as `create`."""
        if self._identity is None:
            await check_listings(self._store, self._prefix)
        await self._store.put(self._prefix + LAYOUT_OBJECT, encode_identity(identity))
        await self._settle()

    async def _settle(self) -> None:
        await asyncio.sleep(CREATION_SETTLE_S)
        self._generation = None
        await self.look()

    def _compare(self, identity: ArchiveIdentity) -> None:
        if self._manager is not None:
            identity.check_is_the_archive()
        if self._manager is not None and identity.manager not in (None, self._manager):
            raise ArchiveMismatch(
                f"metadata.manager: the archive at store.url keeps its metadata in the "
                f"{identity.manager}, but this process is set to the {self._manager}; with two "
                "managers, readers would miss segments"
            )
        if self._follows and _differ(identity.cluster_id, self._cluster_id):
            raise ArchiveMismatch(
                f"store.url: the archive changed hands from the cluster {self._cluster_id} to "
                f"{identity.cluster_id} while this command ran: run it again"
            )
        identity.check_is_of_cluster(self._cluster_id)
        if self._generation is not None and identity.generation not in (None, self._generation):
            raise ArchiveMismatch(
                "the archive at store.url was replaced by another while this process ran; if this "
                "was intended, restart the process"
            )
