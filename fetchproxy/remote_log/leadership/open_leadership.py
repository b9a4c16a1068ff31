"""From the configuration to the Leadership. Starts nothing."""

from __future__ import annotations

import random

from fetchproxy.cluster.client import Cluster
from fetchproxy.cluster.group_member import GroupSettings
from fetchproxy.config.sections import ArchiveConfig
from fetchproxy.remote_log.leadership.api import Leadership, SoleLeadership
from fetchproxy.remote_log.leadership.consumer_group_leadership import ConsumerGroupLeadership
from fetchproxy.remote_log.leadership.log_dirs_leadership import LogDirsLeadership
from fetchproxy.remote_log.sources.open_source import open_log_dirs


def open_leadership(config: ArchiveConfig, cluster: Cluster, rng: random.Random) -> Leadership:
    if config.source == "log-dirs":
        return LogDirsLeadership({log_dir.node_id for log_dir in open_log_dirs(config)})
    if config.group_id is None:
        return SoleLeadership()
    settings = GroupSettings(
        config.group_id,
        config.group_instance_id,
        config.group_session_timeout_ms,
        config.group_heartbeat_interval_ms,
    )
    return ConsumerGroupLeadership(cluster, settings, rng)
