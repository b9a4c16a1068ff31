"""A backfill of partition 0 into a topic, which kills itself with records of its last transaction
on their way. Not a test. Arguments: STORE_URL BOOTSTRAP TOPIC RECORDS_COMMITTED_BEFORE."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from fetchproxy.config.load import Setting, load_config
from fetchproxy.jobs import backfill_topic as job
from fetchproxy.remotelog.options import parse_options

RECORDS_MAX = 64


def main(store: str, bootstrap: str, topic: str, after: str) -> None:
    commit = job._Transactions._commit

    def dying(self: Any, next_offset: int) -> None:
        if self.records >= int(after):
            self._producer.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        commit(self, next_offset)

    job._Transactions._commit = dying  # type: ignore[method-assign]
    job.TRANSACTION_RECORDS_MAX = RECORDS_MAX
    config = load_config(None, {}, [Setting("cluster.bootstrap", bootstrap, "test")])
    options = parse_options({"store": store, "topics": "orders"})
    to = job.TopicTarget(config.cluster, topic, options)
    job.copy_partition(to, job.plan_topic(config, to)[0][0])


if __name__ == "__main__":
    main(*sys.argv[1:])
