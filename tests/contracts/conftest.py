"""The contracts are no test modules by name: pytest is told to explain their assertions too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("storage_contract", "manager_contract")
