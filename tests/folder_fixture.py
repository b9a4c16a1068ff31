"""Fixtures that one folder's tests share and that end with the folder's last test."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

_made = pytest.StashKey[dict[str, Any]]()


def folder_fixture(make: Callable[..., Any]) -> Any:
    """`pytest.fixture` with the scope that pytest has not: a folder's modules, those below apart.

    A server with scope "session" lives to the end of the run and takes its share of every later
    test's machine. To pytest this is a fixture of each module; the value is made for the first one
    and kept on the folder, at whose end the part behind the `yield` runs.
    """

    name = make.__name__

    def fixture(request: pytest.FixtureRequest, **fixtures: Any) -> Any:
        parents = request.node.iter_parents()
        folder = next(node for node in parents if isinstance(node, pytest.Directory))
        made = folder.stash.setdefault(_made, {})
        if name not in made:
            if inspect.isgeneratorfunction(make):
                life = contextmanager(make)(**fixtures)
                made[name] = life.__enter__()
                folder.addfinalizer(lambda: life.__exit__(None, None, None))
            else:
                made[name] = make(**fixtures)
            folder.addfinalizer(lambda: made.pop(name))
        return made[name]

    # What pytest reads to know which fixtures to hand over.
    asked_for = inspect.signature(make)
    request = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    fixture.__signature__ = asked_for.replace(parameters=[request, *asked_for.parameters.values()])
    fixture.__doc__ = make.__doc__
    return pytest.fixture(scope="module", name=name)(fixture)
