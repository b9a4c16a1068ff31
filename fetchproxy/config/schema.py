"""Every configuration key, once: type, default, unit (last in the name) and why. Section by
section.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fetchproxy.config.values import (
    BootstrapText,
    Duration,
    HostPortText,
    OptionalAdvertisedHost,
    OptionalAttachments,
    OptionalHostName,
    OptionalHostPortText,
    OptionalHttpUrl,
    OptionalKeyRing,
    OptionalNodeMap,
    OptionalNodeNames,
    OptionalPaths,
    OptionalPattern,
    OptionalRetentionOverrides,
    OptionalSecret,
    OptionalUrl,
    Size,
)

# What all sections of the configuration have in common, and the units of their defaults.

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB


class Section(BaseModel):
    # An error that quotes its input would show a secret.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


# The section `archive` of the configuration. Declares keys and nothing else.


class ArchiveConfig(Section):
    """The archiver (RemoteLogManager)."""

    topics: OptionalPattern = Field(None, description="regular expression; whole topic names match")
    log_dirs: OptionalPaths = Field(
        None,
        description="log.dirs of a broker on this host, all of them: its rolled segment files are "
        "copied, of partitions that it leads; not set: segments are fetched from the brokers over "
        "the network",
    )
    # A batch more must stay below the largest segment that anybody reads (`SEGMENT_BYTES_MAX`).
    segment_bytes_max: Size = Field(
        64 * MiB, description="a segment is cut at this size", ge=KiB, le=8 * GiB
    )
    segment_age_max_ms: Duration = Field(
        600_000,
        description="a segment is also cut when its first batch was read this long ago. Where this "
        "is above 10 minutes, a proxy that serves must know it: its readers wait three times as "
        "long for an offset that an archiver is gathering, and skip it then",
        ge=1,
    )
    workers_max: int = Field(4, description="partitions processed at once", ge=1)
    # No longer than objects without metadata are left alone (`WritingLimits.orphan_age_min_ms`): an
    # upload whose answer was lost may take this, and what it brings must not go meanwhile.
    copy_max_ms: Duration = Field(
        300_000, description="a copy that takes longer is given up", ge=1, le=3_600_000
    )
    copy_bytes_per_s_max: Size = Field(
        0,
        description="bytes a second that are taken from the brokers, over all partitions, so that "
        "an archiver that catches up leaves consumers their share; 0: no limit "
        "(remote.log.manager.copy.max.bytes.per.second)",
        ge=0,
    )
    spool_dir: Path | None = Field(
        None,
        description="where a segment is gathered before its copy; default: a temporary folder. "
        "With `log_dirs` on their file system, but not inside one: then segments are hard links "
        "and take no space",
    )
    spool_bytes_max: Size = Field(
        8 * 1024 * MiB,
        description="bytes in the spool; above this, segments are cut before they are full",
        ge=MiB,
    )
    local_index_dir: Path | None = Field(
        None,
        description="folder in which this process keeps the archive's indexes, so that a reader's "
        "first look into a segment costs one request less. It takes 0.2% of the "
        "archive's size and one request for each segment, and is rebuilt from the "
        "store if it is lost. Use it only in a lasting folder, one for each process; "
        "not set: no local indexes",
    )

    # --- leadership ---
    group_id: str | None = Field(
        None,
        description="archivers with the same consumer group share the partitions: each partition "
        "has one leader. Not set: this archiver leads all; a second one would copy all of it again",
    )
    group_instance_id: str | None = Field(
        None,
        description="group.instance.id, of its own for each archiver: one that is back within "
        "group_session_timeout_ms finds its partitions where it left them",
    )
    group_session_timeout_ms: Duration = Field(
        45_000,
        description="the others take over from an archiver that is silent this long "
        "(session.timeout.ms)",
        ge=100,
    )
    # --- retention ---
    remote_log_retention_ms: Duration = Field(
        -1,
        description="segments whose newest record is older are deleted from the archive, oldest "
        "first; -1: never. The brokers' own `retention.ms` is not meant here: it is short where "
        "there is an archive",
        ge=-1,
    )
    remote_log_retention_bytes: Size = Field(
        -1,
        description="what a partition holds in the archive beyond this is deleted, oldest first; "
        "-1: no limit",
        ge=-1,
    )
    local_retention_ms: Duration = Field(
        -1,
        description="records older than this are deleted from the brokers once they are archived, "
        "by DeleteRecords; the topic's own retention must be unlimited then (retention.ms=-1, "
        "retention.bytes=-1), as a broker does not wait for the copy; -1: not by the archiver",
        ge=-1,
    )
    local_retention_bytes: Size = Field(
        -1,
        description="as `local_retention_ms`: archived records beyond so many bytes a partition "
        "are deleted from the brokers",
        ge=-1,
    )
    retention_overrides: OptionalRetentionOverrides = Field(
        None,
        description="the four keys above by topic: a table of patterns for whole topic names, the "
        'first that matches counts, as `"orders[.].*" = { remote_log_retention_ms = 86400000 }`; '
        "as text the same in JSON",
    )
    follow_topic_retention: bool = Field(
        False,
        description="the topic's own settings count before `archive.*`, though not before an "
        "override: with remote.storage.enable=true its retention.ms and retention.bytes, which are "
        "then those of both tiers; without it its local.retention.ms and local.retention.bytes",
    )
    retention_grace_ms: Duration = Field(
        300_000,
        description="a segment's objects are deleted this long after it was hidden, for readers in "
        "flight and for proxies whose view is metadata.view_age_max_ms old (file.delete.delay.ms)",
        ge=0,
    )
    retention_step_grace_ms: Duration = Field(
        86_400_000,
        description="retention that would hide more than half of a partition at once is announced "
        "(log, metrics, console) and waits this long: a day to notice a mistyped retention or a "
        "wrong clock, and to take it back. 0: it does not wait, and the clock is not compared with "
        "those of the store and of producers",
        ge=0,
    )
    topic_deletion: Literal["delete", "keep", "delete-all"] = Field(
        "delete",
        description="what becomes of the archive of a topic that the cluster has deleted. `delete` "
        "stops where most topics are gone at once, or none is left of those that the cluster had: "
        "then it may be another cluster with the same id. `delete-all` does not stop: set it for "
        "as long as that takes; `keep` for a while keeps those for good",
    )
    topic_deletion_grace_ms: Duration = Field(
        86_400_000,
        description="the archive of a topic is deleted once every look at the cluster for this "
        "long has found no such topic. A day leaves time to notice a mistake, and for "
        "a cluster to recover that shows only some of its topics",
        ge=0,
    )


# The section `archive_only` of the configuration. Declares keys and nothing else.


class ArchiveOnlyConfig(Section):
    """Serving an archive without its cluster (`fetchproxy serve --archive-only`)."""

    enabled: bool = Field(
        False, description="answer every client from the archive alone; no broker is asked"
    )
    open_to_anybody: bool = Field(
        False,
        description="everybody who reaches the listener may read the whole archive. Beyond "
        "loopback archive-only mode starts only with this, with `users_file`, or with "
        "`gateway.tls_client_auth = required`",
    )
    users_file: Path | None = Field(
        None,
        description="clients log in by SASL (PLAIN, SCRAM) as users of this file, which says what "
        "each may read; lines for it are made by `fetchproxy user`; changes count within seconds",
    )
    refresh_interval_ms: Duration = Field(
        5_000,
        description="topics and segments that another process archives are seen within this; each "
        "look lists the archive's partitions, which an S3 store charges for",
        ge=50,
    )
    offsets_file: Path | None = Field(
        None,
        description="where committed offsets are kept; not set: in memory, so they are lost when "
        "the process ends",
    )
    groups_bytes_max: Size = Field(
        256 * MiB,
        description="memory for what members of all groups have sent and received, and for "
        "committed offsets, with all names; above it new members and commits are "
        "refused",
        ge=KiB,
    )


# The section `attach` of the configuration. Declares keys and nothing else.


class AttachConfig(Section):
    """Topics of other archives, served beside one's own under names of one's choice, read-only."""

    archives: OptionalAttachments = Field(
        None,
        description="each NAME=STORE_URL#TOPIC, separated by spaces: TOPIC of the archive at "
        "STORE_URL is served as NAME, with --archive-only; credentials and time-outs are those of "
        "`store`",
    )


# The section `metadata` of the configuration. Declares keys and nothing else.


class MetadataConfig(Section):
    """What the proxy knows of the archive."""

    manager: Literal["store", "topic"] = Field(
        "store",
        description="where segments' states are read from: the store itself, or the topic "
        "`__remote_log_metadata`, which costs no listings and keeps 100 bytes per segment in "
        "memory; every process of one archive must have the same (archive-only always reads the "
        "store)",
    )
    topic_name: str = Field(
        "__remote_log_metadata",
        description="name of the metadata topic. Choose another if the brokers have tiered "
        "storage of their own, which uses this one, or for a second archive of the "
        "same cluster",
    )
    topic_partitions: int = Field(
        50,
        description="of the metadata topic (remote.log.metadata.topic.num.partitions); never "
        "changed afterwards, as it says where a partition's events are",
        ge=1,
    )
    topic_replication_factor: int = Field(
        3, description="of the metadata topic (remote.log.metadata.topic.replication.factor)", ge=1
    )
    cache_dir: Path | None = Field(
        None,
        description="where what was read of the metadata topic is kept, so that a restart reads "
        "only what is new; not set: in memory alone, and a start reads the whole topic",
    )
    view_age_max_ms: Duration = Field(
        30_000,
        description="a view of a partition that is in use is read again in the background when it "
        "is older than this. Until then records that another process has deleted may "
        "still be served",
        ge=1,
    )

    @property
    def ruling(self) -> str:
        """Which metadata manager it is, as the archive states it."""
        return self.manager if self.manager == "store" else f"{self.manager} {self.topic_name}"


# The section `remote_fetch` of the configuration. Declares keys and nothing else.


class RemoteFetchConfig(Section):
    """Reads from the archive."""

    remote_error_after_ms: Duration = Field(
        60_000,
        description="a store failing for longer is shown to clients as KAFKA_STORAGE_ERROR",
        ge=0,
    )
    inflight_bytes_max: Size = Field(
        256 * MiB, description="bytes of chunks being read at once; further reads wait", ge=MiB
    )
    chunk_cache_bytes_max: Size = Field(256 * MiB, description="memory of the chunk cache", ge=0)
    client_bytes_per_s_max: Size = Field(
        0,
        description="archived bytes a second for one client over all its connections. A client is "
        "a certificate, or else an address (of IPv6 a /64), whatever client ids it "
        "sends. Above the limit it is throttled as by a broker's quota "
        "(consumer_byte_rate). Relayed bytes do not count. 0: no limit",
        ge=0,
    )
    index_cache_bytes_max: Size = Field(
        64 * MiB,
        description="memory of segments' indexes (remote.log.index.file.cache.total.size.bytes)",
        ge=MiB,
    )
    disk_cache_dir: Path | None = Field(
        None,
        description="folder of a second cache of checked chunks, which survives a restart; of this "
        "process alone; off if not set",
    )
    disk_cache_bytes_max: Size = Field(
        10_240 * MiB,
        description="size of that folder; the chunks that were unused longest are removed first",
        ge=MiB,
    )
    hedged_reads_share_max: float = Field(
        0.05,
        description="share of range reads that may be sent a second time when they are slow; the "
        "faster answer counts. The store gets at most so many more requests. 0: none",
        ge=0,
        le=1,
    )


# The section `store` of the configuration. Declares keys and nothing else.


class StoreConfig(Section):
    """The object store that holds the archive."""

    url: OptionalUrl = Field(
        None,
        description="file:///path, s3://bucket/prefix?endpoint_url=…, gs://bucket/prefix, "
        "az://container/prefix or webhdfs://host:port/path",
    )
    hdfs_token_file: Path | None = Field(
        None,
        description="holds a delegation token for an HDFS, read at the first request and again when"
        " the token is refused; none: one is got by Kerberos where HDFS wants that, and else the"
        " URL's user is believed",
    )
    connections_max: int = Field(
        32,
        description="to the store, and range reads in flight (remote.log.reader.threads); range "
        "reads and uploads of S3 have as many of their own each",
        ge=1,
    )
    timeout_ms: Duration = Field(
        20_000,
        description="how long the store may be silent within an answer; raise it for a slow store "
        "or link. Sending a part of 8 MiB may take three times this (140 KiB/s by "
        "default), and a connection at most 3 s of it. Then the request is tried "
        "again. A listing or a read of metadata is given up when nothing has come for half of it",
        ge=100,
    )

    compression: Literal["none", "zstd"] = Field(
        "none",
        description="of segments that are written from now on and whose batches are not compressed;"
        " zstd takes a third to a half of the space and some CPU. All are read, whatever it says",
    )

    encryption_keys: OptionalKeyRing = Field(
        None,
        description="key ring that encrypts new segments and opens encrypted ones: the path of a "
        "file of `fetchproxy keys`, or aws-kms://REGION/KEY. With ?required=true segments that are "
        "not encrypted are refused. Of several, the first one encrypts, and all open",
    )

    # A store that takes a connection at all does so in a round trip or two.
    @property
    def connect_max_ms(self) -> int:
        return min(3_000, self.timeout_ms)

    @property
    def read_max_ms(self) -> int:
        return self.timeout_ms

    # It takes the bandwidth of the link, too, and is answered when all has come.
    @property
    def write_max_ms(self) -> int:
        return 3 * self.timeout_ms

    # Readers wait for metadata, so a read of it ends with an error before `timeout_ms` is over.
    @property
    def metadata_read_max_ms(self) -> int:
        return self.timeout_ms // 2


# TLS, of the section `tls` and of the keys that the listener and the brokers' side have alike.

KeyFile = Annotated[
    Path | None,
    Field(description="PEM of the private key; default: it is in the certificate's file"),
]
KeyPassword = Annotated[OptionalSecret, Field(description="of the private key (ssl.key.password)")]


class TlsConfig(Section):
    """What TLS towards clients and towards brokers have in common."""

    protocol_min: Literal["TLSv1.2", "TLSv1.3"] = Field(
        "TLSv1.2", description="older versions are broken (RFC 8996)"
    )


# `fetchproxy.config.load` fills these from TOML, environment and command line. Unknown keys fail.


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
    frame_bytes_max: Size = Field(
        100 * MiB,
        description="largest frame of either side (Kafka's socket.request.max.bytes)",
        ge=KiB,
    )
    connections_max: int = Field(20_000, description="clients at once; one more is closed", ge=1)
    connections_per_ip_max: int = Field(
        20_000,
        description="clients at once from one address (max.connections.per.ip); as many as in all "
        "by default, since many may come through one NAT",
        ge=1,
    )
    idle_max_ms: Duration = Field(
        600_000, description="silent connections are closed (connections.max.idle.ms)", ge=100
    )
    connection_buffers_bytes_max: Size = Field(
        256 * MiB,
        description="bytes that all connections hold together: what waits for slow clients and "
        "brokers, requests and answers that are not whole, fetch sessions (300 bytes a "
        "partition); above it those that hold most are closed",
        ge=MiB,
    )
    remote_answers_bytes_max: Size = Field(
        256 * MiB,
        description="archived records on their way to all clients, besides the chunk cache; above "
        "it answers are cut, down to one batch each",
        ge=KiB,
    )
    pace_by_appetite: bool = Field(
        True,
        description="answers to a librdkafka client that catches up, and that was seen to pause, "
        "leave no faster than it takes records: else it stops for a second each time 100,000 wait "
        "for its application; false: never",
    )
    gap_policy: Literal["skip", "error"] = Field(
        "skip",
        description="what a reader gets at offsets that were lost before they could be archived. "
        "skip: the first records behind them, as at a hole that compaction left. "
        "error: INVALID_RECORD, which stops consumers; aiokafka waits there",
    )
    permit_ttl_ms: Duration = Field(
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
    tls_key_file: KeyFile = None
    tls_key_password: KeyPassword = None
    tls_client_auth: Literal["none", "requested", "required"] = Field(
        "none",
        description="whether clients show a certificate (ssl.client.auth); it admits them to this "
        "listener, and the broker does not learn of it",
    )
    tls_client_ca_file: Path | None = Field(
        None, description="PEM of the authorities that clients' certificates come from"
    )
    sni_bootstrap_host: OptionalHostName = Field(
        None,
        description="one port for all brokers: the name that clients bootstrap with; needs TLS",
    )
    sni_node_pattern: OptionalNodeNames = Field(
        None,
        description="with it: the name of each broker, such as broker-{node_id}.kafka.example.com,"
        " and :PORT behind it where clients are told another port than the listener's, that of a "
        "load balancer in front",
    )


class ConsoleConfig(Section):
    """The web console: page, metrics and health."""

    listen: OptionalHostPortText = Field(
        None, description="host:port of the web console; off if not set"
    )
    allowed_hosts: str = Field(
        "",
        description="further names, comma-separated, by which browsers may call the console; the "
        "listener's own and loopback always may (others are refused against DNS rebinding)",
    )


class ProcessConfig(Section):
    """The process as the system sees it."""

    memory_bytes_max: Size = Field(
        0,
        description="ceiling of all memory that has a limit (everything but segments' metadata, "
        "80 bytes each). Limits that are not set shrink until they fit; the process "
        "does not start if they cannot. 0: each limit counts for itself",
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
    request_max_ms: Duration = Field(
        10_000,
        description="how long a broker may take for an answer; connecting to one, for the proxy's "
        "own requests and for clients, may take three tenths of it",
        ge=1,
    )
    client_id: str = Field("fetchproxy", description="client.id of the proxy's own requests")
    frame_bytes_max: Size = Field(
        128 * MiB,
        description="largest answer of a broker; above 8 MiB plus one batch "
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
    tls_key_file: KeyFile = None
    tls_key_password: KeyPassword = None
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
    sasl_password: OptionalSecret = Field(
        None,
        description="for PLAIN and SCRAM; better in the environment or a file than on the command "
        "line, which other users of the machine can read. A file is read at each authentication",
    )
    sasl_oauthbearer_token_file: Path | None = Field(
        None,
        description="holds a token (JWT) that something else renews; read at each authentication",
    )
    sasl_oauthbearer_token_endpoint_url: OptionalHttpUrl = Field(
        None,
        description="where the proxy fetches tokens itself, by client credentials (RFC 6749, 4.4)",
    )
    sasl_oauthbearer_client_id: str | None = Field(None, description="for the token endpoint")
    sasl_oauthbearer_client_secret: OptionalSecret = Field(
        None, description="for the token endpoint; a file is read for each token"
    )
    sasl_oauthbearer_scope: str | None = Field(None, description="asked of the token endpoint")

    # Far below the time for an answer, or a dead broker would use that up.
    @property
    def connect_max_ms(self) -> int:
        return 3 * self.request_max_ms // 10


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
