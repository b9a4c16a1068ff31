"""From `archive.source` to the SegmentSource. Starts nothing; reads what log directories say."""

from __future__ import annotations

from fetchproxy.cluster.client import Cluster
from fetchproxy.config.forms import parse_paths
from fetchproxy.config.sections import ArchiveConfig
from fetchproxy.remote_log.sources.api import SegmentSource
from fetchproxy.remote_log.sources.batch_gatherer import BatchSegments
from fetchproxy.remote_log.sources.broker_source import BrokerSource
from fetchproxy.remote_log.sources.copy_pace import CopyPace
from fetchproxy.remote_log.sources.kafka_log_dir import LogDir, open_log_dir
from fetchproxy.remote_log.sources.log_dirs_gatherer import LogDirsSegments


def open_source(config: ArchiveConfig, cluster: Cluster) -> SegmentSource:
    """Raises ConfigError as `open_log_dirs`."""
    if config.source == "log-dirs":
        return LogDirsSegments(
            open_log_dirs(config), cluster, CopyPace(config.copy_bytes_per_s_max)
        )
    return BatchSegments(BrokerSource(cluster), config)


def open_log_dirs(config: ArchiveConfig) -> list[LogDir]:
    """Those of `archive.log_dirs`, none with `archive.source` = broker. Blocks, briefly.

    Raises ConfigError where one cannot be read or is none.
    """
    if config.source != "log-dirs" or config.log_dirs is None:
        return []
    return [open_log_dir(path) for path in parse_paths(config.log_dirs)]
