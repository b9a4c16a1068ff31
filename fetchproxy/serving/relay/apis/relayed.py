"""Why the APIs that have no module here are relayed as they are. Names and reasons, nothing else.

Only those are named of which one might expect otherwise; the others have nothing to do with where
records lie or where brokers listen.
"""

from __future__ import annotations

from fetchproxy_protocol.apis import ApiKey

_BY_GROUPS = "Groups and their offsets live on the broker."
_CONTROLLERS = "Names the controllers' listeners, which no client of the proxy dials."
_NOT_FOR_CLIENTS = "Between brokers and controllers; no client sends it."

RELAYED_WHY: dict[ApiKey, str] = {
    ApiKey.OFFSET_COMMIT: _BY_GROUPS,
    ApiKey.OFFSET_FETCH: _BY_GROUPS,
    ApiKey.OFFSET_DELETE: _BY_GROUPS,
    ApiKey.JOIN_GROUP: _BY_GROUPS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _BY_GROUPS,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "Names nodes by id alone: no address to change (KIP-966).",
    ApiKey.DESCRIBE_LOG_DIRS: "Sizes on the brokers' disks; the console has the archive's.",
    ApiKey.DESCRIBE_QUORUM: _CONTROLLERS,
    ApiKey.ADD_RAFT_VOTER: _CONTROLLERS,
    ApiKey.UPDATE_RAFT_VOTER: _CONTROLLERS,
    ApiKey.STREAMS_GROUP_HEARTBEAT: "Its endpoints are the applications' own, not the brokers'.",
    ApiKey.STREAMS_GROUP_DESCRIBE: "Its endpoints are the applications' own, not the brokers'.",
    ApiKey.SASL_AUTHENTICATE: "The tokens are between client and broker; KIP-368 as well.",
    ApiKey.DELETE_TOPICS: "The archive is keyed by topic id; a new topic of that name has its own.",
    ApiKey.WRITE_TXN_MARKERS: _NOT_FOR_CLIENTS,
    ApiKey.LEADER_AND_ISR: _NOT_FOR_CLIENTS,
    ApiKey.STOP_REPLICA: _NOT_FOR_CLIENTS,
    ApiKey.UPDATE_METADATA: _NOT_FOR_CLIENTS,
    ApiKey.CONTROLLED_SHUTDOWN: _NOT_FOR_CLIENTS,
}
