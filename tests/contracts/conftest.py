"""The contract is no test module by its name, so pytest is told to explain its assertions too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("storage_contract")
