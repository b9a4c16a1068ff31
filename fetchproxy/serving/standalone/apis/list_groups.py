"""ListGroups: groups with members, and those that have commits."""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.messages import elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.groups import GroupState
from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi

_CLASSIC = "classic"


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = request.read()
    states = {state.lower() for state in elements(asked["states_filter"])}
    types = {kind.lower() for kind in elements(asked["types_filter"])}
    found = {
        group_id: ("consumer", GroupState.EMPTY) for group_id in sorted(parts.offsets.groups())
    }
    for group in parts.groups.groups():
        found[group.group_id] = (group.protocol_type or "", group.state)
    groups = [
        {
            "group_id": group_id,
            "protocol_type": protocol_type,
            "group_state": state.value,
            "group_type": _CLASSIC,
        }
        for group_id, (protocol_type, state) in found.items()
        if request.may_join(group_id)
        and (not states or state.value.lower() in states)
        and (not types or _CLASSIC in types)
    ]
    return request.respond({"groups": groups})


LIST_GROUPS = ServedApi(ApiKey.LIST_GROUPS, 0, 5, answer)
