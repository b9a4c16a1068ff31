"""Key rings encrypt the data keys of segments. A key ring is a file, a key service (`kms_keys`), or
several of these.

    {"version": 1, "active": "2026-11-26-1f0c", "keys": {"2026-11-26-1f0c": "<base64>"}}

The active key encrypts the data keys of new segments. The other keys still decrypt the data keys
that they encrypted. Without an active key (null) the process only reads encrypted segments.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import stat
import tempfile
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from fetchproxy.errors import ConfigError, CorruptSegment, RemoteStorageError, SegmentLocked
from fetchproxy.model import RemoteLogSegmentId
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.runtime.folders import Stamp, stamp_of
from fetchproxy.runtime.single_flight import SingleFlight
from fetchproxy.segments.object_keys import uuid_text
from fetchproxy.segments.packing import NONCE_BYTES, WrappedKey
from fetchproxy.storage.ciphers import KEY_BYTES, AesGcm, check_aes
from fetchproxy.storage.stores.filesystem import sync

SETTING = "store.encryption_keys"
RING_BYTES_MAX = 1024 * 1024  # about 10,000 keys
_RING_VERSION = 1
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

# The context that a wrapped key is bound to. Key services require text for names and values.
KeyContext = Mapping[str, str]
# A changed file is noticed this soon, also while no key is used.
_LOOK_INTERVAL_S = 1.0


def key_context(segment_id: RemoteLogSegmentId, digest: str) -> KeyContext:
    """`digest`: `Packing.digest`."""
    tp = segment_id.topic_id_partition
    description = {"described": digest} if digest else {}
    return description | {
        "topic_id": uuid_text(tp.topic_id),
        "partition": str(tp.partition),
        "segment_id": uuid_text(segment_id.id),
    }


def journal_context(archiver: UUID) -> KeyContext:
    return {"journal": uuid_text(archiver)}


class KeyRing(ABC):
    health: Health  # its conditions

    @property
    @abstractmethod
    def writes(self) -> bool:
        """Whether there is a key for new segments."""

    @abstractmethod
    def may_have(self, key_id: str) -> bool:
        """False: no key of this ring has such an id. Never blocks."""

    def asks_service(self, key_id: str) -> bool:
        """Whether a service of others, which may be slow, unwraps data keys with this id."""
        return False

    @abstractmethod
    async def active_key_id(self) -> str:
        """The id as in `WrappedKey.key_id`; "" without an active key. Raises RemoteStorageError."""

    @abstractmethod
    async def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        """Encrypt with the active key, which must exist. Raises RemoteStorageError."""

    @abstractmethod
    async def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        """Raises SegmentLocked if no key decrypts it; another RemoteStorageError if that is unclear
        (the key service failed).
        """

    @abstractmethod
    async def run(self) -> None:
        """Keep `health` current, also while no key is used. For ever."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Idempotent."""


class KeyRings(KeyRing):
    """The first ring encrypts, all decrypt. So an archive can move to another ring."""

    def __init__(self, rings: Sequence[KeyRing]) -> None:
        self._rings = rings
        self.health = Health()
        for ring in rings:
            self.health.watch(ring.health.all)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for ring in self._rings:
                tasks.create_task(ring.run(), name="key ring")

    @property
    def writes(self) -> bool:
        return self._rings[0].writes

    def may_have(self, key_id: str) -> bool:
        return any(ring.may_have(key_id) for ring in self._rings)

    def asks_service(self, key_id: str) -> bool:
        return any(ring.asks_service(key_id) for ring in self._rings)

    async def active_key_id(self) -> str:
        return await self._rings[0].active_key_id()

    async def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        return await self._rings[0].wrap(data_key, context)

    async def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        """Decrypt with the first ring that can; two files may have a key with the same id."""
        refusals: list[str] = []
        for ring in self._rings:
            if ring.may_have(wrapped.key_id):
                try:
                    return await ring.unwrap(wrapped, context)
                except SegmentLocked as error:
                    refusals.append(str(error))
        raise SegmentLocked(
            "; ".join(refusals)
            or f"it is encrypted with the key {wrapped.key_id!r}, which needs another kind of key "
            f"ring than {SETTING} has"
        )

    async def close(self) -> None:
        for ring in self._rings:
            await ring.close()


@dataclass(frozen=True, slots=True)
class Keys:
    """`repr` shows no key."""

    active: str | None
    keys: Mapping[str, bytes] = field(repr=False)

    def with_new(self, key_id: str, key: bytes) -> Keys:
        """The new key becomes the active key. Raises ConfigError."""
        if key_id in self.keys or not _KEY_ID.fullmatch(key_id):
            raise ConfigError(f"{key_id!r} cannot be the id of a new key")
        return replace(self, active=key_id, keys={**self.keys, key_id: key})

    def without(self, key_id: str) -> Keys:
        """Data that only this key decrypts is then lost. Raises ConfigError."""
        if key_id not in self.keys or key_id == self.active:
            raise ConfigError(f"{key_id!r} is not an old key of the key ring")
        return replace(self, keys={one: key for one, key in self.keys.items() if one != key_id})


NO_KEYS = Keys(None, {})


def encode_keys(keys: Keys) -> bytes:
    by_id = {key_id: b64encode(key).decode() for key_id, key in keys.keys.items()}
    document = {"version": _RING_VERSION, "active": keys.active, "keys": by_id}
    return json.dumps(document, indent=1).encode() + b"\n"


