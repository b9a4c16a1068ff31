"""Which batches belong to aborted transactions: whole columns of headers at once. Pure.

As Kafka's consumer judges (CompletedFetch), but without walking from the beginning: a batch is
aborted when it is transactional and lies between the first offset and the marker of an aborted
transaction of its producer, since a producer has one transaction at a time. So any part of a
segment can be read alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fetchproxy.model import AbortedTxn
from fetchproxy.pipeline.decoder.header_scan import BASE_OFFSET, PRODUCER_ID, ScannedHeaders


class AbortedBatches:
    def __init__(self, entries: Iterable[AbortedTxn]) -> None:
        """In any order; of several entries of one transaction the one that ends last counts."""
        by_producer: dict[int, dict[int, int]] = {}
        for entry in entries:
            ends = by_producer.setdefault(entry.producer_id, {})
            ends[entry.first_offset] = max(entry.last_offset, ends.get(entry.first_offset, 0))
        self._ranges = {
            producer: (
                np.array(sorted(ends), np.int64),
                np.array([ends[first] for first in sorted(ends)], np.int64),
            )
            for producer, ends in by_producer.items()
        }

    def among(self, headers: ScannedHeaders) -> Any:
        """A boolean for each batch."""
        producers = headers.table[:, PRODUCER_ID]
        bases = headers.table[:, BASE_OFFSET]
        aborted = np.zeros(len(bases), np.bool_)
        if not self._ranges:
            return aborted
        for producer in np.unique(producers).tolist():
            if producer in self._ranges:
                firsts, lasts = self._ranges[producer]
                of_it = np.flatnonzero(producers == producer)
                place = np.searchsorted(firsts, bases[of_it], side="right") - 1
                aborted[of_it] = (place >= 0) & (bases[of_it] <= lasts[place])
        return aborted & headers.is_transactional
