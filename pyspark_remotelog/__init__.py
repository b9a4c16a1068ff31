"""Spark finds data sources by packages named `pyspark_*`, so every session has `remotelog`. That
includes a session of SQL alone, without a line of Python. This package holds nothing else."""

from fetchproxy.remotelog.source import RemoteLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