def parse_keys(raw: bytes) -> Keys:
    """Raises ValueError, whose text shows no key."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(document, dict) or not isinstance(document.get("keys"), dict):
        raise ValueError("it has no object `keys`")
    if document.get("version") != _RING_VERSION:
        raise ValueError(f"its version is not {_RING_VERSION}")
    keys: dict[str, bytes] = {}
    for key_id, text in document["keys"].items():
        if not _KEY_ID.fullmatch(key_id):
            raise ValueError(f"{key_id[:64]!r} is not a valid key id")
        try:
            keys[key_id] = b64decode(text, validate=True)
        except (TypeError, ValueError):
            raise ValueError(f"the key {key_id} is not base64") from None
        if len(keys[key_id]) != KEY_BYTES:
            raise ValueError(f"the key {key_id} has {len(keys[key_id])} bytes, not {KEY_BYTES}")
    active = document.get("active")
    if active is not None and active not in keys:
        raise ValueError(f"`active` is {active!r}, which is not one of its keys")
    return Keys(active, keys)


def read_keys(path: Path) -> Keys:
    """Raises ConfigError if the file is missing, is not a key ring, or is readable by others."""
    try:
        # Without waiting: a FIFO would wait for ever for somebody who writes to it.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"the key ring {path} is not a file")
            mode = stat.S_IMODE(status.st_mode)
            raw = file.read(RING_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"the key ring {path}: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"the key ring {path} is open to others (mode {mode:04o}): chmod 600")
    if len(raw) > RING_BYTES_MAX:
        raise ConfigError(f"the key ring {path} has more than {RING_BYTES_MAX} bytes")
    try:
        return parse_keys(raw)
    except ValueError as error:
        raise ConfigError(f"the key ring {path}: {error}") from None


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Lock the folder, so that processes change a key ring one at a time. Raises ConfigError."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"the key ring {path}: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def write_keys(path: Path, keys: Keys, *, new: bool) -> None:
    """Write atomically, readable by its owner only. `new`: the file must not exist yet. Raises
    ConfigError.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encode_keys(keys))
                file.flush()
                os.fsync(file.fileno())
            if new:
                os.link(name, path)
                os.unlink(name)
            else:
                os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        sync(path.parent)
    except FileExistsError:
        raise ConfigError(f"the key ring {path} exists already and was not changed") from None
    except OSError as error:
        raise ConfigError(f"the key ring {path}: {error.strerror}") from None


class FileKeyRing(KeyRing):
    """Reads the file again when it has changed, so an added key is used at once. If the file cannot
    be used then, the last keys stay, and a condition says so.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self._path = path
        self._stamp = stamp_of(self._path)
        self.keys = read_keys(path)  # as last read
        self._looks = SingleFlight[Keys]()
        self.health = Health()
        check_aes()

    async def run(self) -> None:
        while True:
            await self._keys_now()
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def _keys_now(self) -> Keys:
        # On a thread: a folder of the network may hang.
        return await self._looks.run("look", self._look)

    async def _look(self) -> Keys:
        try:
            self._stamp, self.keys = await asyncio.to_thread(self._read_if_changed)
        except ConfigError as error:
            message = f"The changed key ring cannot be used; the last keys stay in use: {error}"
            kind, path = Kind.KEY_RING_UNUSABLE, str(self._path)
            before = self.health.reported(kind, path)
            if before is not None and before.what != message:
                self.health.forget(kind, path)  # another error is logged again
            self.health.report(Condition(kind, message, path), error=str(error))
        else:
            self.health.clear(Kind.KEY_RING_UNUSABLE, str(self._path))
        return self.keys

    def _read_if_changed(self) -> tuple[Stamp, Keys]:
        """Raises ConfigError. A stamp from before the read: a later change is seen next time."""
        stamp = stamp_of(self._path)
        if stamp == self._stamp and stamp is not None:
            return stamp, self.keys
        return stamp, read_keys(self._path)

    @property
    def writes(self) -> bool:
        return self.keys.active is not None

    def may_have(self, key_id: str) -> bool:
        return _KEY_ID.fullmatch(key_id) is not None

    async def active_key_id(self) -> str:
        return (await self._keys_now()).active or ""

    async def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        keys = await self._keys_now()
        if keys.active is None:
            raise RemoteStorageError(f"the key ring {self._path} has no active key any more")
        nonce = os.urandom(NONCE_BYTES)
        label = _label(keys.active, context)
        sealed = AesGcm(keys.keys[keys.active]).seal(nonce, data_key, label)
        return WrappedKey(keys.active, nonce + sealed)

    async def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        key = (await self._keys_now()).keys.get(wrapped.key_id)
        if key is None:
            raise SegmentLocked(
                f"it is encrypted with the key {wrapped.key_id!r}, and the key ring {self._path} "
                "has no key with that id"
            )
        nonce, sealed = wrapped.wrapped[:NONCE_BYTES], wrapped.wrapped[NONCE_BYTES:]
        try:
            return AesGcm(key).open(nonce, sealed, _label(wrapped.key_id, context))
        except CorruptSegment:
            raise SegmentLocked(
                f"the key {wrapped.key_id!r} of the key ring {self._path} does not open it: it is "
                "another key with that id, or the wrapped key or data stored with it was changed"
            ) from None


def _label(key_id: str, context: KeyContext) -> bytes:
    return json.dumps([key_id, context], sort_keys=True).encode()
