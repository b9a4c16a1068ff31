"""Stores of third parties: found by entry point, held to what they promise.

A package names in the group `fetchproxy.stores` a URL scheme and a function

    open_store(url: str, config: StoreConfig, *, create: bool) -> ObjectStore

which only makes the store: nothing is read before `async with`. The archive lies at the store's
root. What is wrong with a plug-in is an error that names it, and only where its scheme is used.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import ConfigError, RemoteStorageError, StorageUnavailable
from fetchproxy.segments.object_keys import check_folder_prefix, check_key, check_prefix
from fetchproxy.storage.stores.object_store import ObjectStore, WrappedObjectStore

GROUP = "fetchproxy.stores"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


@lru_cache(maxsize=1)
def found_plugins() -> Mapping[str, tuple[EntryPoint, ...]]:
    """By scheme, of all installed packages; none is imported. Once for a process."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def plugin_of(scheme: str, built_in: Collection[str]) -> EntryPoint | None:
    """None: no package has that scheme. Raises ConfigError where one must not, or two do."""
    points = found_plugins().get(scheme, ())
    if not points:
        return None
    if scheme in built_in:
        raise ConfigError(f"{_named(points[0])} claims the scheme {scheme!r}, which is built in")
    if len({point.value for point in points}) > 1:
        both = " and ".join(_named(point) for point in points)
        raise ConfigError(f"the scheme {scheme!r} is claimed twice: by {both}")
    return points[0]


def plugin_schemes() -> list[str]:
    """Those that a URL can have at all."""
    return sorted(name for name in found_plugins() if _SCHEME.fullmatch(name))


def open_plugin_store(
    point: EntryPoint, url: str, config: StoreConfig, create: bool
) -> ObjectStore:
    """Raises ConfigError."""
    name = _named(point)
    try:
        make: Callable[..., Any] = point.load()
    except Exception as error:
        raise ConfigError(f"{name} cannot be imported: {_said(error)}") from error
    if not callable(make):
        raise ConfigError(f"{name} is no function that opens a store")
    try:
        store = make(url, config, create=create)
    except (ConfigError, RemoteStorageError):
        raise
    except Exception as error:  # an abstract method that is missing, too: Python names it
        raise ConfigError(f"{name} cannot open a store: {_said(error)}") from error
    if not isinstance(store, ObjectStore):
        raise ConfigError(f"{name} has opened a {type(store).__name__}, which is no ObjectStore")
    return GuardedObjectStore(store, name)


def _named(point: EntryPoint) -> str:
    package = "an unknown package" if point.dist is None else point.dist.name
    return f"the store plug-in {point.value} of {package}"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


_CHECKS: Mapping[str, Callable[[str], object]] = {
    "list": check_prefix,
    "list_folders": check_folder_prefix,
}


class GuardedObjectStore(WrappedObjectStore):
    """A third party's store. Whatever it raises is an error of a store to everybody above.

    An exception that it should have translated counts as an outage: it is shown with the plug-in's
    name, reads are tried again, and the process goes on.
    """

    def __init__(self, inner: ObjectStore, name: str) -> None:
        super().__init__(inner)
        self._name = name

    @asynccontextmanager
    async def around(
        self, verb: str, key: str | None = None
    ) -> AsyncIterator[Callable[[], object]]:
        if key is not None:
            _CHECKS.get(verb, check_key)(key)
        with self._translated():
            yield lambda: None

    @property
    def page_objects(self) -> int | None:
        with self._translated():
            return self.inner.page_objects

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except RemoteStorageError:
            raise
        except Exception as error:
            raise StorageUnavailable(f"{self._name}: {_said(error)}") from error
