"""One object states an archive's identity: its layout, cluster and metadata manager.

    remote-log-layout 1
    generation 3vQ1x0fVRmG1jO1cA2bPzg
    cluster-id MkU3OEVBNTcwNTJENDM2Qk
    metadata-manager topic __remote_log_metadata

The first line is the layout's version. Each archive gets a new `generation`, which distinguishes a
replaced archive from a changed one. The next archiver adds a missing line. A missing object means a
wrong prefix, a missing mount or an emptied bucket, never an empty archive.

When an archive moves (docs/adr/0057), two places have this object. `metadata-manager mirror`:
`fetchproxy mirror` writes to this place, and the archive is elsewhere. `metadata-manager moved`,
with the lines `moved-…`: the archive was here. No process can be set to either manager, so every
process with a cluster refuses such a place, even a program version that does not know these words.
"""

from __future__ import annotations

import asyncio
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
# If two processes make an archive at once, the first one's identity stays, and both read it. If two
# processes `state` an identity, or the S3 server has no conditional put, the later one's stays.
CREATION_SETTLE_S = 0.5
_GENERATION, _CLUSTER, _MANAGER = "generation", "cluster-id", "metadata-manager"
_MOVED_TO, _MOVED_AT, _MOVED_MANAGER = "moved-to", "moved-at-ms", "moved-manager"
MIRROR, _MOVED = "mirror", "moved"
LISTING_CHECK = "listing-check"


@dataclass(frozen=True, slots=True)
class Moved:
    """`to`: the archive's place now. `at_ms`: epoch ms. `manager`: the archive's manager."""

    to: str
    at_ms: int
    manager: str | None = None


@dataclass(frozen=True, slots=True)
class ArchiveIdentity:
    """`manager`: "store", "topic" and its name, or `MIRROR`; None: the archive does not name one,
    or it has `moved`.
    """

    generation: UUID | None = None
    cluster_id: str | None = None
    manager: str | None = None
    moved: Moved | None = None

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
        )

    def check_is_the_archive(self) -> None:
        """Raises ArchiveMismatch if the archive itself is at another place."""
        if self.is_mirror:
            raise ArchiveMismatch(
                "store.url: a mirror is at that place, and not the archive; --archive-only "
                "reads a mirror, and `fetchproxy mirror --cut-over` makes it the archive"
            )
        if self.moved is not None:
            raise ArchiveMismatch(
                f"store.url: the archive has moved to {self.moved.to}; set store.url to that"
            )


def encode_identity(identity: ArchiveIdentity) -> bytes:
    lines = {
        _GENERATION: identity.generation and uuid_text(identity.generation),
        _CLUSTER: identity.cluster_id,
        _MANAGER: identity.manager,
    }
    if (moved := identity.moved) is not None:
        lines |= {_MANAGER: _MOVED, _MOVED_TO: moved.to, _MOVED_AT: str(moved.at_ms)}
        lines[_MOVED_MANAGER] = moved.manager
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
    manager = fields.get(_MANAGER)
    if manager != _MOVED:
        return ArchiveIdentity(generation, fields.get(_CLUSTER), manager)
    to, at_ms = fields.get(_MOVED_TO, ""), fields.get(_MOVED_AT, "")
    if not to or not at_ms.isdecimal():
        raise RemoteStorageError(f"{LAYOUT_OBJECT}: it does not say where the archive has moved to")
    moved = Moved(to, int(at_ms), fields.get(_MOVED_MANAGER))
    return ArchiveIdentity(generation, fields.get(_CLUSTER), None, moved)


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

    @property
    def _expected(self) -> bool:
        return self._must_exist or self._generation is not None

    async def check(self) -> None:
        """Read it if unknown. Raises ArchiveMissing, ArchiveMismatch, RemoteStorageError."""
        if self._identity is None and await self.look() is None and self._expected:
            raise ArchiveMissing(
                "there is no archive at store.url: a wrong prefix, a missing mount, an emptied "
                "bucket, or no archiver has made one yet"
            )

    async def check_still_there(self) -> None:
        """For a caller that got an empty response from the store. Raises as `check`."""
        now = asyncio.get_running_loop().time()
        if self._expected and now - self._identity_at > LOOK_AGE_MAX_S:
            self._identity = None
            await self.check()

    async def check_to_put(self) -> None:
        await self.check()
        if self._identity is None:
            async with self._making:
                await self._make()

    async def _make(self) -> None:
        if self._identity is None:
            no_identity = encode_identity(ArchiveIdentity())
            await self._store.put_new(self._prefix + LAYOUT_OBJECT, no_identity)
            await self.look()

    async def look(self) -> ArchiveIdentity | None:
        """Read the identity again; None: there is no archive. Raises as `check`."""
        began_at = asyncio.get_running_loop().time()
        self._identity = None
        identity = await read_identity(self._store, self._prefix)
        if identity is not None:
            self._compare(identity)
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
                f"metadata.manager: the metadata of the archive at store.url are kept by the "
                f"{identity.manager}, and this process is set to the {self._manager}; with two "
                "managers, readers would miss segments"
            )
        if self._generation is not None and identity.generation not in (None, self._generation):
            raise ArchiveMismatch(
                "the archive at store.url was replaced by another while this process ran; if this "
                "was intended, restart the process"
            )
