"""DescribeConfigs: the few settings that are true of an archive, all of them read-only.

`kafka-topics --describe` and the usual consoles ask for them. Nothing can be altered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import Fields, elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.handling import NODE_ID, ArchiveOnlyParts, Request, ServedApi

_TOPIC, _BROKER = 2, 4  # ConfigResource.Type
_STATIC = 4  # ConfigSource: STATIC_BROKER_CONFIG, as nobody can change it on the way
_BOOLEAN, _TEXT, _LONG, _LIST = 1, 2, 5, 7  # ConfigType

Setting = tuple[str, str, int]

_TOPIC_SETTINGS: tuple[Setting, ...] = (
    ("cleanup.policy", "delete", _LIST),
    ("compression.type", "producer", _TEXT),
    ("remote.storage.enable", "true", _BOOLEAN),
    ("retention.bytes", "-1", _LONG),
    ("retention.ms", "-1", _LONG),
)
_BROKER_SETTINGS: tuple[Setting, ...] = (
    ("auto.create.topics.enable", "false", _BOOLEAN),
    ("remote.log.storage.system.enable", "true", _BOOLEAN),
)


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = elements(request.read()["resources"])
    wanted = {
        (resource["resource_type"], resource["resource_name"]): resource for resource in asked
    }
    results = [_describe(parts, request, resource) for resource in wanted.values()]
    return request.respond({"results": results})


def _describe(parts: ArchiveOnlyParts, request: Request, resource: Fields) -> dict[str, Any]:
    kind, name, wanted = (
        resource["resource_type"],
        resource["resource_name"],
        resource["configuration_keys"],
    )
    result = {"resource_type": kind, "resource_name": name, "configs": ()}
    if kind == _TOPIC and not request.may_read(name):
        return result | {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    if kind == _TOPIC and name in parts.archive.catalogue.by_name:
        settings = _TOPIC_SETTINGS
    elif kind == _TOPIC:
        return result | {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    elif kind == _BROKER and name in ("", str(NODE_ID)):
        settings = _BROKER_SETTINGS
    else:
        message = "an archive has configurations of topics and of its one node only"
        return result | {"error_code": ErrorCode.INVALID_REQUEST, "error_message": message}
    return result | {
        "configs": [
            {
                "name": key,
                "value": value,
                "read_only": True,
                "config_source": _STATIC,
                "config_type": form,
            }
            for key, value, form in settings
            if wanted is None or key in wanted
        ]
    }


DESCRIBE_CONFIGS = ServedApi(ApiKey.DESCRIBE_CONFIGS, 1, 4, answer)
