"""Which rights a restore needs, and what to do about those that are missing. Pure.

Operations have Kafka's own names (org.apache.kafka.common.acl.AclOperation).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from shlex import quote

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.cluster_restore.padding_plan import configs_to_pad
from fetchproxy.cluster_restore.plan import RestoreBy, RestorePlan, TopicAction
from fetchproxy.cluster_state.state import ClusterState
from fetchproxy.errors import ClusterError

REFUSALS = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
)
CLUSTER = ("cluster", "")
_NAMED_MAX = 20  # resources in one command
Resource = tuple[str, str]  # "cluster", "topic" or "group"; the name


@dataclass(frozen=True, slots=True)
class NeededRight:
    """`is_vital`: without it nothing can be restored; else a part is left out."""

    operation: str
    resource: Resource
    purpose: str
    is_vital: bool = False


def is_refusal(error: ClusterError) -> bool:
    return error.error_code in REFUSALS


def needed_rights(by: RestoreBy, plan: RestorePlan, state: ClusterState) -> Iterator[NeededRight]:
    """At the brokers, besides those that are checked at the controllers."""
    if by is RestoreBy.PHANTOMS:
        yield from _of_phantoms(plan)
    else:
        yield from _of_padding(plan)
    for topic in plan.of(TopicAction.CREATE, TopicAction.TAKE, TopicAction.KEEP):
        yield NeededRight("DESCRIBE", ("topic", topic.name), "to see it", True)
        yield NeededRight("READ", ("topic", topic.name), "to set the offsets of groups")
    for group in state.groups:
        yield NeededRight("READ", ("group", group.group_id), "to set its offsets")
    if state.acls:
        yield NeededRight("ALTER", CLUSTER, "to create the ACLs")
    if state.quotas:
        yield NeededRight("ALTER_CONFIGS", CLUSTER, "to set the quotas")


def rights_to_begin(tells_controllers: bool) -> Iterator[NeededRight]:
    """What a restore by phantoms needs before it can plan. `tells_controllers`: the brokers are to
    tell their addresses.
    """
    yield NeededRight("CLUSTER_ACTION", CLUSTER, "to lead temporarily", True)
    yield NeededRight("ALTER", CLUSTER, "to move replicas", True)
    yield NeededRight("DESCRIBE_CONFIGS", CLUSTER, "to learn the brokers' listener", True)
    if tells_controllers:
        purpose = "to learn the controllers' addresses, unless --controllers names them"
        yield NeededRight("DESCRIBE", CLUSTER, purpose, True)


def _of_phantoms(plan: RestorePlan) -> Iterator[NeededRight]:
    if plan.has_local_history:
        yield NeededRight("IDEMPOTENT_WRITE", CLUSTER, "to skip producer ids")
    for topic in plan.of(TopicAction.CREATE, TopicAction.TAKE, TopicAction.KEEP):
        resource = ("topic", topic.name)
        yield NeededRight("ALTER_CONFIGS", resource, "to set its configuration")
        if topic.action is TopicAction.CREATE:
            yield NeededRight("CREATE", resource, "to make it", True)


def _of_padding(plan: RestorePlan) -> Iterator[NeededRight]:
    planned = plan.of(TopicAction.CREATE, TopicAction.TAKE, TopicAction.KEEP)
    if any(one.record_epoch > 0 for topic in planned for one in topic.archived.partitions):
        purpose = "to raise leader epochs, so that new logs continue the archived ones"
        yield NeededRight("ALTER", CLUSTER, purpose)
    for topic in plan.of(TopicAction.CREATE, TopicAction.TAKE):
        resource = ("topic", topic.name)
        yield NeededRight("WRITE", resource, "to pad it", True)
        yield NeededRight("DELETE", resource, "to delete the padding (DeleteRecords)", True)
        if topic.action is TopicAction.CREATE:
            yield NeededRight("CREATE", resource, "to make it", True)
        if names := configs_to_pad(topic):
            purpose = f"to change {', '.join(sorted(names))} while it is padded"
            yield NeededRight("ALTER_CONFIGS", resource, purpose, True)
        elif topic.action is TopicAction.TAKE and topic.archived.configs:
            yield NeededRight("ALTER_CONFIGS", resource, "to set its configuration")


def missing_rights(
    needed: Iterable[NeededRight], allowed: Mapping[Resource, Collection[str]]
) -> list[NeededRight]:
    """`allowed`: operations by resource. A resource that is not in it allows everything. What the
    cluster allows for all topics, CREATE, counts for each one.
    """
    every = allowed.get(CLUSTER, ())
    return [
        right
        for right in needed
        if right.resource in allowed
        and right.operation not in allowed[right.resource]
        and not (right.operation == "CREATE" and "CREATE" in every)
    ]


def rights_text(missing: Iterable[NeededRight], principal: str, bootstrap: str) -> Iterator[str]:
    """One line for each operation and purpose, with the command that adds the rights."""
    parts: dict[tuple[str, str, str], list[str]] = {}
    for one in missing:
        kind, name = one.resource
        parts.setdefault((one.operation, kind, one.purpose), []).append(name)
    for (operation, kind, purpose), names in parts.items():
        on = "the cluster" if kind == "cluster" else f"{kind} {_some(names)}"
        yield (
            f"{operation} on {on} is missing ({purpose}): "
            f"{acl_command(operation, kind, names, principal, bootstrap)}"
        )


def acl_command(
    operation: str, kind: str, names: Collection[str], principal: str, bootstrap: str
) -> str:
    """For a user who may change ACLs. `operation`: CLUSTER_ACTION is ClusterAction there."""
    word = "".join(part.capitalize() for part in operation.split("_"))
    resources = ["--cluster"]
    if kind != "cluster":
        resources = [f"--{kind} {quote(name)}" for name in sorted(names)[:_NAMED_MAX]]
    return (
        f"kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal {quote(principal)} "
        f"--operation {word} {' '.join(resources)}"
    )


def _some(names: Collection[str]) -> str:
    more = len(names) - 3
    return ", ".join(sorted(names)[:3]) + (f" and {more} more" if more > 0 else "")
