"""Every configuration key, once: type, default, unit (last in the name); below it, what it means.

`fetchproxy.config.load` fills these from TOML, environment and command line, and refuses unknown
keys; `fetchproxy.config.document` reads the meanings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

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

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB


class Section(BaseModel):
    # An error that quotes its input would show a secret.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ArchiveConfig(Section):
    """The archiver (RemoteLogManager)."""

    topics: OptionalPattern = None
    """Topics to archive: a regular expression that matches the whole name."""
    log_dirs: OptionalPaths = None
    """All log.dirs of a broker on this host. The archiver then copies rolled segment files of the
    partitions that this broker leads. Not set: it fetches segments from the brokers over the
    network.
    """
    # A batch more must stay below the largest segment that anybody reads (`SEGMENT_BYTES_MAX`).
    segment_bytes_max: Size = Field(64 * MiB, ge=KiB, le=8 * GiB)
    """A segment is cut at this size."""
    segment_age_max_ms: Duration = Field(600_000, ge=1)
    """A segment is also cut this long after its first batch was read. If you set more than 10
    minutes, set it for the serving proxies too: their readers wait three times this long for an
    offset that an archiver is gathering, and then skip it.
    """
    workers_max: int = Field(4, ge=1)
    """How many partitions are archived at once."""
    # No longer than objects without metadata are left alone (`WritingLimits.orphan_age_min_ms`): an
    # upload whose answer was lost may take this, and what it brings must not go meanwhile.
    copy_max_ms: Duration = Field(300_000, ge=1, le=3_600_000)
    """A copy that takes longer is given up and tried again."""
    copy_bytes_per_s_max: Size = Field(0, ge=0)
    """How many bytes a second the archiver takes from the brokers, over all partitions, so that
    consumers keep their share while it catches up (remote.log.manager.copy.max.bytes.per.second).
    0: no limit.
    """
    spool_dir: Path | None = None
    """Folder in which segments are gathered before they are copied. Not set: a temporary folder.
    With `log_dirs`, choose a folder on their file system but outside of them: segments are then
    hard links and take no space.
    """
    spool_bytes_max: Size = Field(8 * GiB, ge=MiB)
    """Size of the spool. Above it, segments are cut before they are full."""
    local_index_dir: Path | None = None
    """Folder in which this process keeps the indexes of the archive. It saves a reader one request
    at its first look into a segment. It takes 0.2% of the archive's size, costs one request for
    each segment, and is rebuilt from the store if it is lost. Use a lasting folder, one for each
    process. Not set: no local indexes.
    """

    # --- leadership ---
    group_id: str | None = None
    """Archivers with the same consumer group share the partitions, and each partition has one
    leader. Not set: this archiver leads all partitions, and a second archiver would copy all of
    them again.
    """
    group_instance_id: str | None = None
    """A group.instance.id for this archiver alone. If it restarts within group_session_timeout_ms,
    it keeps its partitions.
    """
    group_session_timeout_ms: Duration = Field(45_000, ge=100)
    """The other archivers take over from one that has been silent for this long
    (session.timeout.ms).
    """
    # --- retention ---
    remote_log_retention_ms: Duration = Field(-1, ge=-1)
    """The archive deletes segments whose newest record is older than this, oldest first. -1: never.
    The topic's own `retention.ms` has no effect here: it is short where there is an archive.
    """
    remote_log_retention_bytes: Size = Field(-1, ge=-1)
    """The archive deletes what a partition holds beyond this size, oldest first. -1: no limit."""
    local_retention_ms: Duration = Field(-1, ge=-1)
    """The archiver deletes records older than this from the brokers (DeleteRecords) once they are
    archived. Give the topic unlimited retention of its own (retention.ms=-1, retention.bytes=-1),
    since a broker does not wait for the copy. -1: the archiver deletes nothing from the brokers.
    """
    local_retention_bytes: Size = Field(-1, ge=-1)
    """Like `local_retention_ms`, for archived records beyond this size in a partition."""
    retention_overrides: OptionalRetentionOverrides = None
    """The four keys above for some topics: a table from a pattern of whole topic names to keys, as
    in `"orders[.].*" = { remote_log_retention_ms = 86400000 }`. The first pattern that matches
    counts. Outside of a TOML file, write the same as JSON.
    """
    follow_topic_retention: bool = False
    """A topic's own settings then count before `archive.*`, but not before an override. With
    remote.storage.enable=true these are its retention.ms and retention.bytes, for archive and
    brokers together; without it, its local.retention.ms and local.retention.bytes.
    """
    retention_grace_ms: Duration = Field(300_000, ge=0)
    """A segment's objects are deleted this long after the segment was hidden
    (file.delete.delay.ms). Until then, readers in flight and proxies with a view as old as
    metadata.view_age_max_ms still find them.
    """
    retention_step_grace_ms: Duration = Field(86_400_000, ge=0)
    """If retention would hide more than half of a partition at once, the archiver announces it
    (log, metrics, console) and waits this long. A day is enough to notice a mistyped retention or a
    wrong clock. 0: it neither waits nor compares its clock with those of the store and of
    producers.
    """
    topic_deletion: Literal["delete", "keep", "delete-all"] = "delete"
    """What happens to the archive of a topic that the cluster has deleted. `delete`: it is deleted,
    too, unless most topics are gone at once or none is left, since that may be another cluster with
    the same id. `delete-all`: it is deleted in that case as well; set this only while you need it.
    `keep`: topics that are deleted while this is set keep their archive for good.
    """
    topic_deletion_grace_ms: Duration = Field(86_400_000, ge=0)
    """The archive of a topic is deleted after every look at the cluster for this long has found no
    such topic. A day leaves time to notice a mistake, and lets a cluster recover that shows only
    some of its topics.
    """


class ArchiveOnlyConfig(Section):
    """Serving an archive without its cluster (`fetchproxy serve --archive-only`)."""

    enabled: bool = False
    """Answer every client from the archive alone. No broker is asked."""
    open_to_anybody: bool = False
    """Everybody who reaches the listener may read the whole archive. Beyond loopback, archive-only
    mode starts only with this, with `users_file`, or with `gateway.tls_client_auth = required`.
    """
    users_file: Path | None = None
    """Clients log in by SASL (PLAIN, SCRAM) as users of this file. The file says what each user may
    read; `fetchproxy user` makes its lines. Changes take effect within seconds.
    """
    refresh_interval_ms: Duration = Field(5_000, ge=50)
    """Topics and segments that another process archives are seen within this time. Each look lists
    the archive's partitions, and an S3 store charges for listings.
    """
    offsets_file: Path | None = None
    """File for committed offsets. Not set: they are in memory and are lost when the process ends.
    """
    groups_bytes_max: Size = Field(256 * MiB, ge=KiB)
    """Memory for consumer groups: what members have sent and received, names, and committed
    offsets. Above it, new members and commits are refused.
    """


class AttachConfig(Section):
    """Topics of other archives, served read-only under names that you choose."""

    archives: OptionalAttachments = None
    """Items NAME=STORE_URL#TOPIC, separated by spaces. With --archive-only, TOPIC of the archive at
    STORE_URL is served as NAME. Credentials and time-outs are those of `store`.
    """


class MetadataConfig(Section):
    """Metadata of the archive's segments."""

    manager: Literal["store", "topic"] = "store"
    """Where the states of segments are read from: the store itself, or the topic
    `__remote_log_metadata`, which needs no listings and keeps 100 bytes per segment in memory.
    Every process of one archive needs the same value. Archive-only mode always reads the store.
    """
    topic_name: str = "__remote_log_metadata"
    """Name of the metadata topic. Choose another one for a second archive of the same cluster, or
    if the brokers use this topic for tiered storage of their own.
    """
    topic_partitions: int = Field(50, ge=1)
    """Partitions of the metadata topic (remote.log.metadata.topic.num.partitions). Never change it
    afterwards: it decides which partition has the events of a topic.
    """
    topic_replication_factor: int = Field(3, ge=1)
    """Replicas of the metadata topic (remote.log.metadata.topic.replication.factor)."""
    cache_dir: Path | None = None
    """Folder that keeps the events of the metadata topic. A restart then reads only new events. Not
    set: each start reads the whole topic.
    """
    view_age_max_ms: Duration = Field(30_000, ge=1)
    """If the view of a partition is older than this, it is read again in the background. Until
    then, records that another process has deleted may still be served.
    """

    @property
    def ruling(self) -> str:
        """Which metadata manager it is, as the archive states it."""
        return self.manager if self.manager == "store" else f"{self.manager} {self.topic_name}"


