"""The log in memory passes the contract of the real one, so tests on it are valid."""

from __future__ import annotations

import pytest
from memory_metadata_log import MemoryMetadataLog
from metadata_log_contract import MetadataLogContract


class TestMemoryMetadataLog(MetadataLogContract):
    @pytest.fixture
    def metadata_log(self) -> MemoryMetadataLog:
        return MemoryMetadataLog()
