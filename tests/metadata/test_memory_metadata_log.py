"""The log in memory keeps the contract that the real one keeps, so what is tested on it counts."""

from __future__ import annotations

import pytest
from memory_metadata_log import MemoryMetadataLog
from metadata_log_contract import MetadataLogContract


class TestMemoryMetadataLog(MetadataLogContract):
    @pytest.fixture
    def metadata_log(self) -> MemoryMetadataLog:
        return MemoryMetadataLog()