class RemoteFetchConfig(Section):
    """Reads from the archive."""

    remote_error_after_ms: Duration = Field(60_000, ge=0)
    """If the store fails for longer than this, clients get KAFKA_STORAGE_ERROR."""
    inflight_bytes_max: Size = Field(256 * MiB, ge=MiB)
    """Bytes that are being read from the store at once. Further reads wait."""
    chunk_cache_bytes_max: Size = Field(256 * MiB, ge=0)
    """Memory of the chunk cache."""
    client_bytes_per_s_max: Size = Field(0, ge=0)
    """Archived bytes a second for one client, over all its connections. Above it, the client is
    throttled as by a broker's quota (consumer_byte_rate). A client is a certificate, or else an
    IPv4 address or an IPv6 /64, whatever client ids it sends. Relayed bytes do not count. 0: no
    limit.
    """
    index_cache_bytes_max: Size = Field(64 * MiB, ge=MiB)
    """Memory of segments' indexes (remote.log.index.file.cache.total.size.bytes)."""
    disk_cache_dir: Path | None = None
    """Folder of a second cache of checked chunks, which survives a restart. Give each process a
    folder of its own. Not set: no disk cache.
    """
    disk_cache_bytes_max: Size = Field(10 * GiB, ge=MiB)
    """Size of the disk cache. Chunks that were unused for longest are removed first."""


