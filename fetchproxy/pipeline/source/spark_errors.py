"""How an error of ours looks in Spark: its sentence first, and no frames of ours below it.

Spark shows a Python source's error as the traceback that Python prints. Python prints first what an
exception was raised from: so that one is the sentence, without a traceback. With
FETCHPROXY_LOG_LEVEL=debug the traceback is in the worker's log.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

import structlog

from fetchproxy.errors import FetchProxyError

log = structlog.get_logger(__name__)


class ReadingFailed(Exception):
    """Always raised from the error that says why.

    Spark takes an exception's cause away where it shortens a traceback. This one keeps it.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "__cause__":
            super().__setattr__(name, value)


class SentenceFirst:
    """`with` it; of errors that are not the project's nothing changes."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, FetchProxyError):
            if os.environ.get("FETCHPROXY_LOG_LEVEL") == "debug":
                log.debug("archive_read_failed", exc_info=error)
            error.__traceback__ = error.__cause__ = error.__context__ = None
            raise ReadingFailed("the first line says why") from error
