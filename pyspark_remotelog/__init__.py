"""Spark looks for data sources in packages of this kind of name: `remotelog` is there in each
session, also in one of SQL alone, without a line of Python in it. Nothing else is here."""

from fetchproxy.remotelog.source import RemoteLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
