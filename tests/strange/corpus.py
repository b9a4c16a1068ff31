"""A whole cluster's worth of generated partitions, by seed. Not a test."""

from __future__ import annotations

import os
from random import Random
from uuid import UUID

import legal_logs
from hypothesis import HealthCheck, Phase, given, seed, settings
from legal_logs import INT32_MAX, NONE, ZSTD, Batch, LegalLog, Record, sealed
from planted_kafka import PlantedPartition, random_topic_id

EXAMPLES = int(os.environ.get("STRANGE_EXAMPLES", "24"))
SEED = int(os.environ.get("STRANGE_SEED", "0"))
NAME_BYTES_MAX = 232
_LATEST_EPOCH_MARGIN = 5  # the broker's own start raises the leader epoch
LARGE_TOPIC, LARGE_BYTES = "large-batches", 1_000_000  # Kafka's default limit is 1,048,588


def corpus(examples: int = EXAMPLES, number: int = SEED) -> list[PlantedPartition]:
    """Partitions of topics. Every second log has what compaction leaves. One more has batches as
    large as Kafka takes them: generated ones would make all runs slow.
    """
    rng = Random(number)
    planted: list[PlantedPartition] = []
    ids: dict[str, UUID] = {}
    counts: dict[str, int] = {}
    for example in range(examples):
        name, log = _generated(1000 * number + example, holes=example % 2 == 1)
        topic_id = ids.setdefault(name, random_topic_id(rng))
        newest = max((batch.leader_epoch for batch in log.batches), default=0)
        epoch = min(max(newest, 0) + rng.choice([0, 0, 3]), INT32_MAX - _LATEST_EPOCH_MARGIN)
        epoch = rng.choice([epoch, epoch, 0])
        planted.append(PlantedPartition(name, topic_id, counts.get(name, 0), epoch, log))
        counts[name] = counts.get(name, 0) + 1
    large = _large_log(rng)
    return [*planted, PlantedPartition(LARGE_TOPIC, random_topic_id(rng), 0, 0, large)]


def _large_log(rng: Random) -> LegalLog:
    """One batch fills its bytes, one is large only when it is unpacked; small ones around them."""
    values = [
        (b"small", NONE),
        (rng.randbytes(LARGE_BYTES), NONE),
        (b"x" * LARGE_BYTES, ZSTD),
        (b"small", NONE),
    ]
    at = 1_700_000_000_000
    batches = tuple(
        sealed(Batch(offset, 0, (Record(0, at, b"", value),), at, at, codec=codec))
        for offset, (value, codec) in enumerate(values)
    )
    return LegalLog(0, batches, (0, 2))


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
