"""Where a job's Spark comes from: the session that is there, spark-submit's, or a local one.

Nothing else of the project starts a session. It reads no archive.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from fetchproxy.errors import ConfigError

# What the embedded session is for is work that waits for a store: a task that was lost with its
# worker is given to another one three times, as on a cluster (spark.task.maxFailures).
LOCAL_TASK_FAILURES_MAX = 4
_UNDER_SUBMIT = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has started the JVM
_ALWAYS = {"spark.ui.showConsoleProgress": "false"}  # jobs show their own
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",  # of results: faults and figures, not records
}


def require_spark() -> None:
    """Raises ConfigError, naming the extra, where PySpark is not installed."""
    if find_spec("pyspark") is None:
        raise ConfigError(
            "PySpark is not installed; in a clone of the project: pip install -e '.[spark]'"
        )


def local_master(cores: int) -> str:
    return f"local[{cores},{LOCAL_TASK_FAILURES_MAX}]"


def session_settings(
    master: str | None, under_submit: bool, cores: int, more: Mapping[str, str]
) -> dict[str, str]:
    """What a new session is asked for; `more` has the last word."""
    if under_submit and master is None:
        return {**_ALWAYS, **more}
    settings = _ALWAYS if master else {**_ALWAYS, **_LOCAL}
    return {**settings, "spark.master": master or local_master(cores), **more}


def open_session(name: str, master: str | None, more: Mapping[str, str]) -> Any:
    """A SparkSession (PySpark has no types here). One that is there already is taken as it is.

    Raises ConfigError where PySpark is missing.
    """
    require_spark()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = session_settings(master, _UNDER_SUBMIT in os.environ, os.cpu_count() or 1, more)
    return SparkSession.builder.appName(f"fetchproxy {name}").config(map=settings).getOrCreate()
