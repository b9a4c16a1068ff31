"""DescribeAcls: the rights that the cluster had, as a broker tells them.

Source of the filter's rules: Kafka's ResourcePatternFilter and AccessControlEntryFilter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import MessageFields
from fetchproxy_protocol.primitives import Buffer
from kafka.protocol.admin.acl import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ACLResourceType,
)

from fetchproxy.cluster_state.state import AclState
from fetchproxy.runtime.cooperative import cooperative
from fetchproxy.serving.archive_only.handling import ArchiveOnlyParts, Request, ServedApi

NO_ACLS = "an archive has no ACLs; its users and what they may read are in archive_only.users_file"
_ANY, _MATCH = 1, 2
_WILDCARD = "*"
_UNKNOWN = 0
_CODE_MAX, _CODE_DIGITS_MAX = 127, 3  # an int8
_Is = Callable[[AclState], bool]


async def _describe_acls(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Without ACLs: as from a broker without an authorizer. Only to users that may read all topics,
    as a broker wants DESCRIBE on the cluster.
    """
    fields = await request.read()
    acls = () if parts.archive.kept_state is None else parts.archive.kept_state.acls
    if not acls:
        refusal = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": NO_ACLS}
        return await request.respond({**refusal, "resources": ()})
    if not request.user.sees_everything:
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return await request.respond({"error_code": code, "resources": ()})
    resources: dict[tuple[int, str, int], list[MessageFields]] = {}
    checks = list(_checks(fields))
    async for acl in cooperative(acls):
        if all(check(acl) for check in checks):
            key = (_type(acl), acl.resource_name, _pattern(acl))
            resources.setdefault(key, []).append(_entry(acl))
    rows = [
        {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": entries}
        for (kind, name, pattern), entries in resources.items()
    ]
    return await request.respond({"resources": rows})


def _checks(fields: MessageFields) -> Iterator[_Is]:
    """What an ACL must fulfil. Pure."""
    kind, name = fields["resource_type_filter"], fields["resource_name_filter"]
    pattern = fields["pattern_type_filter"]
    principal, host = fields["principal_filter"], fields["host_filter"]
    operation, permission = fields["operation"], fields["permission_type"]
    if kind != _ANY:
        yield lambda acl: _type(acl) == kind
    if pattern not in (_ANY, _MATCH):
        yield lambda acl: _pattern(acl) == pattern
    if name is not None:
        yield lambda acl: _names(acl, name, pattern)
    if principal is not None:
        yield lambda acl: acl.principal == principal
    if host is not None:
        yield lambda acl: acl.host == host
    if operation != _ANY:
        yield lambda acl: _code(ACLOperation, acl.operation) == operation
    if permission != _ANY:
        yield lambda acl: _code(ACLPermissionType, acl.permission_type) == permission


def _names(acl: AclState, name: str, pattern: int) -> bool:
    if pattern != _MATCH:
        return acl.resource_name == name
    if acl.pattern_type == "PREFIXED":
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, _WILDCARD)


def _entry(acl: AclState) -> MessageFields:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": _code(ACLOperation, acl.operation),
        "permission_type": _code(ACLPermissionType, acl.permission_type),
    }


def _type(acl: AclState) -> int:
    return _code(ACLResourceType, acl.resource_type)


def _pattern(acl: AclState) -> int:
    return _code(ACLResourcePatternType, acl.pattern_type)


def _code(words: Any, name: str) -> int:
    """Kafka's number; a state has the numbers of words that this program does not know."""
    if name in words.__members__:
        return int(words[name].value)
    is_code = name.isascii() and name.isdecimal() and len(name) <= _CODE_DIGITS_MAX
    return int(name) if is_code and int(name) <= _CODE_MAX else _UNKNOWN


APIS = (ServedApi(ApiKey.DESCRIBE_ACLS, 0, 3, _describe_acls),)
