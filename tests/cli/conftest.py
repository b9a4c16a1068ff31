"""Commands set up the process's logging; each test here gives it back as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
