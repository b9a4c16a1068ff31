"""One archive of a real broker, and one node without a cluster that serves it."""

from __future__ import annotations

from collections.abc import Iterator

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
