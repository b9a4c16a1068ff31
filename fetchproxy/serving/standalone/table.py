"""The table of APIs: which module answers what. Whoever adds an API adds it here."""

from __future__ import annotations

from collections.abc import Mapping

from fetchproxy_protocol.headers import RequestHead

from fetchproxy.serving.standalone.apis.api_versions import api_versions
from fetchproxy.serving.standalone.apis.delete_groups import DELETE_GROUPS
from fetchproxy.serving.standalone.apis.describe_cluster import DESCRIBE_CLUSTER
from fetchproxy.serving.standalone.apis.describe_configs import DESCRIBE_CONFIGS
from fetchproxy.serving.standalone.apis.describe_groups import DESCRIBE_GROUPS
from fetchproxy.serving.standalone.apis.describe_topic_partitions import DESCRIBE_TOPIC_PARTITIONS
from fetchproxy.serving.standalone.apis.fetch import FETCH
from fetchproxy.serving.standalone.apis.find_coordinator import FIND_COORDINATOR
from fetchproxy.serving.standalone.apis.heartbeat import HEARTBEAT
from fetchproxy.serving.standalone.apis.join_group import JOIN_GROUP
from fetchproxy.serving.standalone.apis.leave_group import LEAVE_GROUP
from fetchproxy.serving.standalone.apis.list_groups import LIST_GROUPS
from fetchproxy.serving.standalone.apis.list_offsets import LIST_OFFSETS
from fetchproxy.serving.standalone.apis.metadata import METADATA
from fetchproxy.serving.standalone.apis.offset_commit import OFFSET_COMMIT
from fetchproxy.serving.standalone.apis.offset_delete import OFFSET_DELETE
from fetchproxy.serving.standalone.apis.offset_fetch import OFFSET_FETCH
from fetchproxy.serving.standalone.apis.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from fetchproxy.serving.standalone.apis.refused_writes import PRODUCE, REFUSED_WRITES
from fetchproxy.serving.standalone.apis.sasl import SASL_HANDSHAKE_REFUSED
from fetchproxy.serving.standalone.apis.sync_group import SYNC_GROUP
from fetchproxy.serving.standalone.handling import ServedApi

_APIS = (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    SYNC_GROUP,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_FOR_LEADER_EPOCH,
    DESCRIBE_CONFIGS,
    DELETE_GROUPS,
    OFFSET_DELETE,
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC_PARTITIONS,
    # Refused, and yet advertised: librdkafka takes a broker without it for one that is too old to
    # have records of today's format, and then reads nothing.
    PRODUCE,
)

ADVERTISED: Mapping[int, ServedApi] = {api.key: api for api in (*_APIS, api_versions(_APIS))}
_ANSWERED: Mapping[int, ServedApi] = {
    **ADVERTISED,
    **{api.key: api for api in (*REFUSED_WRITES, SASL_HANDSHAKE_REFUSED)},
}


def served_api(head: RequestHead) -> ServedApi | None:
    """Who answers this API in this version; None for nobody."""
    api = _ANSWERED.get(head.api_key)
    if api is None or not api.lowest <= head.api_version <= api.highest:
        return None
    return api
