"""What keys of the configuration demand of each other, and which there are no more. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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


# Keys that there were and are not: an old configuration is told what has become of them.


@dataclass(frozen=True, slots=True)
class Constant:
    """It is `value` now. `where`: its name within the package `fetchproxy`."""

    value: str
    where: str

    def __str__(self) -> str:
        return f"it is {self.value} for everybody now ({self.where})"


@dataclass(frozen=True, slots=True)
class Renamed:
    key: str

    def __str__(self) -> str:
        return f"set {self.key} instead"


@dataclass(frozen=True, slots=True)
class Follows:
    key: str

    def __str__(self) -> str:
        return f"it follows from {self.key} now"


_SERVING = "serving.limits.ServingLimits"
_STANDALONE = "serving.limits.StandaloneLimits"
_READING = "reading.limits.ReadingLimits"
_WRITING = "writing.limits.WritingLimits"
_CONSOLE = "console.collect.ConsoleLimits"
_MEMORY = "config.memory_plan"

GONE: Mapping[str, Constant | Renamed | Follows] = {
    "gateway.tls_key_password_file": Renamed("gateway.tls_key_password.file"),
    "cluster.tls_key_password_file": Renamed("cluster.tls_key_password.file"),
    "cluster.sasl_password_file": Renamed("cluster.sasl_password.file"),
    "cluster.sasl_oauthbearer_client_secret_file": Renamed(
        "cluster.sasl_oauthbearer_client_secret.file"
    ),
    "store.connect_max_ms": Renamed("store.timeout_ms"),
    "store.read_max_ms": Renamed("store.timeout_ms"),
    "store.write_max_ms": Renamed("store.timeout_ms"),
    "remote_fetch.chunk_read_max_ms": Renamed("store.timeout_ms"),
    "remote_fetch.fetcher_tasks_max": Renamed("store.connections_max"),
    "gateway.sni_port_advertised": Renamed("gateway.sni_node_pattern"),
    "archive.source": Follows("archive.log_dirs"),
    "gateway.held_max_ms": Follows("archive.segment_age_max_ms"),
    "gateway.upstream_connect_max_ms": Follows("cluster.request_max_ms"),
    "cluster.connect_max_ms": Follows("cluster.request_max_ms"),
    "metadata.metadata_read_max_ms": Follows("store.timeout_ms"),
    "gateway.half_frame_max_ms": Constant("30s", f"{_SERVING}.half_frame_max_ms"),
    "gateway.bootstrap_stagger_ms": Constant("250ms", f"{_SERVING}.bootstrap_stagger_ms"),
    "gateway.inflight_requests_max": Constant("64", f"{_SERVING}.inflight_requests_max"),
    "gateway.buffer_bytes_max": Constant("64KiB", f"{_SERVING}.buffer_bytes_max"),
    "gateway.splice_bytes_min": Constant("64KiB", f"{_SERVING}.splice_bytes_min"),
    "gateway.client_stall_max_ms": Constant("5m", f"{_SERVING}.client_stall_max_ms"),
    "gateway.remote_answer_bytes_max": Constant("16MiB", f"{_SERVING}.remote_answer_bytes_max"),
    "gateway.remote_answer_turns_max": Constant("16", f"{_SERVING}.remote_answer_turns_max"),
    "gateway.remote_answer_turn_max_ms": Constant("50ms", f"{_SERVING}.remote_answer_turn_max_ms"),
    "gateway.log_start_max_age_ms": Constant("5m", f"{_SERVING}.log_start_max_age_ms"),
    "gateway.tls_handshake_max_ms": Constant("10s", f"{_SERVING}.tls_handshake_max_ms"),
    "gateway.held_request_bytes_max": Constant("2MiB", f"{_SERVING}.held_request_bytes_max"),
    "remote_fetch.remote_fetch_max_wait_ms": Constant(
        "30s", f"{_SERVING}.remote_fetch_max_wait_ms"
    ),
    "remote_fetch.chunk_bytes": Constant("4MiB", f"{_MEMORY}.CHUNK_BYTES"),
    "remote_fetch.read_ahead_chunks_max": Constant("16", f"{_READING}.read_ahead_chunks_max"),
    "remote_fetch.backoff_initial_ms": Constant("100ms", f"{_READING}.backoff_initial_ms"),
    "remote_fetch.backoff_max_ms": Constant("5s", f"{_READING}.backoff_max_ms"),
    "remote_fetch.backoff_jitter": Constant("0.2", f"{_READING}.backoff_jitter"),
    "remote_fetch.unasked_read_max_ms": Constant("30s", f"{_READING}.unasked_read_max_ms"),
    "remote_fetch.corrupt_retry_ms": Constant("1m", f"{_READING}.corrupt_retry_ms"),
    "remote_fetch.disk_cache_free_bytes_min": Constant(
        "1GiB", f"{_READING}.disk_cache_free_bytes_min"
    ),
    "remote_fetch.disk_cache_writes_max": Constant("8", f"{_READING}.disk_cache_writes_max"),
    "remote_fetch.hedge_after_min_ms": Constant("20ms", f"{_READING}.hedge_after_min_ms"),
    "remote_fetch.hedge_after_max_ms": Constant("2s", f"{_READING}.hedge_after_max_ms"),
    "remote_fetch.purgatory_entries_max": Constant("10000", f"{_READING}.purgatory_entries_max"),
    "archive.rlm_process_interval_ms": Constant("1s", f"{_WRITING}.rlm_process_interval_ms"),
    "archive.rlm_retry_interval_ms": Constant("5s", f"{_WRITING}.rlm_retry_interval_ms"),
    "archive.margin_warn_share": Constant("0.5", "writing.partition_watch.MARGIN_WARN_SHARE"),
    "archive.turn_max_ms": Constant("5m", f"{_WRITING}.turn_max_ms"),
    "archive.remote_refresh_interval_ms": Constant("1m", f"{_WRITING}.remote_refresh_interval_ms"),
    "archive.fetch_bytes_max": Constant("8MiB", f"{_WRITING}.fetch_bytes_max"),
    "archive.local_index_file_bytes_max": Constant(
        "8MiB", f"{_WRITING}.local_index_file_bytes_max"
    ),
    "archive.local_index_file_age_max_ms": Constant(
        "7d", f"{_WRITING}.local_index_file_age_max_ms"
    ),
    "archive.discovery_interval_ms": Constant("10s", f"{_WRITING}.discovery_interval_ms"),
    "archive.retention_check_interval_ms": Constant(
        "5m", f"{_WRITING}.retention_check_interval_ms"
    ),
    "archive.retention_deletes_per_turn_max": Constant(
        "16", f"{_WRITING}.retention_deletes_per_turn_max"
    ),
    "archive.retention_clock_settle_ms": Constant("1m", f"{_WRITING}.retention_clock_settle_ms"),
    "archive.orphan_check_interval_ms": Constant("1h", f"{_WRITING}.orphan_check_interval_ms"),
    "archive.orphan_age_min_ms": Constant("1h", f"{_WRITING}.orphan_age_min_ms"),
    "archive.topic_deletion_check_interval_ms": Constant(
        "5m", f"{_WRITING}.topic_deletion_check_interval_ms"
    ),
    "archive.group_heartbeat_interval_ms": Constant(
        "3s", "writing.remote_log_manager.HEARTBEAT_INTERVAL_MS"
    ),
    "archive_only.offsets_max": Constant("100000", f"{_STANDALONE}.offsets_max"),
    "archive_only.offset_metadata_bytes_max": Constant(
        "4KiB", f"{_STANDALONE}.offset_metadata_bytes_max"
    ),
    "archive_only.request_bytes_max": Constant("1MiB", f"{_STANDALONE}.request_bytes_max"),
    "archive_only.groups_max": Constant("10000", f"{_STANDALONE}.groups_max"),
    "archive_only.group_members_max": Constant("1000", f"{_STANDALONE}.group_members_max"),
    "archive_only.group_session_timeout_min_ms": Constant(
        "6s", f"{_STANDALONE}.group_session_timeout_min_ms"
    ),
    "archive_only.group_session_timeout_max_ms": Constant(
        "30m", f"{_STANDALONE}.group_session_timeout_max_ms"
    ),
    "archive_only.group_initial_rebalance_delay_ms": Constant(
        "3s", f"{_STANDALONE}.group_initial_rebalance_delay_ms"
    ),
    "metadata.refresh_interval_ms": Constant("5s", f"{_CONSOLE}.refresh_interval_ms"),
    "console.archive_refresh_interval_ms": Constant(
        "30s", f"{_CONSOLE}.archive_refresh_interval_ms"
    ),
    "metadata.metadata_reads_max": Constant(
        "32", "metadata.remote_log_metadata_manager.READS_AT_ONCE_MAX"
    ),
    "metadata.topic_read_bytes": Constant("256KiB", "metadata.metadata_topic.READ_BYTES"),
    "store.part_bytes": Constant("8MiB", f"{_MEMORY}.PART_BYTES"),
    "store.parts_in_flight_max": Constant("4", f"{_MEMORY}.PARTS_IN_FLIGHT_MAX"),
    "process.freed_bytes_max": Constant("16MiB", f"{_MEMORY}.FREED_BYTES_MAX"),
    "store.threads_max": Constant("8", "storage.stores.filesystem.THREADS_MAX"),
    "tls.reload_interval_ms": Constant("10s", "tls.contexts.RELOAD_INTERVAL_MS"),
    "tls.expiry_warning_ms": Constant("14d", "tls.contexts.EXPIRY_WARNING_MS"),
    "cluster.metadata_max_age_ms": Constant("30s", "brokers.cluster.METADATA_AGE_MAX_MS"),
}
