"""The table of APIs: how the gateway handles a request, by API key and version.

Every known API without its own module is relayed unchanged. `RELAYED_WHY` gives the reason for APIs
that might seem to need more. The others have nothing to do with the place of records or brokers'
listeners. Unknown keys, and versions that the proxy cannot read, are refused, because their
responses might name brokers. Neither is offered to clients (`api_versions`).
"""

from __future__ import annotations

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey

from fetchproxy.serving.gateway.apis import (
    addresses_rewritten,
    delete_records,
    group_names,
    list_offsets,
    offset_for_leader_epoch,
    proxy_responses,
)
from fetchproxy.serving.gateway.session import (
    API_VERSION_MAX,
    FETCH_TREATMENT,
    RELAY,
    Api,
    ApiTable,
    Behaviour,
    relayed,
    rewritten,
)

_BY_GROUPS = "Groups and their offsets live on the broker."
_CONTROLLERS = "Names the controllers' listeners; no client of the proxy connects to these."
_NOT_FOR_CLIENTS = "Between brokers and controllers; no client sends it."
_ABORTS = "Between brokers, and from `Admin.abortTransaction`; the broker checks the rights."

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
    ApiKey.SASL_AUTHENTICATE: "The proxy passes the tokens on, also at a re-login (KIP-368).",
    ApiKey.DELETE_TOPICS: "The archive is keyed by topic id; a new topic of that name has its own.",
    ApiKey.WRITE_TXN_MARKERS: _ABORTS,
    ApiKey.LEADER_AND_ISR: _NOT_FOR_CLIENTS,
    ApiKey.STOP_REPLICA: _NOT_FOR_CLIENTS,
    ApiKey.UPDATE_METADATA: _NOT_FOR_CLIENTS,
    ApiKey.CONTROLLED_SHUTDOWN: _NOT_FOR_CLIENTS,
}


_FETCH_API = rewritten(
    ApiKey.FETCH,
    FETCH_TREATMENT,
    "Partitions below the broker's log start are read from the archive.",
)

SPECIAL: dict[ApiKey, Api] = {
    api.key: api
    for api in (
        _FETCH_API,
        list_offsets.API,
        delete_records.API,
        offset_for_leader_epoch.API,
        *addresses_rewritten.APIS,
        *proxy_responses.APIS,
    )
}


def _behaviours(key: ApiKey) -> tuple[Behaviour, ...]:
    special = SPECIAL.get(key)
    if special is not None:
        return special.behaviours
    first, last = PROXIED_VERSIONS.get(key, (0, API_VERSION_MAX))
    handling = group_names.HANDLING if key in group_names.KEYS else RELAY
    return (relayed(first, last, RELAYED_WHY.get(key, ""), handling),)


BEHAVIOURS: ApiTable = {int(key): _behaviours(key) for key in ApiKey}
