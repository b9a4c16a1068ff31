"""Every configuration key, declared once. Its name ends in its unit; the string below describes it.

`fetchproxy.config.load` fills the keys from TOML, environment and command line, and refuses unknown
keys. `fetchproxy.config.document` reads the descriptions.
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
    OptionalNetworks,
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
# The topic of Kafka's own tiered storage, too.
METADATA_TOPIC = "__remote_log_metadata"


class Section(BaseModel):
    # An error that quotes its input could show a secret.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ArchiveConfig(Section):
    """The archiver (RemoteLogManager)."""

    topics: OptionalPattern = None
    """Topics to archive: a regular expression that matches the whole name. Kafka's internal topics
    are never archived."""
    log_dirs: OptionalPaths = None
    """All log.dirs of a broker on this host. The archiver then copies rolled segment files of the
    partitions that this broker leads. Not set: it fetches segments from the brokers over the
    network.
    """
    # A segment may exceed this by one batch, and has to stay below the largest size that readers
    # accept (`SEGMENT_BYTES_MAX`).
    segment_bytes_max: Size = Field(64 * MiB, ge=KiB, le=8 * GiB)
    """The archiver closes a segment at this size."""
    segment_age_max_ms: Duration = Field(600_000, ge=1)
    """The archiver also closes a segment this long after it read the first batch. If you set more
    than 10 minutes, set it for the serving proxies too: their readers wait three times this long
    for an offset that an archiver has read and not copied yet, and then skip it.
    """
    workers_max: int = Field(4, ge=1)
    """How many partitions are archived at once."""
    # At most the age at which objects without metadata are deleted
    # (`WritingLimits.orphan_age_min_ms`): an upload whose response was lost may go on for this
    # long, and its object must not be deleted meanwhile.
    copy_max_ms: Duration = Field(300_000, ge=1, le=3_600_000)
    """The archiver gives up a copy that takes longer, and tries again."""
    copy_bytes_per_s_max: Size = Field(0, ge=0)
    """Most bytes per second that the archiver reads from the brokers, over all partitions. This
    leaves bandwidth to consumers while the archiver catches up
    (remote.log.manager.copy.max.bytes.per.second). 0: no limit.
    """
    spool_dir: Path | None = None
    """Folder in which the archiver builds segments before it copies them. Not set: a temporary
    folder. With `log_dirs`, choose a folder on their file system but outside of them: segments are
    then hard links and take no space.
    """
    spool_bytes_max: Size = Field(8 * GiB, ge=MiB)
    """Size of the spool. Above it, the archiver closes segments before they are full."""
    local_index_dir: Path | None = None
    """Folder in which this process keeps the indexes of the archive. They save one request to the
    store when a reader first reads a segment. They take 0.2% of the archive's size, cost one
    request for each segment, and are rebuilt from the store if they are lost. Use a persistent
    folder, and a different one for each process. Not set: no local indexes.
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
    """If an archiver is silent for this long, the others take over its partitions
    (session.timeout.ms).
    """
    # --- retention ---
    remote_log_retention_ms: Duration = Field(-1, ge=-1)
    """The archiver deletes archived segments whose newest record is older than this, oldest first.
    -1: never. The topic's own `retention.ms` is ignored, because archived topics usually have a
    short one.
    """
    remote_log_retention_bytes: Size = Field(-1, ge=-1)
    """If the archive of a partition exceeds this size, the archiver deletes its oldest segments.
    -1: no limit.
    """
    local_retention_ms: Duration = Field(-1, ge=-1)
    """The archiver deletes records older than this from the brokers (DeleteRecords) once they are
    archived. Give the topic unlimited retention of its own (retention.ms=-1, retention.bytes=-1),
    since a broker does not wait for the copy. -1: the archiver deletes nothing from the brokers.
    """
    local_retention_bytes: Size = Field(-1, ge=-1)
    """Like `local_retention_ms`, for archived records beyond this size in a partition."""
    retention_overrides: OptionalRetentionOverrides = None
    """The four keys above for some topics: a table with a pattern for whole topic names and its
    keys, as in `"orders[.].*" = { remote_log_retention_ms = 86400000 }`. The first pattern that
    matches applies. Outside of a TOML file, write the table as JSON.
    """
    follow_topic_retention: bool = False
    """If true, a topic's own settings take precedence over `archive.*`, but not over an override.
    A topic with remote.storage.enable=true: its retention.ms and retention.bytes apply to archive
    and brokers together. Any other topic: its local.retention.ms and local.retention.bytes apply
    to the brokers.
    """
    retention_grace_ms: Duration = Field(300_000, ge=0)
    """The archiver deletes a segment's objects this long after it hid the segment
    (file.delete.delay.ms). Until then, readers in flight and proxies with a view as old as
    metadata.view_age_max_ms still find them.
    """
    retention_step_grace_ms: Duration = Field(86_400_000, ge=0)
    """If retention would hide more than half of a partition at once, the archiver announces it
    (log, metrics, console) and waits this long. A day is enough to notice a mistyped retention or a
    wrong clock. 0: the archiver does not wait, and does not compare its clock with the clocks of
    the store and of producers.
    """
    topic_deletion: Literal["delete", "keep", "delete-all"] = "delete"
    """Whether the archiver deletes the archive of a topic that the cluster has deleted. `delete`:
    yes, unless most topics are gone at once or none is left, since that may be another cluster with
    the same id. `delete-all`: yes, in that case too; set this only while you need it. `keep`: no;
    topics that are deleted while this is set keep their archive permanently.
    """
    topic_deletion_grace_ms: Duration = Field(86_400_000, ge=0)
    """The archiver deletes a topic's archive if each look at the cluster for this long has not
    found the topic. A day leaves time to notice a mistake, and to repair a cluster that shows only
    some of its topics.
    """


