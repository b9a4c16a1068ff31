"""What keys of the configuration demand of each other. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fetchproxy.config.schema import (
    ArchiveConfig,
    ClusterConfig,
    Config,
    GatewayConfig,
    MetadataConfig,
)
from fetchproxy.config.values import is_loopback, parse_host_port, parse_paths

# Which keys contradict archive-only mode, and who may read there. Pure.

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


# What encryption at rest demands. Pure.


def encryption_fault(config: Config) -> str | None:
    """The disk cache keeps records as clients get them, for longer than the process lives."""
    if config.store.encryption_keys is None or config.remote_fetch.disk_cache_dir is None:
        return None
    return (
        "remote_fetch.disk_cache_dir is set and store.encryption_keys too: the disk cache would "
        "hold records in the clear"
    )


# What the keys of `archive` demand of each other. Pure.


def log_dirs_fault(archive: ArchiveConfig) -> str | None:
    """What is wrong, as a sentence that names the keys; None: nothing."""
    spool = archive.spool_dir
    for path in () if archive.log_dirs is None else parse_paths(archive.log_dirs):
        if spool is not None and spool.absolute().is_relative_to(path):
            # A broker takes every folder there for a partition, and fails when it is none.
            return f"archive.spool_dir = {spool}: expected a folder outside of {path}"
    return None


def group_fault(archive: ArchiveConfig) -> str | None:
    """As `log_dirs_fault`, of the keys that share partitions out among archivers."""
    if archive.group_id is None:
        if archive.group_instance_id is not None:
            return "archive.group_instance_id is set and archive.group_id is not"
        return None
    if archive.log_dirs is not None:
        return (
            "archive.group_id is set and archive.log_dirs too: there the leader is the archiver "
            "beside the broker that leads the partition"
        )
    return None


def metadata_topic_fault(archive: ArchiveConfig, metadata: MetadataConfig) -> str | None:
    """As `log_dirs_fault`: internal topics, which begin so, are never archived by a pattern."""
    name = metadata.topic_name
    if metadata.manager != "topic" or archive.topics is None or name.startswith("__"):
        return None
    if re.fullmatch(archive.topics, name) is None:
        return None
    return (
        f"metadata.topic_name = {name}: archive.topics matches it; expected a name with __ in front"
    )


# Which `cluster.sasl_*` keys belong together. Pure: reads no file, knows no mechanism's bytes.

_PASSWORD = ("sasl_password",)
_TOKEN = ("sasl_oauthbearer_token_file", "sasl_oauthbearer_token_endpoint_url")
_SECRET = ("sasl_oauthbearer_client_secret",)
_ENDPOINT_ONLY = ("sasl_oauthbearer_client_id", *_SECRET, "sasl_oauthbearer_scope")
_BY_PASSWORD = ("sasl_username", *_PASSWORD)
_BY_TOKEN = (*_TOKEN, *_ENDPOINT_ONLY)


def sasl_fault(cluster: ClusterConfig) -> str | None:
    """What is wrong, by key and without any value but the mechanism's; None: nothing.

    No colon follows a key: what stands behind `password:` is masked wherever it is shown.
    """
    protocol, mechanism = cluster.security_protocol, cluster.sasl_mechanism
    if not protocol.startswith("SASL_"):
        because = f"cluster.security_protocol = {protocol} has no SASL"
        return _must_not(cluster, ("sasl_mechanism", *_BY_PASSWORD, *_BY_TOKEN), because)
    if mechanism is None:
        return f"cluster.sasl_mechanism has to be set for cluster.security_protocol = {protocol}"
    because = f"cluster.sasl_mechanism = {mechanism}"
    if mechanism != "OAUTHBEARER":
        return (
            _must_not(cluster, _BY_TOKEN, because)
            or _one_of(cluster, ("sasl_username",), because)
            or _one_of(cluster, _PASSWORD, because)
        )
    fault = _must_not(cluster, _BY_PASSWORD, because) or _one_of(cluster, _TOKEN, because)
    if fault is not None:
        return fault
    if cluster.sasl_oauthbearer_token_endpoint_url is None:
        return _must_not(cluster, _ENDPOINT_ONLY, "a token file")
    because = "cluster.sasl_oauthbearer_token_endpoint_url"
    return _one_of(cluster, ("sasl_oauthbearer_client_id",), because) or _one_of(
        cluster, _SECRET, because
    )


def _must_not(cluster: ClusterConfig, names: tuple[str, ...], because: str) -> str | None:
    found = _set("cluster", cluster, names)
    return f"{', '.join(found)} must not be set with {because}" if found else None


def _one_of(cluster: ClusterConfig, names: tuple[str, ...], because: str) -> str | None:
    found = _set("cluster", cluster, names)
    if len(found) > 1:
        return f"only one of {' and '.join(found)} may be set"
    wanted = " or ".join(f"cluster.{name}" for name in names)
    return None if found else f"{wanted} has to be set for {because}"


# Which `tls_*` and `sni_*` keys belong together, and who may use the proxy's own certificate.
#
# Pure: reads no file and looks into none.

_KEY = ("tls_key_file", "tls_key_password")
_CLIENTS = ("tls_client_ca_file", "sni_bootstrap_host", "sni_node_pattern")


def tls_faults(gateway: GatewayConfig, cluster: ClusterConfig) -> list[str]:
    """What is wrong, by key and without any secret."""
    faults = _gateway_fault(gateway), _cluster_fault(cluster), _principal_fault(gateway, cluster)
    return [fault for fault in faults if fault is not None]


def _gateway_fault(gateway: GatewayConfig) -> str | None:
    if gateway.tls_certificate_file is None:
        found = _set("gateway", gateway, (*_KEY, *_CLIENTS))
        if gateway.tls_client_auth != "none":
            found.append("gateway.tls_client_auth")
        if found:
            return f"{', '.join(found)}: needs gateway.tls_certificate_file"
    if (gateway.tls_client_auth == "none") != (gateway.tls_client_ca_file is None):
        return (
            f"gateway.tls_client_auth = {gateway.tls_client_auth}: "
            "it and gateway.tls_client_ca_file go together"
        )
    if (gateway.sni_bootstrap_host is None) != (gateway.sni_node_pattern is None):
        return "gateway.sni_bootstrap_host and gateway.sni_node_pattern: one needs the other"
    if gateway.sni_node_pattern is not None:
        found = _set("gateway", gateway, ("node_map",))
        found += ["gateway.node_port_base"] if gateway.node_port_base else []
        if found:
            return f"{', '.join(found)}: gateway.sni_node_pattern gives all brokers one port"
    return None


def _cluster_fault(cluster: ClusterConfig) -> str | None:
    if not cluster.security_protocol.endswith("SSL"):
        found = _set("cluster", cluster, ("tls_ca_file", "tls_certificate_file", *_KEY))
        if found:
            protocol = cluster.security_protocol
            return f"{', '.join(found)}: cluster.security_protocol = {protocol} has no TLS"
    if cluster.tls_certificate_file is None:
        found = _set("cluster", cluster, _KEY)
        if found:
            return f"{', '.join(found)}: needs cluster.tls_certificate_file"
    return None


def _principal_fault(gateway: GatewayConfig, cluster: ClusterConfig) -> str | None:
    """The relay shows the proxy's certificate for each client, so that the brokers take each for
    the proxy. With SASL_SSL each client says itself who it is.
    """
    if cluster.tls_certificate_file is None or cluster.security_protocol != "SSL":
        return None
    if gateway.tls_client_auth == "required" or is_loopback(parse_host_port(gateway.listen).host):
        return None
    return (
        f"cluster.tls_certificate_file with gateway.listen = {gateway.listen}: brokers would take "
        "whoever reaches it for the certificate's principal; expected gateway.tls_client_auth = "
        "required, a gateway.listen on loopback, or cluster.security_protocol = SASL_SSL"
    )


def _set(section: str, config: object, names: tuple[str, ...]) -> list[str]:
    return [f"{section}.{name}" for name in names if getattr(config, name) is not None]
