"""Every configuration key, once: type, default, unit (last in the name) and why.

`fetchproxy.config.load` fills these from TOML, environment and command line. Unknown keys fail.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from fetchproxy.config.archive import ArchiveConfig as ArchiveConfig
from fetchproxy.config.archive_only import ArchiveOnlyConfig
from fetchproxy.config.attach import AttachConfig
from fetchproxy.config.forms import (
    BootstrapText,
    HostPortText,
    OptionalAdvertisedHost,
    OptionalHostName,
    OptionalHostPortText,
    OptionalHttpUrl,
    OptionalNodeMap,
    OptionalNodeNames,
)
from fetchproxy.config.metadata import MetadataConfig as MetadataConfig
from fetchproxy.config.remote_fetch import RemoteFetchConfig as RemoteFetchConfig
from fetchproxy.config.section import KiB as KiB
from fetchproxy.config.section import MiB as MiB
from fetchproxy.config.section import Section as Section
from fetchproxy.config.store import StoreConfig as StoreConfig
from fetchproxy.config.tls import TlsConfig as TlsConfig


class GatewayConfig(Section):
    """The listeners and the relay."""

    listen: HostPortText = Field(
        "127.0.0.1:9192", description="bootstrap listener, host:port; loopback"
    )
    advertise_host: OptionalAdvertisedHost = Field(
        None,
        description="host that clients are told; default: the listener's, and where that stands "
        "for all addresses (0.0.0.0, ::), the address at which the client has reached the proxy",
    )
    node_port_base: int = Field(
        0,
        description="the broker with node id N listens on this port + N; 0: on the bootstrap "
        "listener's port + 1 + N, so that clients find it after a restart, or on a free port",
        ge=0,
        le=65000,
    )
    node_map: OptionalNodeMap = Field(
        None,
        description="fixed addresses by node id, for firewalls and load balancers, such as "
        "`1=9301,2=kafka.example:9302,3=9303/kafka.example:443`: the port that the proxy listens "
        "on, open from the start, and what clients are told where it differs from "
        "`gateway.advertise_host` and that port; other nodes have ports as without a map",
    )
    frame_bytes_max: int = Field(
        100 * MiB,
        description="largest frame of either side (Kafka's socket.request.max.bytes)",
        ge=KiB,
    )
    held_request_bytes_max: int = Field(
        2 * MiB,
        description="largest request that must be whole before it can be handled: Fetch, "
        "ListOffsets, OffsetForLeaderEpoch, DeleteRecords; enough for 50,000 partitions. Produce "
        "and all others pass as they arrive",
        ge=KiB,
    )
    connections_max: int = Field(20_000, description="clients at once; one more is closed", ge=1)
    connections_per_ip_max: int = Field(
        20_000,
        description="clients at once from one address (max.connections.per.ip); as many as in all "
        "by default, since many may come through one NAT",
        ge=1,
    )
    idle_max_ms: int = Field(
        600_000, description="silent connections are closed (connections.max.idle.ms)", ge=100
    )
    half_frame_max_ms: int = Field(
        30_000, description="time a begun request may take to arrive whole", ge=100
    )
    upstream_connect_max_ms: int = Field(10_000, description="to reach a broker", ge=1)
    bootstrap_stagger_ms: int = Field(
        250,
        description="of several bootstrap brokers the next is asked too when one has not answered "
        "within this, so that one that hangs costs a client no more (RFC 8305's delay)",
        ge=1,
    )
    inflight_requests_max: int = Field(
        64, description="unanswered requests per connection; then reading pauses", ge=1
    )
    buffer_bytes_max: int = Field(
        64 * KiB,
        description="bytes waiting for a slow reader; then the other side pauses (sockets' own "
        "buffers come on top; more than this is only copied once more)",
        ge=KiB,
    )
    splice_bytes_min: int = Field(
        64 * KiB,
        description="records still to come of an answer from which on they pass within the kernel "
        "(Linux, plaintext on both sides), as less is copied sooner; 0: never",
        ge=0,
    )
    connection_buffers_bytes_max: int = Field(
        256 * MiB,
        description="bytes that all connections hold together: what waits for slow clients and "
        "brokers, requests and answers that are not whole, fetch sessions (300 bytes a "
        "partition); above it those that hold most are closed",
        ge=MiB,
    )
    client_stall_max_ms: int = Field(
        300_000,
        description="a client that takes none of the bytes that wait for it is closed after this; "
        "as long as a consumer may stay away from poll() (max.poll.interval.ms)",
        ge=100,
    )
    remote_answer_bytes_max: int = Field(
        16 * MiB,
        description="archived records in one answer, whatever the client's max_bytes (the first "
        "batch comes whole); its next fetch goes on there",
        ge=KiB,
    )
    remote_answers_bytes_max: int = Field(
        256 * MiB,
        description="archived records on their way to all clients, besides the chunk cache; above "
        "it answers are cut, down to one batch each",
        ge=KiB,
    )
    remote_answer_turns_max: int = Field(
        16,
        description="answers with archived records that are made and written at once; further "
        "fetches wait, and of these the connection that was given least goes next, so that "
        "consumers of the same history stay together and it is read once",
        ge=1,
    )
    remote_answer_turn_max_ms: int = Field(
        50,
        description="after this such an answer counts no more: a client that takes it slowly does "
        "not keep the others waiting",
        ge=1,
    )
    log_start_max_age_ms: int = Field(
        300_000,
        description="topics that clients read at the tail are looked up in the archive this often, "
        "so that relayed answers show where their logs really begin; one listing per topic and one "
        "per archived partition, however many clients",
        ge=1_000,
    )
    gap_policy: Literal["skip", "error"] = Field(
        "skip",
        description="what a reader gets at offsets that were lost before they could be archived: "
        "the first records behind them, as Kafka reads a hole that compaction left (skip), or "
        "INVALID_RECORD, on which consumers stop, except aiokafka, which waits there (error)",
    )
    held_max_ms: int = Field(
        1_800_000,
        description="how long a reader waits for an offset that an archiver says it is gathering; "
        "then it is led on behind it. Longer than archive.segment_age_max_ms, or readers pass over "
        "what would have been archived; thrice its default",
        ge=1_000,
    )
    permit_ttl_ms: int = Field(
        60_000,
        description="how long the broker's own OffsetOutOfRange lets a connection read a topic's "
        "archive before it is asked again (ACL revocations take effect within this)",
        ge=1,
    )
    tls_certificate_file: Path | None = Field(
        None,
        description="PEM, the certificate first, then its chain; clients then speak TLS only "
        "(ssl.keystore.certificate.chain)",
    )
    tls_key_file: Path | None = Field(
        None, description="PEM of the private key; default: it is in the certificate's file"
    )
    tls_key_password: SecretStr | None = Field(
        None, description="of the private key (ssl.key.password); better by variable or file"
    )
    tls_key_password_file: Path | None = Field(
        None, description="holds the password instead, as its first line"
    )
    tls_client_auth: Literal["none", "requested", "required"] = Field(
        "none",
        description="whether clients show a certificate (ssl.client.auth); it opens the listener "
        "and is no principal to the broker",
    )
    tls_client_ca_file: Path | None = Field(
        None, description="PEM of the authorities that clients' certificates come from"
    )
    tls_handshake_max_ms: int = Field(
        10_000,
        description="a client that has not shaken hands by then is closed; until then it counts "
        "as one of connections_max",
        ge=1,
    )
    sni_bootstrap_host: OptionalHostName = Field(
        None,
        description="one port for all brokers: the name that clients bootstrap with; needs TLS",
    )
    sni_node_pattern: OptionalNodeNames = Field(
        None, description="and the name of each broker, such as broker-{node_id}.kafka.example.com"
    )
    sni_port_advertised: int = Field(
        0,
        description="port that clients are told with it, where a load balancer is in front; 0: "
        "the listener's own",
        ge=0,
        le=65535,
    )


class ConsoleConfig(Section):
    """The web console: page, metrics and health."""

    listen: OptionalHostPortText = Field(
        None, description="host:port of the web console; off if not set"
    )
    archive_refresh_interval_ms: int = Field(
        30_000,
        description="between two looks at the whole archive for page and metrics; each lists every "
        "partition, which an S3 store charges for",
        ge=100,
    )
    allowed_hosts: str = Field(
        "",
        description="further names, comma-separated, by which browsers may call the console; the "
        "listener's own and loopback always may (others are refused against DNS rebinding)",
    )


class ProcessConfig(Section):
    """The process as the system sees it."""

    memory_bytes_max: int = Field(
        0,
        description="ceiling of all memory that has a limit, which is all but segments' metadata "
        "(80 bytes each): limits that are not set shrink until they fit, what does not fit stops "
        "the start; 0: each limit counts for itself",
        ge=0,
    )
    freed_bytes_max: int = Field(
        16 * MiB,
        description="freed memory that the C library may keep for later; what is above goes back "
        "to the system within 5 s (glibc; the default lets small bursts come and go untouched)",
        ge=0,
    )


class LogConfig(Section):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="nothing is logged per request above debug"
    )
    format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto: console on a terminal, JSON lines otherwise"
    )


class ClusterConfig(Section):
    """The proxy's own connections to the brokers."""

    bootstrap: BootstrapText = Field(
        "127.0.0.1:9092", description="host:port[,host:port…] of the brokers"
    )
    request_max_ms: int = Field(10_000, description="an answer of a broker may take this", ge=1)
    metadata_max_age_ms: int = Field(
        30_000, description="brokers and topics are asked for again after this", ge=1
    )
    client_id: str = Field("fetchproxy", description="client.id of the proxy's own requests")
    connect_max_ms: int = Field(
        3_000,
        description="to reach a broker, so that a dead one does not use up request_max_ms",
        ge=1,
    )
    frame_bytes_max: int = Field(
        128 * MiB,
        description="largest answer of a broker; above archive.fetch_bytes_max plus one batch "
        "(max.message.bytes), as the first batch of a Fetch comes whole",
        ge=KiB,
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="what the brokers' listener speaks (security.protocol)"
    )
    tls_ca_file: Path | None = Field(
        None,
        description="PEM of the authorities that the brokers' certificates come from "
        "(ssl.truststore.certificates); default: the system's",
    )
    tls_certificate_file: Path | None = Field(
        None, description="PEM that the proxy shows to brokers that ask for one (mTLS), with chain"
    )
    tls_key_file: Path | None = Field(
        None, description="PEM of its private key; default: it is in the certificate's file"
    )
    tls_key_password: SecretStr | None = Field(
        None, description="of the private key; better by variable or file"
    )
    tls_key_password_file: Path | None = Field(
        None, description="holds the password instead, as its first line"
    )
    tls_verify_hostname: bool = Field(
        True,
        description="the certificate must be for the name that the broker is dialed by "
        "(ssl.endpoint.identification.algorithm); without it any certificate of the authorities "
        "may pose as any broker",
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = (
        Field(
            None,
            description="how the proxy's own requests authenticate; clients' SASL is relayed and "
            "needs no key here",
        )
    )
    sasl_username: str | None = Field(None, description="for PLAIN and SCRAM")
    sasl_password: SecretStr | None = Field(
        None,
        description="for PLAIN and SCRAM; better in the environment or a file than on the command "
        "line, which other users of the machine can read",
    )
    sasl_password_file: Path | None = Field(
        None, description="holds the password instead; read at each authentication"
    )
    sasl_oauthbearer_token_file: Path | None = Field(
        None,
        description="holds a token (JWT) that something else renews; read at each authentication",
    )
    sasl_oauthbearer_token_endpoint_url: OptionalHttpUrl = Field(
        None, description="or tokens are fetched from here by client credentials (RFC 6749, 4.4)"
    )
    sasl_oauthbearer_client_id: str | None = Field(None, description="for the token endpoint")
    sasl_oauthbearer_client_secret: SecretStr | None = Field(
        None, description="for the token endpoint"
    )
    sasl_oauthbearer_client_secret_file: Path | None = Field(
        None, description="holds the client's secret instead; read for each token"
    )
    sasl_oauthbearer_scope: str | None = Field(None, description="asked of the token endpoint")


class Config(Section):
    cluster: ClusterConfig = ClusterConfig()
    gateway: GatewayConfig = GatewayConfig()
    tls: TlsConfig = TlsConfig()
    remote_fetch: RemoteFetchConfig = RemoteFetchConfig()
    archive: ArchiveConfig = ArchiveConfig()
    archive_only: ArchiveOnlyConfig = ArchiveOnlyConfig()
    metadata: MetadataConfig = MetadataConfig()
    store: StoreConfig = StoreConfig()
    attach: AttachConfig = AttachConfig()
    console: ConsoleConfig = ConsoleConfig()
    process: ProcessConfig = ProcessConfig()
    log: LogConfig = LogConfig()