class ArchiveOnlyConfig(Section):
    """Serving an archive without its cluster (`fetchproxy serve --archive-only`)."""

    enabled: bool = False
    """The proxy answers every client from the archive alone, and asks no broker."""
    open_to_anybody: bool = False
    """Any client that can connect may read the whole archive. If the listener is not on loopback,
    archive-only mode needs this, `users_file`, or `gateway.tls_client_auth = required` to start.
    """
    users_file: Path | None = None
    """Clients log in by SASL (PLAIN, SCRAM) as users of this file. The file says what each user may
    read; `fetchproxy user` makes its lines. Changes take effect within seconds.
    """
    refresh_interval_ms: Duration = Field(5_000, ge=50)
    """Time between two looks for topics and segments that another process has archived. Each look
    lists the archive's partitions, and an S3 store charges for listings.
    """
    offsets_file: Path | None = None
    """File for committed offsets. Not set: they are in memory and lost when the process ends."""
    groups_bytes_max: Size = Field(256 * MiB, ge=KiB)
    """Memory for consumer groups: the data that members send and receive, names, and committed
    offsets. Above it, the proxy refuses new members and commits.
    """


class AttachConfig(Section):
    """Topics of other archives, served read-only under names that you choose."""

    archives: OptionalAttachments = None
    """Items NAME=STORE_URL#TOPIC, separated by spaces. With --archive-only, the proxy serves TOPIC
    of the archive at STORE_URL as NAME. Credentials and time-outs are those of `store`.
    """


class MetadataConfig(Section):
    """Metadata of the archive's segments."""

    manager: Literal["store", "topic"] = "store"
    """Source of the segments' states: the store itself, or the topic `__remote_log_metadata`, which
    needs no listings and keeps 100 bytes per segment in memory. Every process of one archive needs
    the same value. Archive-only mode always reads the store.
    """
    topic_name: str = METADATA_TOPIC
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
    """If the view of a partition's archive is older than this, the proxy reads it again in the
    background. Until then, it may still serve records that another process has deleted.
    """

    @property
    def recorded_name(self) -> str:
        """The metadata manager, as recorded in the archive."""
        return self.manager if self.manager == "store" else f"{self.manager} {self.topic_name}"


