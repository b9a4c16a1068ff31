"""Stores of third parties, found by entry point. The proxy checks the calls and translates errors.

A package registers a URL scheme in the group `fetchproxy.stores` with a function

    open_store(url: str, config: StoreConfig, *, create: bool) -> ObjectStore

which only makes the store and reads nothing before `async with`. The archive lies at the store's
root. Errors of a plug-in name it, and occur only if a URL uses its scheme.
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
_CHECKS: Mapping[str, Callable[[str], object]] = {
    "list": check_prefix,
    "list_folders": check_folder_prefix,
}


@lru_cache(maxsize=1)
def found_plugins() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Entry points of all installed packages, by scheme. Imports none. Runs once per process."""
    plugins: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        plugins[point.name] = (*plugins.get(point.name, ()), point)
    return plugins


def plugin_of(scheme: str, built_in: Collection[str]) -> EntryPoint | None:
    """None: no package has that scheme. Raises ConfigError if it is built in, or two packages have
    it.
    """
    points = found_plugins().get(scheme, ())
    if not points:
        return None
    if scheme in built_in:
        raise ConfigError(f"{_named(points[0])} claims the scheme {scheme!r}, which is built in")
    if len({point.value for point in points}) > 1:
        names = " and ".join(_named(point) for point in points)
        raise ConfigError(f"the scheme {scheme!r} is claimed twice: by {names}")
    return points[0]


def plugin_schemes() -> list[str]:
    """The plug-ins' schemes that are valid in a URL."""
    return sorted(name for name in found_plugins() if _SCHEME.fullmatch(name))


def open_plugin_store(
    point: EntryPoint, url: str, config: StoreConfig, create: bool
) -> ObjectStore:
    """Raises ConfigError."""
    name = _named(point)
    try:
        make: Callable[..., Any] = point.load()
    except Exception as error:
        raise ConfigError(f"{name} cannot be imported: {_in_words(error)}") from error
    if not callable(make):
        raise ConfigError(f"{name} is not a function that opens a store")
    try:
        store = make(url, config, create=create)
    except (ConfigError, RemoteStorageError):
        raise
    except Exception as error:  # also for a missing abstract method, which Python names
        raise ConfigError(f"{name} cannot open a store: {_in_words(error)}") from error
    if not isinstance(store, ObjectStore):
        raise ConfigError(
            f"{name} has opened a {type(store).__name__}, which is not an ObjectStore"
        )
    return GuardedObjectStore(store, name)


def _named(point: EntryPoint) -> str:
    package = "an unknown package" if point.dist is None else point.dist.name
    return f"the store plug-in {point.value} of {package}"


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class GuardedObjectStore(WrappedObjectStore):
    """A third party's store. Callers see all its exceptions as errors of a store.

    An exception that the plug-in did not translate counts as an outage: the error shows the
    plug-in's name, reads are retried, and the process continues.
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
            raise StorageUnavailable(f"{self._name}: {_in_words(error)}") from error