class StoreConfig(Section):
    """The object store that holds the archive."""

    url: OptionalUrl = None
    """Where the archive is: file:///path, s3://bucket/prefix?endpoint_url=…, gs://bucket/prefix,
    az://container/prefix or webhdfs://host:port/path.
    """
    hdfs_token_file: Path | None = None
    """File with a delegation token for HDFS. It is read at the first request, and again when HDFS
    refuses the token. Not set: the proxy gets a token by Kerberos if HDFS asks for one; otherwise
    HDFS trusts the user in the URL.
    """
    connections_max: int = Field(32, ge=1)
    """Connections to the store, and range reads in flight (remote.log.reader.threads). On S3, range
    reads and uploads have as many connections again, each.
    """
    timeout_ms: Duration = Field(20_000, ge=100)
    """How long the store may be silent within an answer before the request is tried again. Raise it
    for a slow store or link. A part of 8 MiB may take three times this to send (140 KiB/s by
    default), and connecting takes at most 3 s of it. Listings and reads of metadata are given up
    after half of it.
    """

    compression: Literal["none", "zstd"] = "none"
    """How new segments are compressed, if their batches are not compressed already. zstd leaves a
    third to a half of the size and costs some CPU. Archived segments of either kind can be read
    with either value.
    """

    encryption_keys: OptionalKeyRing = None
    """Key ring that encrypts new segments and opens encrypted ones: the path of a file made by
    `fetchproxy keys`, or aws-kms://REGION/KEY. If there are several, the first one encrypts and all
    of them open. With ?required=true, segments that are not encrypted are refused.
    """

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


class TlsConfig(Section):
    """TLS, towards clients and towards brokers."""

    protocol_min: Literal["TLSv1.2", "TLSv1.3"] = "TLSv1.2"
    """Oldest version of TLS. Versions before these are broken (RFC 8996)."""


class GatewayConfig(Section):
    """The listeners and the relay."""

    listen: HostPortText = "127.0.0.1:9192"
    """host:port of the bootstrap listener. The default is reachable from this host alone."""
    advertise_host: OptionalAdvertisedHost = None
    """Host that clients are told to connect to. Not set: the listener's host; if that means all
    addresses (0.0.0.0, ::), the address at which the client has reached the proxy.
    """
    node_port_base: int = Field(0, ge=0, le=65000)
    """The broker with node id N gets the port of this number + N. 0: it gets the bootstrap
    listener's port + 1 + N, so that clients find it after a restart, or a free port if that one is
    taken.
    """
    node_map: OptionalNodeMap = None
    """Fixed addresses of brokers, for firewalls and load balancers, such as
    `1=9301,2=kafka.example:9302,3=9303/kafka.example:443`. The port alone, or before `/`, is the
    one that the proxy listens on, from the start. A host, or what follows `/`, is what clients are
    told in place of `gateway.advertise_host` and that port. Other brokers get ports as without a
    map.
    """
    frame_bytes_max: Size = Field(100 * MiB, ge=KiB)
    """Largest request of a client, and largest relayed answer of a broker
    (socket.request.max.bytes).
    """
    connections_max: int = Field(20_000, ge=1)
    """Connections of clients at once. One more is closed."""
    connections_per_ip_max: int = Field(20_000, ge=1)
    """Connections from one address at once (max.connections.per.ip). The default is as many as from
    all addresses, since many clients may share one NAT.
    """
    idle_max_ms: Duration = Field(600_000, ge=100)
    """A connection that is silent for this long is closed (connections.max.idle.ms)."""
    connection_buffers_bytes_max: Size = Field(256 * MiB, ge=MiB)
    """Memory of all connections together: bytes that wait for slow clients and brokers, incomplete
    requests and answers, and fetch sessions (300 bytes a partition). Above it, the connections that
    hold most are closed.
    """
    remote_answers_bytes_max: Size = Field(256 * MiB, ge=KiB)
    """Memory of archived records on their way to clients, besides the chunk cache. Above it,
    answers are cut, down to one batch each.
    """
    pace_by_appetite: bool = True
    """A librdkafka client stops for a second each time 100,000 records wait for its application. If
    this is true, a client that catches up and was seen to stop gets its answers no faster than its
    application takes records.
    """
    gap_policy: Literal["skip", "error"] = "skip"
    """What a reader gets at offsets that were lost before they could be archived. `skip`: the next
    records, as after compaction. `error`: INVALID_RECORD, which stops consumers (aiokafka waits).
    """
    permit_ttl_ms: Duration = Field(60_000, ge=1)
    """After a broker has answered OffsetOutOfRange, its connection may read the topic's archive for
    this long. Then the broker is asked again, so a revoked ACL takes effect within this time.
    """
    tls_certificate_file: Path | None = None
    """PEM file with the certificate first, then its chain (ssl.keystore.certificate.chain). If it
    is set, clients can connect by TLS only.
    """
    tls_key_file: Path | None = None
    """PEM file with the private key. Not set: the key is in the certificate's file."""
    tls_key_password: OptionalSecret = None
    """Password of the private key (ssl.key.password)."""
    tls_client_auth: Literal["none", "requested", "required"] = "none"
    """Whether clients have to show a certificate (ssl.client.auth). It admits them to this
    listener; the broker does not see it.
    """
    tls_client_ca_file: Path | None = None
    """PEM file with the authorities that sign clients' certificates (ssl.truststore.certificates).
    """
    sni_bootstrap_host: OptionalHostName = None
    """Gives all brokers one port, told apart by the host name in TLS (SNI). This is the name that
    clients use as bootstrap server. It needs TLS.
    """
    sni_node_pattern: OptionalNodeNames = None
    """Host name of each broker for `sni_bootstrap_host`, such as
    broker-{node_id}.kafka.example.com. Add :PORT if clients connect to another port than the
    listener's, such as that of a load balancer.
    """


