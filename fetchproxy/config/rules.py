"""Rules between keys of the configuration, for example that one key needs another. Pure.

Messages name the keys, and never a secret value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fetchproxy.config.memory_plan import CHUNK_BYTES
from fetchproxy.config.schema import ArchiveConfig, ClusterConfig, Config, GatewayConfig
from fetchproxy.config.values import is_loopback, parse_host_port, parse_node_map, parse_paths

# The reason why a key has no effect in archive-only mode, by key.
_CONTRADICTIONS = {
    "cluster.bootstrap": "archive-only mode uses no brokers",
    "archive.topics": "there is no broker to archive from in archive-only mode",
    "archive.compacted_topics": "there is no broker to archive from in archive-only mode",
    "gateway.sni_node_pattern": "the listener is the only node in archive-only mode",
}
# Compacted topics in the brokers' own formats.
KAFKAS_OWN_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_PASSWORD = ("sasl_password",)
_TOKEN = ("sasl_oauthbearer_token_file", "sasl_oauthbearer_token_endpoint_url")
_SECRET = ("sasl_oauthbearer_client_secret",)
_ENDPOINT_ONLY = ("sasl_oauthbearer_client_id", *_SECRET, "sasl_oauthbearer_scope")
_BY_PASSWORD = ("sasl_username", *_PASSWORD)
_BY_TOKEN = (*_TOKEN, *_ENDPOINT_ONLY)
_KEY = ("tls_key_file", "tls_key_password")
_CLIENTS = ("tls_client_ca_file", "sni_bootstrap_host", "sni_node_pattern")


def relation_faults(config: Config, places: Mapping[str, str]) -> list[str]:
    """A message for each broken rule. `places`: where the user set each key, by key."""
    gateway, cluster = config.gateway, config.cluster
    faults = [
        _gateway_fault(gateway),
        _cluster_fault(cluster),
        _principal_fault(gateway, cluster),
        _sasl_fault(cluster),
        _archive_only_fault(config, places),
        *_archive_faults(config),
        *_port_faults(gateway),
    ]
    if config.archive_only.enabled and config.process.workers > 1:
        faults.append(
            f"process.workers ({places['process.workers']}) contradicts archive_only.enabled: the "
            "consumer groups of an archive are in one process; expected 1"
        )
    key, in_flight = "remote_fetch.inflight_bytes_max", config.remote_fetch.inflight_bytes_max
    if in_flight < CHUNK_BYTES:  # a chunk could never be read
        faults.append(
            f"{key} = {in_flight} ({places[key]}): expected at least {CHUNK_BYTES}, a chunk"
        )
    return [fault for fault in faults if fault is not None]


def _archive_only_fault(config: Config, places: Mapping[str, str]) -> str | None:
    archive_only, users = config.archive_only, "archive_only.users_file"
    if archive_only.users_file is not None and not archive_only.enabled:
        return (
            f"{users} ({places[users]}) needs archive_only.enabled: in front of brokers, the "
            "brokers' users and ACLs apply"
        )
    if archive_only.users_file is not None and archive_only.open_to_anybody:
        return f"{users} ({places[users]}) contradicts archive_only.open_to_anybody"
    if not archive_only.enabled:
        if config.attach.archives is None:
            return None
        place = places["attach.archives"]
        return f"attach.archives ({place}) needs archive_only.enabled: brokers lack these topics"
    for key, reason in _CONTRADICTIONS.items():
        section, _, name = key.partition(".")
        if key in places and getattr(getattr(config, section), name) is not None:
            return f"{key} ({places[key]}) contradicts {places['archive_only.enabled']}: {reason}"
    # No broker checks ACLs here, so any client that passes the listener reads everything.
    listen, is_closed = config.gateway.listen, config.gateway.tls_client_auth == "required"
    if (
        is_closed
        or archive_only.users_file
        or archive_only.open_to_anybody
        or is_loopback(_host(listen))
    ):
        return None
    return (
        f"gateway.listen = {listen} ({places['gateway.listen']}): in archive-only mode every "
        "client that connects could read the whole archive; expected archive_only.users_file, "
        "gateway.tls_client_auth = required, or archive_only.open_to_anybody = true to allow that"
    )


def _archive_faults(config: Config) -> Iterator[str]:
    archive = config.archive
    if config.store.encryption_keys is not None and config.remote_fetch.disk_cache_dir is not None:
        # The disk cache keeps unencrypted records, also after the process has ended.
        yield (
            "remote_fetch.disk_cache_dir and store.encryption_keys are both set: the disk cache "
            "would hold unencrypted records"
        )
    spool = archive.spool_dir
    for path in parse_paths(archive.log_dirs) if archive.log_dirs is not None else ():
        if spool is not None and spool.absolute().is_relative_to(path):
            # A broker takes every folder in log.dirs for a partition, and fails on any other.
            yield f"archive.spool_dir = {spool}: expected a folder outside of {path}"
            break
    if archive.group_id is None and archive.group_instance_id is not None:
        yield "archive.group_instance_id is set and archive.group_id is not"
    if archive.recovery_point_ms and archive.log_dirs is not None:
        yield (
            "archive.recovery_point_ms and archive.log_dirs are both set: with archive.log_dirs, "
            "the archiver sees only segments that the broker has closed"
        )
    if archive.compacted_topics is not None:
        yield from _compacted_faults(archive)
    if archive.group_id is not None and archive.log_dirs is not None:
        yield (
            "archive.group_id and archive.log_dirs are both set: with archive.log_dirs, "
            "the archiver beside a partition's leader archives the partition"
        )


def _compacted_faults(archive: ArchiveConfig) -> Iterator[str]:
    key = "archive.compacted_topics"
    if archive.topics is None:
        yield f"{key} is set and archive.topics is not: a process without it does not archive"
    if archive.log_dirs is not None:
        yield (
            f"{key} and archive.log_dirs are both set: a broker's files may be compacted while "
            "they are copied"
        )


def relation_notes(config: Config) -> list[str]:
    """What the user may expect of the configuration, and will not get. No fault."""
    pattern = config.archive.compacted_topics
    internal = [n for n in KAFKAS_OWN_TOPICS if pattern and re.fullmatch(pattern, n)]
    if not internal:
        return []
    return [
        f"archive.compacted_topics = {pattern!r} matches {', '.join(internal)}: Kafka's internal "
        "topics are never archived, whatever the pattern says"
    ]


def _port_faults(gateway: GatewayConfig) -> Iterator[str]:
    listen = parse_host_port(gateway.listen).port
    for node_id, place in parse_node_map(gateway.node_map or "").items():
        if place.listen_port == listen:
            yield (
                f"gateway.node_map gives node {node_id} the port {listen}: "
                f"expected a port other than that of gateway.listen = {gateway.listen}"
            )


# Which `cluster.sasl_*` keys belong together.


def _sasl_fault(cluster: ClusterConfig) -> str | None:
    """The fault, by key, with no value except the mechanism; None: no fault.

    No colon follows a key, as all output masks the text after `password:`.
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
    settings = _keys_that_are_set("cluster", cluster, names)
    return f"{', '.join(settings)} must not be set with {because}" if settings else None


