"""The matrix's brokers, one version at a time, and its result, written where the docs show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from folder_fixture import folder_fixture
from gap_stack import GapStack
from matrix_results import MatrixResults
from matrix_stack import MatrixStack, StackOf

from lab.kafka import KafkaServer


@folder_fixture
def matrix_results() -> Iterator[MatrixResults]:
    results = MatrixResults()
    yield results
    results.write()


@folder_fixture
def stack_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackOf]:
    """`stack_of("3.9.2")` → its stack; the stack of another version, if any, is stopped first."""
    current: dict[str, MatrixStack] = {}
    with ExitStack() as parts:

        def stack(version: str) -> MatrixStack:
            if version not in current:
                parts.close()
                current.clear()
                kafka = parts.enter_context(KafkaServer(version=version, heap="384m"))
                folder = tmp_path_factory.mktemp(f"matrix-{version}")
                current[version] = parts.enter_context(MatrixStack(kafka, folder))
            return current[version]

        yield stack


@folder_fixture
def stack_at_rest(
    kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MatrixStack]:
    """Over an archive that is compressed and encrypted."""
    folder = tmp_path_factory.mktemp("matrix-at-rest")
    with MatrixStack(kafka_server, folder, at_rest=True) as stack:
        yield stack


@folder_fixture
def gap_stack(
    kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GapStack]:
    """Topics with a gap; what serves them is started when a test first asks for it."""
    with GapStack(kafka_server, tmp_path_factory.mktemp("gap")) as stack:
        yield stack
