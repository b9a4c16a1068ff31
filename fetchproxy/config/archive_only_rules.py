"""Which keys contradict archive-only mode, and who may read there. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fetchproxy.config.addresses import is_loopback, parse_host_port
from fetchproxy.config.sections import Config

# By key: why it can have no effect there.
_CONTRADICTIONS = {
    "cluster.bootstrap": "no broker is asked in archive-only mode",
    "archive.topics": "there is no broker to archive from in archive-only mode",
    "gateway.node_map": "there is one node in archive-only mode, the listener itself",
    "gateway.sni_node_pattern": "there is one node in archive-only mode, the listener itself",
}


def archive_only_fault(config: Config, places: Mapping[str, str]) -> str | None:
    """`places`: where each key that the user has set was set."""
    own = config.archive_only
    if own.users_file is not None and (not own.enabled or own.open_to_anybody):
        place = places.get("archive_only.users_file", "archive_only.users_file")
        if own.enabled:
            return f"archive_only.users_file ({place}) contradicts archive_only.open_to_anybody"
        return (
            f"archive_only.users_file ({place}) needs archive_only.enabled: where there are "
            "brokers, their users and ACLs count"
        )
    if not own.enabled:
        if config.attach.archives is not None:
            place = places.get("attach.archives", "attach.archives")
            return f"attach.archives ({place}) needs archive_only.enabled: brokers do not know them"
        return None
    for key, reason in _CONTRADICTIONS.items():
        section, _, name = key.partition(".")
        if key in places and getattr(getattr(config, section), name) is not None:
            enabled = places.get("archive_only.enabled", "archive_only.enabled")
            return f"{key} ({places[key]}) contradicts {enabled}: {reason}"
    return _openness_fault(config, places)


def _openness_fault(config: Config, places: Mapping[str, str]) -> str | None:
    """There is no broker whose ACLs count: who gets through the listener reads everything."""
    gateway = config.gateway
    if is_loopback(parse_host_port(gateway.listen).host):
        return None
    own = config.archive_only
    if gateway.tls_client_auth == "required" or own.users_file or own.open_to_anybody:
        return None
    place = places.get("gateway.listen", "gateway.listen")
    return (
        f"gateway.listen = {gateway.listen} ({place}): in archive-only mode whoever reaches it "
        "would read the whole archive; expected archive_only.users_file, "
        "gateway.tls_client_auth = required, or "
        "archive_only.open_to_anybody = true where that is meant"
    )
