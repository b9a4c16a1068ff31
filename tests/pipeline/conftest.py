"""The decoder needs pyarrow and numba, which come with the extra `spark` and with `dev`."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numba")
