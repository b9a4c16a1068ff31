"""Opens a job's Spark session, and sets what a Python worker keeps between tasks."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any
from zipimport import zipimporter

from fetchproxy.errors import ConfigError

_M_ARENA_MAX = -8  # of glibc's <malloc.h>
# A local session, like a cluster, tries a task that was lost with its worker three times more
# (spark.task.maxFailures).
LOCAL_TASK_FAILURES_MAX = 4
# A running master answers within the network's own time.
MASTER_RESPONSES_MAX_S = 5.0
_UNDER_SUBMIT = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has started the JVM
_ALWAYS = {"spark.ui.showConsoleProgress": "false"}  # jobs show their own progress
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",  # for results: faults and figures, not records
}


@cache
def share_one_heap() -> None:
    """Call it before a worker's first task.

    Each task reads on its own threads, and glibc gives threads their own heaps. These heaps keep
    freed memory: 30 MiB of a worker, and no query is faster for it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # another C library
        mallopt(_M_ARENA_MAX, 1)


@cache
def freeze_loaded_modules() -> None:
    """To call after a worker's first task.

    Around every task PySpark does two things of a tenth of a second each. It runs a full garbage
    collection (`pyspark/daemon.py`), which leaves out frozen objects. It invalidates the caches of
    imports (`pyspark/worker_util.py`), so importers of zip files read their directories again.
    The next import makes a removed importer anew.
    """
    gc.collect()
    gc.freeze()
    for path, finder in tuple(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


# The session is the existing one, spark-submit's, or a local one.


def require_extra(*packages: str) -> None:
    """Raises ConfigError, naming the extra, if one of `packages` is not installed."""
    for package in packages:
        if find_spec(package) is None:
            name = "PySpark" if package == "pyspark" else package
            raise ConfigError(
                f"{name} is not installed; in a clone of the project: pip install -e '.[spark]'"
            )


def master_addresses(master: str) -> list[tuple[str, int]]:
    """Hosts and ports, one of which has to answer. Empty: only Spark itself knows them. Pure.

    Raises ConfigError if `master` has no form that Spark knows.
    """
    if re.fullmatch(r"local(\[.+\])?|local-cluster\[.+\]|yarn", master):
        return []
    scheme, separator, host_list = master.partition("://")
    if separator and scheme == "k8s":
        # As Spark reads it: the defaults are https and the protocol's port.
        protocol, _, address = host_list.rpartition("://")
        return [
            _host_and_port(master, address.partition("/")[0], 80 if protocol == "http" else 443)
        ]
    if separator and scheme == "spark":
        return [_host_and_port(master, address, None) for address in host_list.split(",")]
    raise ConfigError(
        f"Spark's master {master!r}: expected local[N], spark://HOST:PORT, k8s://HOST:PORT or yarn"
    )


def check_master(master: str) -> None:
    """Raises ConfigError if no master answers; Spark itself takes a minute to say so."""
    errors = []
    for host, port in master_addresses(master):
        try:
            socket.create_connection((host, port), MASTER_RESPONSES_MAX_S).close()
            return
        except OSError as error:
            errors.append(f"{host}:{port}: {error.strerror or error}")
    if errors:
        raise ConfigError(f"Spark's master {master} does not respond: {'; '.join(errors)}")


def _host_and_port(master: str, text: str, port: int | None) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?", text)
    number = None if match is None else (int(match.group(2)) if match.group(2) else port)
    if match is None or number is None or number > 65_535:
        raise ConfigError(f"Spark's master {master!r}: {text!r} is not HOST:PORT")
    return match.group(1).strip("[]"), number


def session_settings(
    master: str | None, under_submit: bool, cores: int, more: Mapping[str, str]
) -> dict[str, str]:
    """The settings of a new session; `more` overrides the others."""
    if under_submit and master is None:
        return {**_ALWAYS, **more}
    settings = _ALWAYS if master else {**_ALWAYS, **_LOCAL}
    return {
        **settings,
        "spark.master": master or f"local[{cores},{LOCAL_TASK_FAILURES_MAX}]",
        **more,
    }


def open_session(name: str, master: str | None, more: Mapping[str, str]) -> Any:
    """A SparkSession (PySpark has no types here). An existing session is used as it is.

    Raises ConfigError if PySpark is missing or Spark cannot be started.
    """
    require_extra("pyspark")
    from py4j.protocol import Py4JError  # the type of errors from the JVM
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = session_settings(master, _UNDER_SUBMIT in os.environ, os.cpu_count() or 1, more)
    if SparkSession.getActiveSession() is None and "spark.master" in settings:
        check_master(settings["spark.master"])
    try:
        return SparkSession.builder.appName(f"fetchproxy {name}").config(map=settings).getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise ConfigError(f"Spark cannot be started: {_reason(str(error).splitlines())}") from error


def _reason(lines: Iterable[str]) -> str:
    """The JVM's own message in a text that names the call before it and the frames after it."""
    texts = [line.strip() for line in lines if line.strip()]
    java = (line.removeprefix(": ") for line in texts if re.match(r"(: )?(\w+\.)+\w+:", line))
    return next(java, texts[0] if texts else "no reason was given")