class RemoteFetchConfig(Section):
    """Reads from the archive."""

    remote_error_after_ms: Duration = Field(60_000, ge=0)
    """If the store fails for longer than this, clients get KAFKA_STORAGE_ERROR."""
    inflight_bytes_max: Size = Field(256 * MiB, ge=MiB)
    """Most bytes that are read from the store at once. Further reads wait."""
    chunk_cache_bytes_max: Size = Field(256 * MiB, ge=0)
    """Memory of the chunk cache."""
    client_bytes_per_s_max: Size = Field(0, ge=0)
    """Archived bytes per second for one client, over all its connections. Above it, the proxy
    throttles the client like a broker's quota (consumer_byte_rate). A client is identified by its
    certificate, or without one by its IPv4 address or IPv6 /64; client ids do not matter. Relayed
    bytes do not count. 0: no limit.
    """
    index_cache_bytes_max: Size = Field(64 * MiB, ge=MiB)
    """Memory of segments' indexes (remote.log.index.file.cache.total.size.bytes)."""
    disk_cache_dir: Path | None = None
    """Folder of a second cache of checked chunks, on disk, which survives a restart. Give each
    process a folder of its own. Not set: no disk cache.
    """
    disk_cache_bytes_max: Size = Field(10 * GiB, ge=MiB)
    """Size of the disk cache. The least recently used chunks are removed first."""


class StoreConfig(Section):
    """The object store that holds the archive."""

    url: OptionalUrl = None
    """Location of the archive: file:///path, s3://bucket/prefix?endpoint_url=…, gs://bucket/prefix,
    az://container/prefix, hdfs://nameservice/path or webhdfs://host:port/path.
    """
    hdfs_token_file: Path | None = None
    """File with a delegation token for HDFS. It is read at the first request, and again when HDFS
    refuses the token. Not set: the proxy gets a token by Kerberos if HDFS asks for one; otherwise
    HDFS trusts the user in the URL.
    """
    connections_max: int = Field(32, ge=1)
    """Connections to the store, and range reads in flight (remote.log.reader.threads). On S3, range
    reads and uploads each have this many connections of their own in addition.
    """
    timeout_ms: Duration = Field(20_000, ge=100)
    """How long a response of the store may be silent; then the proxy sends the request again. Raise
    it for a slow store or link. Other limits follow from it. An upload of a part of 8 MiB may take
    three times as long (140 KiB/s by default), a listing or a read of metadata half as long, and
    connecting as long, but 3 s at most.
    """

    compression: Literal["none", "zstd"] = "none"
    """How the archiver compresses new segments whose batches are not compressed already. zstd
    reduces them to between a third and a half of their size and costs some CPU. Segments of both
    kinds can be read with either value.
    """

    encryption_keys: OptionalKeyRing = None
    """Key ring that encrypts new segments and decrypts archived ones: the path of a file made by
    `fetchproxy keys`, or aws-kms://REGION/KEY. If there are several, the first one encrypts and all
    of them decrypt. With ?required=true, the proxy refuses segments that are not encrypted.
    """

    # A store that is up accepts a connection within a round trip or two.
    @property
    def connect_max_ms(self) -> int:
        return min(3_000, self.timeout_ms)

    @property
    def read_max_ms(self) -> int:
        return self.timeout_ms

    # An upload also needs the link's bandwidth, and the store answers after its last byte.
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
    """Oldest version of TLS. Versions before 1.2 are insecure (RFC 8996)."""


