"""A whole cluster's worth of generated partitions, by seed. Not a test."""

from __future__ import annotations

import os
from random import Random
from uuid import UUID

import legal_logs
from hypothesis import HealthCheck, Phase, given, seed, settings
from legal_logs import INT32_MAX, LegalLog
from planted_kafka import PlantedPartition, random_topic_id

EXAMPLES = int(os.environ.get("STRANGE_EXAMPLES", "24"))
SEED = int(os.environ.get("STRANGE_SEED", "0"))
NAME_BYTES_MAX = 232
_LATEST_EPOCH_MARGIN = 5  # the broker's own start raises the leader epoch


def corpus(examples: int = EXAMPLES, number: int = SEED) -> list[PlantedPartition]:
    """Partitions of topics. Every second log has what compaction leaves."""
    rng = Random(number)
    planted: list[PlantedPartition] = []
    ids: dict[str, UUID] = {}
    counts: dict[str, int] = {}
    for example in range(examples):
        name, log = _generated(1000 * number + example, holes=example % 2 == 1)
        topic_id = ids.setdefault(name, random_topic_id(rng))
        newest = max((batch.leader_epoch for batch in log.batches), default=0)
        epoch = min(max(newest, 0) + rng.choice([0, 0, 3]), INT32_MAX - _LATEST_EPOCH_MARGIN)
        planted.append(PlantedPartition(name, topic_id, counts.get(name, 0), epoch, log))
        counts[name] = counts.get(name, 0) + 1
    return planted


def _generated(number: int, *, holes: bool) -> tuple[str, LegalLog]:
    """The last of a few examples: the first is the least one, and hypothesis varies the others."""
    made: list[tuple[str, LegalLog]] = []

    @seed(number)
    @settings(
        max_examples=3,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(legal_logs.topic_names(NAME_BYTES_MAX), legal_logs.legal_logs(holes=holes))
    def collect(name: str, log: LegalLog) -> None:
        made.append((name, log))

    collect()
    return made[-1]