def _one_of(cluster: ClusterConfig, names: tuple[str, ...], because: str) -> str | None:
    settings = _keys_that_are_set("cluster", cluster, names)
    if len(settings) > 1:
        return f"only one of {' and '.join(settings)} may be set"
    names_in_words = " or ".join(f"cluster.{name}" for name in names)
    return None if settings else f"{names_in_words} has to be set for {because}"


# Which `tls_*` and `sni_*` keys belong together, and which clients may use the proxy's certificate.


def _gateway_fault(gateway: GatewayConfig) -> str | None:
    if gateway.tls_certificate_file is None:
        settings = _keys_that_are_set("gateway", gateway, (*_KEY, *_CLIENTS))
        if gateway.tls_client_auth != "none":
            settings.append("gateway.tls_client_auth")
        if settings:
            return f"{', '.join(settings)}: needs gateway.tls_certificate_file"
    if (gateway.tls_client_auth == "none") != (gateway.tls_client_ca_file is None):
        return (
            f"gateway.tls_client_auth = {gateway.tls_client_auth}: "
            "it and gateway.tls_client_ca_file go together"
        )
    if (gateway.sni_bootstrap_host is None) != (gateway.sni_node_pattern is None):
        return "gateway.sni_bootstrap_host and gateway.sni_node_pattern: one needs the other"
    if gateway.sni_node_pattern is not None:
        settings = _keys_that_are_set("gateway", gateway, ("node_map",))
        settings += ["gateway.node_port_base"] if gateway.node_port_base else []
        if settings:
            return f"{', '.join(settings)}: gateway.sni_node_pattern gives all brokers one port"
    return None


def _cluster_fault(cluster: ClusterConfig) -> str | None:
    if not cluster.security_protocol.endswith("SSL"):
        settings = _keys_that_are_set(
            "cluster", cluster, ("tls_ca_file", "tls_certificate_file", *_KEY)
        )
        if settings:
            protocol = cluster.security_protocol
            return f"{', '.join(settings)}: cluster.security_protocol = {protocol} has no TLS"
    if cluster.tls_certificate_file is None:
        settings = _keys_that_are_set("cluster", cluster, _KEY)
        if settings:
            return f"{', '.join(settings)}: needs cluster.tls_certificate_file"
    return None


def _principal_fault(gateway: GatewayConfig, cluster: ClusterConfig) -> str | None:
    """The relay shows the proxy's certificate for every client, so brokers take every client for
    the proxy. With SASL_SSL, each client authenticates itself.
    """
    if cluster.tls_certificate_file is None or cluster.security_protocol != "SSL":
        return None
    if gateway.tls_client_auth == "required" or is_loopback(_host(gateway.listen)):
        return None
    return (
        f"cluster.tls_certificate_file with gateway.listen = {gateway.listen}: brokers would treat "
        "every client as the certificate's principal; expected gateway.tls_client_auth = "
        "required, a gateway.listen on loopback, or cluster.security_protocol = SASL_SSL"
    )


def _keys_that_are_set(section: str, config: object, names: tuple[str, ...]) -> list[str]:
    return [f"{section}.{name}" for name in names if getattr(config, name) is not None]


def _host(listen: str) -> str:
    return parse_host_port(listen).host