class GatewayConfig(Section):
    """The listeners and the relay."""

    listen: HostPortText = "127.0.0.1:9192"
    """host:port of the bootstrap listener. The default is reachable from this host alone."""
    advertise_host: OptionalAdvertisedHost = None
    """Host that the proxy tells clients to connect to. Not set: the listener's host or, if that
    means all addresses (0.0.0.0, ::), the address to which the client has connected.
    """
    node_port_base: int = Field(0, ge=0, le=65000)
    """The port for the broker with node id N is this number + N. 0: it is the bootstrap listener's
    port + 1 + N, so that clients find it after a restart, or any free port if that one is taken.
    """
    node_map: OptionalNodeMap = None
    """Fixed addresses of brokers, for firewalls and load balancers, such as
    `1=9301,2=kafka.example:9302,3=9303/kafka.example:443`. The proxy listens on the port, or on the
    port before `/`, from the start. It tells clients the host, or the address after `/`, in place
    of `gateway.advertise_host` and that port. Brokers that are not in the map get ports as without
    a map. In archive-only mode the node listens on these ports, too, for clients that come from a
    proxy and know its nodes alone.
    """
    proxy_protocol_from: OptionalNetworks = None
    """Addresses or networks of load balancers that send the PROXY protocol (version 1 or 2), such
    as `10.0.0.0/24,10.0.1.7`. Each connection from there has to begin with its header, and the
    address in it counts as the client's. Name balancers only: whoever connects from there can claim
    any address. Connections from elsewhere must not send a header.
    """
    frame_bytes_max: Size = Field(100 * MiB, ge=KiB)
    """Largest request of a client (socket.request.max.bytes). Responses of brokers that the proxy
    has to read whole (Metadata and others) have this limit too, and 16 MiB at most. Fetch responses
    may have any size.
    """
    connections_max: int = Field(20_000, ge=1)
    """Most client connections at once. The proxy closes further ones."""
    connections_per_ip_max: int = Field(20_000, ge=1)
    """Most connections from one address at once (max.connections.per.ip). The default is that
    of connections_max: no limit for one address, since many clients may share one NAT.
    """
    idle_max_ms: Duration = Field(600_000, ge=100)
    """The proxy closes a connection that is silent for this long (connections.max.idle.ms)."""
    # Docker kills a process 10 s after SIGTERM, Kubernetes after 30 s.
    drain_max_ms: Duration = Field(8_000, ge=0)
    """When the process ends, its clients have this long to go: each goes when it waits for no
    response. Above it, connections are cut. Raise it together with the time after which your
    supervisor kills a process. 0: they are cut at once.
    """
    share_ports: bool = False
    """Whether other processes of the same user may listen on the same ports (SO_REUSEPORT), so that
    the next version can start before this one ends. If false, a port that is taken is an error:
    two proxies of different clusters would otherwise share their clients by chance.
    """
    connection_buffers_bytes_max: Size = Field(256 * MiB, ge=MiB)
    """Memory of all connections together: bytes that wait for slow clients and brokers, incomplete
    requests and responses (three times their size, as they are copied), and fetch sessions (300
    bytes a partition). Above it, the proxy closes the connections that hold the most.
    """
    remote_answers_bytes_max: Size = Field(256 * MiB, ge=KiB)
    """Memory of archived records that are being sent to clients, besides the chunk cache. Above it,
    the proxy shortens responses, down to one batch each.
    """
    pace_by_appetite: bool = True
    """A librdkafka client stops fetching for a second each time 100,000 records wait for its
    application. If this is true and a client stops like this while it catches up, the proxy sends
    it records no faster than its application takes them.
    """
    gap_policy: Literal["skip", "error"] = "skip"
    """The response to a reader at offsets that were lost before they could be archived. `skip`: the
    next records, as after compaction. `error`: INVALID_RECORD, which stops consumers (aiokafka
    waits).
    """
    permit_ttl_ms: Duration = Field(60_000, ge=1)
    """After a broker has answered OffsetOutOfRange to a client, that connection may read the
    topic's archive for this long. Then the proxy asks the broker again, so a revoked ACL takes
    effect within this time.
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
    """Whether clients have to show a certificate (ssl.client.auth). The certificate admits them to
    this listener; the broker does not see it.
    """
    tls_client_ca_file: Path | None = None
    """PEM file with the authorities that sign clients' certificates (ssl.truststore.certificates).
    """
    sni_bootstrap_host: OptionalHostName = None
    """Host name that clients use as bootstrap server. If it is set, all brokers have one port, and
    the host name in TLS (SNI) tells them apart. It needs TLS.
    """
    sni_node_pattern: OptionalNodeNames = None
    """Host name of each broker for `sni_bootstrap_host`, such as
    broker-{node_id}.kafka.example.com. Add :PORT if clients connect to another port than the
    listener's, such as a load balancer's.
    """


class ConsoleConfig(Section):
    """The web console: page, metrics and health."""

    listen: OptionalHostPortText = None
    """host:port of the web console. Not set: no console."""
    allowed_hosts: str = ""
    """Further host names, separated by commas, under which browsers may call the console. The
    listener's own name and loopback are always allowed. The console refuses other names, because of
    DNS rebinding.
    """
    show_records: bool = False
    """Whether the console shows archived records to everybody who reaches it. The brokers' ACLs do
    not apply to them.
    """
    masked_fields: str = ""
    """Names of JSON fields and of headers, separated by commas, whose content the console does not
    show, at any depth. If it is set, keys and values that are not JSON are not shown at all.
    """
    metrics_by_partition: bool = False
    """If true, `/metrics` has up to 13 series for each partition of an archived topic: 10 MB for
    10,000 partitions. If false, it has them for each topic, with the sum or the worst.
    """
    token_file: Path | None = None
    """File with a token. If it is set, only /healthz and /readyz answer without the token: programs
    send it as `Authorization: Bearer TOKEN`, browsers as the password of any user. It is read at
    the start.
    """


class PricesConfig(Section):
    """What the store costs. With prices, `fetchproxy top` and the API show money,
    and `fetchproxy sizing` estimates with them."""

    get_usd_per_1000: float = Field(0.0, ge=0, allow_inf_nan=False)
    """US dollars for 1,000 reads of the store (GET)."""
    put_usd_per_1000: float = Field(0.0, ge=0, allow_inf_nan=False)
    """US dollars for 1,000 writes and listings of the store (PUT, LIST)."""
    egress_usd_per_gb: float = Field(0.0, ge=0, allow_inf_nan=False)
    """US dollars for a GB (10⁹ bytes) that the store sends."""
    storage_usd_per_gb_month: float = Field(0.0, ge=0, allow_inf_nan=False)
    """US dollars for a GB (10⁹ bytes) in the store for a month."""

    @property
    def given(self) -> bool:
        """Whether requests or bytes have a price."""
        return any((self.get_usd_per_1000, self.put_usd_per_1000, self.egress_usd_per_gb))


class ProcessConfig(Section):
    """The whole process."""

    memory_bytes_max: Size = Field(0, ge=0)
    """Ceiling for the memory of the process, without the metadata of segments (about 1 KB each, or
    some 90 bytes with metadata.manager=topic). Limits that you have not set shrink until all limits
    together fit; if they cannot, the process does not start. 0: no ceiling, each limit applies by
    itself.
    """
    workers: int = Field(1, ge=1, le=64)
    """Processes of `fetchproxy serve`, one for each core that it shall use. They share the ports,
    and each has its share of the memory. The first one archives. Archive-only mode has one, which
    keeps the consumer groups.
    """


class DrillsConfig(Section):
    """Faults on request (`fetchproxy drill`)."""

    enabled: bool = False
    """If true, `fetchproxy drill` may make this process's store or brokers fail for a time. It is
    asked over the console, from this machine only.
    """


class TracingConfig(Section):
    """OpenTelemetry traces."""

    enabled: bool = False
    """If true, archived fetches and copies of segments send traces by OTLP over HTTP. The address
    and the sampling come from OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT
    and OTEL_TRACES_SAMPLER. It needs the extra `tracing`.
    """


class LogConfig(Section):
    """The log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged. Requests are logged at debug only."""
    format: Literal["auto", "console", "json"] = "auto"
    """`console`: lines for people. `json`: one JSON object a line. `auto`: `console` on a terminal,
    otherwise `json`.
    """


class ClusterConfig(Section):
    """The proxy's own connections to the brokers."""

    bootstrap: BootstrapText = "127.0.0.1:9092"
    """host:port[,host:port…] of the brokers."""
    request_max_ms: Duration = Field(10_000, ge=1)
    """How long a broker may take to respond. Connecting to a broker, for a client too, may take
    three tenths of it.
    """
    frame_bytes_max: Size = Field(128 * MiB, ge=KiB)
    """Largest response of a broker to the proxy's own requests. It must exceed 8 MiB plus one batch
    (max.message.bytes), because a Fetch response contains its first batch whole.
    """
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Protocol of the brokers' listener (security.protocol)."""
    tls_ca_file: Path | None = None
    """PEM file with the authorities that sign the brokers' certificates
    (ssl.truststore.certificates). Not set: the system's authorities.
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
    """A broker's certificate must be for the host name to which the proxy connects
    (ssl.endpoint.identification.algorithm). If false, the owner of any certificate from these
    authorities can pose as any broker.
    """
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """How the proxy authenticates its own requests. The proxy relays clients' SASL, which needs no
    key here.
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
    """URL from which the proxy gets tokens by client credentials (RFC 6749, 4.4)."""
    sasl_oauthbearer_client_id: str | None = None
    """Client id for the token endpoint."""
    sasl_oauthbearer_client_secret: OptionalSecret = None
    """Client secret for the token endpoint. A file is read for each token."""
    sasl_oauthbearer_scope: str | None = None
    """Scope that the proxy requests from the token endpoint."""

    # Far below the time for a response, so that a dead broker does not use up all of it.
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
    prices: PricesConfig = PricesConfig()
    process: ProcessConfig = ProcessConfig()
    drills: DrillsConfig = DrillsConfig()
    tracing: TracingConfig = TracingConfig()
    log: LogConfig = LogConfig()