class ConsoleConfig(Section):
    """The web console: page, metrics and health."""

    listen: OptionalHostPortText = None
    """host:port of the web console. Not set: no console."""
    allowed_hosts: str = ""
    """Further host names, separated by commas, under which browsers may call the console. The
    listener's own name and loopback are always allowed; others are refused, because of DNS
    rebinding.
    """


class ProcessConfig(Section):
    """The whole process."""

    memory_bytes_max: Size = Field(0, ge=0)
    """Ceiling for all memory that has a limit: everything but the metadata of segments, 80 bytes
    each. Limits that you have not set shrink until they fit; if they cannot, the process does not
    start. 0: each limit counts by itself.
    """


class LogConfig(Section):
    """The log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged. Requests are logged at debug only."""
    format: Literal["auto", "console", "json"] = "auto"
    """`auto`: for people on a terminal, JSON lines otherwise."""


class ClusterConfig(Section):
    """The proxy's own connections to the brokers."""

    bootstrap: BootstrapText = "127.0.0.1:9092"
    """host:port[,host:port…] of the brokers."""
    request_max_ms: Duration = Field(10_000, ge=1)
    """How long a broker may take to answer. Connecting to a broker may take three tenths of it,
    also on behalf of clients.
    """
    frame_bytes_max: Size = Field(128 * MiB, ge=KiB)
    """Largest answer of a broker to the proxy's own requests. It must exceed 8 MiB plus one batch
    (max.message.bytes), since a Fetch answer has its first batch whole.
    """
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """What the brokers' listener speaks (security.protocol)."""
    tls_ca_file: Path | None = None
    """PEM file with the authorities that sign the brokers' certificates
    (ssl.truststore.certificates). Not set: those of the system.
    """
    tls_certificate_file: Path | None = None
    """PEM file with the certificate, and its chain, that the proxy shows to brokers that ask for
    one (mTLS).
    """
    tls_key_file: Path | None = None
    """PEM file with the private key. Not set: the key is in the certificate's file."""
    tls_key_password: OptionalSecret = None
    """Password of the private key (ssl.key.password)."""
    tls_verify_hostname: bool = True
    """A broker's certificate must be for the host name that was dialed
    (ssl.endpoint.identification.algorithm). Without this, every certificate of the authorities may
    pose as every broker.
    """
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """How the proxy's own requests authenticate. SASL of clients is relayed and needs no key here.
    """
    sasl_username: str | None = None
    """User of PLAIN and SCRAM."""
    sasl_password: OptionalSecret = None
    """Password of PLAIN and SCRAM. Give it in the environment or in a file: other users of the
    machine can read the command line. A file is read at each authentication.
    """
    sasl_oauthbearer_token_file: Path | None = None
    """File with a token (JWT) that another program renews. It is read at each authentication."""
    sasl_oauthbearer_token_endpoint_url: OptionalHttpUrl = None
    """Where the proxy fetches tokens by client credentials (RFC 6749, 4.4)."""
    sasl_oauthbearer_client_id: str | None = None
    """Client id for the token endpoint."""
    sasl_oauthbearer_client_secret: OptionalSecret = None
    """Client secret for the token endpoint. A file is read for each token."""
    sasl_oauthbearer_scope: str | None = None
    """Scope that is asked of the token endpoint."""

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
