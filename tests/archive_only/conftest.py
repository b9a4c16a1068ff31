"""The modules beside the gateway's, the end-to-end, the archiver's, TLS's and the fuzz tests are
used here too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "archive_only"))
sys.path.insert(1, str(Path(__file__).parents[1] / "gateway"))
sys.path.insert(2, str(Path(__file__).parents[1] / "e2e"))
sys.path.insert(3, str(Path(__file__).parents[1] / "remote_log"))
sys.path.insert(4, str(Path(__file__).parents[1] / "tls"))
sys.path.insert(5, str(Path(__file__).parents[1] / "fuzz"))

import pytest
from archive_only_process import Archived, ArchiveOnlyProcess, archive_from
from folder_fixture import folder_fixture

from lab.kafka import KafkaServer


@folder_fixture
def archived(kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Archived:
    return archive_from(kafka_server, tmp_path_factory.mktemp("archive-only"))


@folder_fixture
def node(
    archived: Archived, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArchiveOnlyProcess]:
    """Clients that behave, only: it asserts at the end that nobody was sent away."""
    with ArchiveOnlyProcess(archived.store, tmp_path_factory.mktemp("node")) as process:
        yield process
        process.assert_sound()
