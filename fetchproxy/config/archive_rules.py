"""What the keys of `archive` demand of each other. Pure."""

from __future__ import annotations

import re

from fetchproxy.config.archive import ArchiveConfig
from fetchproxy.config.forms import parse_paths
from fetchproxy.config.metadata import MetadataConfig


def log_dirs_fault(archive: ArchiveConfig) -> str | None:
    """What is wrong, as a sentence that names the keys; None: nothing."""
    if archive.source == "log-dirs" and archive.log_dirs is None:
        return "archive.source = log-dirs needs archive.log_dirs: the broker's log.dirs"
    spool = archive.spool_dir
    for path in () if archive.log_dirs is None else parse_paths(archive.log_dirs):
        if spool is not None and spool.absolute().is_relative_to(path):
            # A broker takes every folder there for a partition, and fails when it is none.
            return f"archive.spool_dir = {spool}: expected a folder outside of {path}"
    return None


def group_fault(archive: ArchiveConfig) -> str | None:
    """As `log_dirs_fault`, of the keys that share partitions out among archivers."""
    if archive.group_id is None:
        if archive.group_instance_id is not None:
            return "archive.group_instance_id is set and archive.group_id is not"
        return None
    if archive.source == "log-dirs":
        return (
            "archive.group_id is set and archive.source = log-dirs: there the leader is the "
            "archiver beside the broker that leads the partition"
        )
    interval_ms, session_ms = archive.group_heartbeat_interval_ms, archive.group_session_timeout_ms
    if 2 * interval_ms > session_ms:
        return (
            f"archive.group_heartbeat_interval_ms = {interval_ms}: expected at most half of "
            f"archive.group_session_timeout_ms = {session_ms}"
        )
    return None


def metadata_topic_fault(archive: ArchiveConfig, metadata: MetadataConfig) -> str | None:
    """As `log_dirs_fault`: internal topics, which begin so, are never archived by a pattern."""
    name = metadata.topic_name
    if metadata.manager != "topic" or archive.topics is None or name.startswith("__"):
        return None
    if re.fullmatch(archive.topics, name) is None:
        return None
    return (
        f"metadata.topic_name = {name}: archive.topics matches it; expected a name with __ in front"
    )
