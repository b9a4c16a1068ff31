"""Every configuration key, declared once. Its name ends in its unit; the string below describes it.

`fetchproxy.config.load` fills the keys from TOML, environment and command line, and refuses unknown
keys. `fetchproxy.config.document` reads the descriptions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fetchproxy.config.values import (
    BootstrapText,
    Duration,
    HostPortText,
    Live,
    LiveOnceSet,
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

    topics: LiveOnceSet[OptionalPattern] = None
    """Topics to archive: a regular expression that matches the whole name. Kafka's internal topics
    are never archived."""
    compacted_topics: OptionalPattern = None
    """Compacted topics (cleanup.policy contains `compact`) to archive as well: a regular expression
    that matches the whole name, such as `_schemas|connect-.*`. The archiver keeps a copy of each
    log, with the holes that compaction has left. It copies the log again when the copy has doubled,
    and at least once a week. `cluster restore` and archive-only mode use these copies; the proxy
    reads the topics only from the brokers. Kafka's internal topics are never archived. Needs
    `topics`; cannot be combined with `log_dirs`."""
    log_dirs: OptionalPaths = None
    """All log.dirs of a broker on this host. The archiver then copies the closed segment files of
    the partitions that this broker leads. Not set: it fetches records from the brokers over the
    network.
    """
    # A segment may exceed this by one batch, and has to stay below the largest size that readers
    # accept (`SEGMENT_BYTES_MAX`).
    segment_bytes_max: Size = Field(64 * MiB, ge=KiB, le=8 * GiB)
    """The archiver closes a segment at this size."""
    segment_age_max_ms: Duration = Field(600_000, ge=1)
    """The archiver also closes a segment this long after it read the first batch. If you set more
    than 10 minutes, set the same value in the proxies: their readers wait three times this long for
    an offset that an archiver has read but not copied yet, and then skip it.
    """
    workers_max: int = Field(4, ge=1)
    """How many partitions are archived at once. With `--once`, four times as many partitions that
    have at most 1,000 records to copy.
    """
    # At most the age at which objects without metadata are deleted
    # (`WritingLimits.orphan_age_min_ms`): an upload whose response was lost may go on for this
    # long, and its object must not be deleted meanwhile.
    copy_max_ms: Duration = Field(300_000, ge=1, le=3_600_000)
    """If a copy takes longer than this, the archiver gives it up and tries again."""
    copy_bytes_per_s_max: Live[Size] = Field(0, ge=0)
    """Limits how many bytes per second the archiver reads from the brokers, over all partitions.
    This leaves bandwidth for consumers while the archiver catches up
    (remote.log.manager.copy.max.bytes.per.second). 0: no limit.
    """
    recovery_point_ms: Duration = Field(0, ge=0)
    """How often the archiver writes the records that are in no finished segment yet into a journal
    in the store. If the cluster is lost, only records that came after the last write are lost. A
    good value is 2s: it costs at most two requests a second for all partitions together, and each
    record is stored twice until its segment is finished. 0: off. Cannot be combined with
    `log_dirs`.
    """
    spool_dir: Path | None = None
    """Folder in which the archiver builds segments before it copies them. Not set: a temporary
    folder. With `log_dirs`, choose a folder on the same file system but outside of them: segments
    are then hard links and take no space.
    """
    spool_bytes_max: Size = Field(8 * GiB, ge=MiB)
    """Size of the spool. Above it, the archiver closes segments before they are full."""
    local_index_dir: Path | None = None
    """Folder in which this process keeps the indexes of the archive. When a reader first reads a
    segment, they save one request to the store. They take 0.2% of the archive's size and cost one
    request for each segment. If they are lost, they are rebuilt from the store. Use a persistent
    folder, and a different one for each process. Not set: no local indexes.
    """

    # --- leadership ---
    group_id: str | None = None
    """Archivers with the same consumer group share the partitions, and each partition has one
    leader. Not set: this archiver leads all partitions, and a second archiver would copy all of
    them again.
    """
    group_instance_id: str | None = None
    """A group.instance.id that only this archiver uses. If it restarts within
    group_session_timeout_ms, it keeps its partitions.
    """
    group_session_timeout_ms: Duration = Field(45_000, ge=100)
    """If an archiver is silent for this long, the others take over its partitions
    (session.timeout.ms).
    """
    # --- retention ---
    remote_log_retention_ms: Live[Duration] = Field(-1, ge=-1)
    """The archiver deletes archived segments whose newest record is older than this, oldest first.
    -1: never. The topic's own `retention.ms` is ignored, because archived topics usually have a
    short one.
    """
    remote_log_retention_bytes: Live[Size] = Field(-1, ge=-1)
    """If the archive of a partition exceeds this size, the archiver deletes its oldest segments.
    -1: no limit.
    """
    local_retention_ms: Live[Duration] = Field(-1, ge=-1)
    """The archiver deletes records older than this from the brokers (DeleteRecords) once they are
    archived. Set retention.ms=-1 and retention.bytes=-1 on the topic, because a broker does not
    wait for the copy. -1: the archiver does not delete from the brokers.
    """
    local_retention_bytes: Live[Size] = Field(-1, ge=-1)
    """Like `local_retention_ms`, for archived records beyond this size in a partition."""
    retention_overrides: Live[OptionalRetentionOverrides] = None
    """Other values of the four keys above for some topics: a table of patterns for whole topic
    names, as in `"orders[.].*" = { remote_log_retention_ms = 86400000 }`. The first pattern that
    matches applies. In the environment and on the command line, write the table as JSON.
    """
    follow_topic_retention: Live[bool] = False
    """If true, a topic's own settings take precedence over `archive.*`, but not over an override.
    A topic with remote.storage.enable=true: its retention.ms and retention.bytes apply to archive
    and brokers together. Any other topic: its local.retention.ms and local.retention.bytes apply
    to the brokers.
    """
    retention_grace_ms: Live[Duration] = Field(300_000, ge=0)
    """The archiver deletes a segment's objects this long after it hid the segment
    (file.delete.delay.ms). Until then, reads in flight still find them, and so do proxies whose
    view is up to metadata.view_age_max_ms old.
    """
    retention_step_grace_ms: Live[Duration] = Field(86_400_000, ge=0)
    """If retention would hide more than half of a partition at once, the archiver announces it
    (log, metrics, console) and waits this long, so that you can notice a mistyped retention or a
    wrong clock. 0: the archiver does not wait, and does not compare its clock with those of the
    store and of producers.
    """
    topic_deletion: Live[Literal["delete", "keep", "delete-all"]] = "delete"
    """Whether the archiver deletes the archive of a topic that the cluster has deleted. `delete`:
    yes, unless most topics are gone at once or none is left, because that may be another cluster
    with the same id. `delete-all`: yes, even then; set this only while you need it. `keep`: no;
    topics that are deleted while this is set keep their archive permanently.
    """
    topic_deletion_grace_ms: Live[Duration] = Field(86_400_000, ge=0)
    """The archiver deletes a topic's archive when the topic has been missing from the cluster for
    this long. This leaves time to notice a mistake, or to repair a cluster that shows only some of
    its topics.
    """
    # --- the state of the cluster ---
    # A minute: groups read on at most that far from where they were, a state of 10,000 partitions
    # and 5,000 groups is read in some seconds, and two requests a minute to the store cost 43 cents
    # a month.
    cluster_state_interval_ms: Duration = Field(60_000, ge=0)
    """How often one archiver reads what a new cluster would need besides records: topics and their
    ends, groups' offsets, ACLs, quotas. It writes them to the archive if they have changed. 0:
    never. With `log_dirs`, no archiver does it.
    """
    # A week: a mistake of a weekend, such as a deleted group, is noticed by then.
    cluster_state_retention_ms: Duration = Field(604_800_000, ge=0)
    """How long the archive keeps older states of the cluster: every state of the last hour, and one
    for each hour before. The newest state is always kept.
    """

    def names(self, topic: str) -> bool:
        """Whether one of the two patterns of topics matches this whole name."""
        patterns = (self.topics, self.compacted_topics)
        return any(re.fullmatch(pattern, topic) for pattern in patterns if pattern is not None)


class ArchiveOnlyConfig(Section):
    """Serving an archive without its cluster (`fetchproxy serve --archive-only`)."""

    enabled: bool = False
    """The process serves clients only from the archive and connects to no broker."""
    open_to_anybody: bool = False
    """If true, any client that can connect may read the whole archive. If the listener is not on
    loopback, archive-only mode starts only with this, with `users_file`, or with
    `gateway.tls_client_auth = required`.
    """
    users_file: Path | None = None
    """Clients log in by SASL (PLAIN, SCRAM) as users of this file. The file says what each user may
    read; `fetchproxy user` creates its lines. Changes take effect within two seconds.
    """
    refresh_interval_ms: Duration = Field(5_000, ge=50)
    """How often the process checks for topics and segments that other processes have archived. Each
    check lists the archive's partitions, and S3 charges for listings.
    """
    offsets_file: Path | None = None
    """File for committed offsets. Not set: they are only in memory and are lost when the process
    exits.
    """
    groups_bytes_max: Size = Field(256 * MiB, ge=KiB)
    """Memory for consumer groups: their members' data, names, and committed offsets. Above it, the
    process refuses new members and commits.
    """


class AttachConfig(Section):
    """Topics of other archives, served read-only under names that you choose."""

    archives: OptionalAttachments = None
    """Items NAME=STORE_URL#TOPIC, separated by spaces. With --archive-only, the proxy serves TOPIC
    of the archive at STORE_URL as NAME. They use the credentials and timeouts of `store`.
    """


class MetadataConfig(Section):
    """Metadata of the archive's segments."""

    manager: Literal["store", "topic"] = "store"
    """Where metadata is kept: in the store, or also in the topic `__remote_log_metadata`, which
    saves listings and needs some 90 bytes of memory per segment. Use the same value in every
    process of an archive. Archive-only mode always reads the store.
    """
    topic_name: str = METADATA_TOPIC
    """Name of the metadata topic. Choose another one for a second archive of the same cluster, or
    if the brokers use this topic for Kafka's own tiered storage.
    """
    topic_partitions: int = Field(50, ge=1)
    """Partitions of the metadata topic (remote.log.metadata.topic.num.partitions). Never change it
    afterwards, because it decides which of them has the events of a topic.
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
    """How many bytes are read from the store at the same time. More reads have to wait."""
    chunk_cache_bytes_max: Size = Field(256 * MiB, ge=0)
    """Memory of the chunk cache."""
    client_bytes_per_s_max: Live[Size] = Field(0, ge=0)
    """Archived bytes per second for one client, over all its connections. Above it, the proxy
    throttles the client as a broker does for a quota (consumer_byte_rate). A client is identified
    by its archive-only user or by its certificate; if it has neither, by its IPv4 address or IPv6
    /64. Client ids do not matter. Relayed bytes do not count. 0: no limit.
    """
    index_cache_bytes_max: Size = Field(64 * MiB, ge=MiB)
    """Memory of segments' indexes (remote.log.index.file.cache.total.size.bytes)."""
    disk_cache_dir: Path | None = None
    """Folder for a second chunk cache on disk, which survives a restart. Use a different folder for
    each process. Not set: no disk cache.
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
    """Connections to the store, and range reads in flight (remote.log.reader.threads); reads of up
    to 256 KiB count a quarter. On S3, uploads have this many additional connections, and range
    reads up to four times as many.
    """
    timeout_ms: Duration = Field(20_000, ge=100)
    """How long the store may send nothing during a response; then the request is sent again. Raise
    it for a slow store or link. Other limits follow from it: an 8 MiB part of an upload may take
    three times as long (140 KiB/s by default), and a listing or a metadata read half as long.
    Connecting may take as long, but at most 3 s.
    """

    compression: Literal["none", "zstd"] = "none"
    """How the archiver compresses new segments whose batches are not already compressed. zstd
    reduces them to between a third and a half of their size, at the cost of some CPU. With either
    value, a process reads both kinds of segments.
    """

    encryption_keys: OptionalKeyRing = None
    """Key ring that encrypts new segments and decrypts archived ones: the path of a file made by
    `fetchproxy keys`, or aws-kms://REGION/KEY. If you name several, the first one encrypts and all
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

    # A small read takes a round trip, and next to nothing of the link and of memory.
    @property
    def small_reads_max(self) -> int:
        return 4 * self.connections_max

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
    """host:port of the bootstrap listener. The default is reachable only from this host."""
    advertise_host: OptionalAdvertisedHost = None
    """Host that the proxy tells clients to connect to. Not set: the listener's host or, if that
    means all addresses (0.0.0.0, ::), the address to which the client has connected.
    """
    node_port_base: int = Field(0, ge=0, le=65000)
    """The port for the broker with node id N is this number + N. 0: the port is the bootstrap
    listener's port + 1 + N, so that it is the same after a restart; if that port is taken, any free
    port.
    """
    node_map: OptionalNodeMap = None
    """Fixed addresses of brokers, for firewalls and load balancers, such as
    `1=9301,2=kafka.example:9302,3=9303/kafka.example:443`. The proxy listens on each port (the one
    before `/`) from the start. It tells clients the host, or the address after `/`, instead of
    `gateway.advertise_host` and that port. Brokers that are not in the map get ports as if there
    were no map. An archive-only node also listens on these ports, for clients that switch over from
    a proxy and know only its brokers' addresses.
    """
    proxy_protocol_from: OptionalNetworks = None
    """Addresses or networks of load balancers that send the PROXY protocol (version 1 or 2), such
    as `10.0.0.0/24,10.0.1.7`. Each connection from there has to begin with a PROXY header, and the
    address in it counts as the client's. Name only load balancers: a connection from there can
    claim any client address. Connections from elsewhere must not send a header.
    """
    frame_bytes_max: Size = Field(100 * MiB, ge=KiB)
    """Largest request of a client (socket.request.max.bytes). For broker responses that the proxy
    has to read completely (Metadata and others), the limit is this one, but at most 16 MiB. Fetch
    responses may have any size.
    """
    connections_max: int = Field(20_000, ge=1)
    """How many client connections there may be at once. The proxy closes any above this number."""
    connections_per_ip_max: Live[int] = Field(20_000, ge=1)
    """How many connections one address may have at once (max.connections.per.ip). The default is as
    high as that of connections_max, so by default there is no separate limit for one address: many
    clients may share a NAT.
    """
    idle_max_ms: Live[Duration] = Field(600_000, ge=100)
    """The proxy closes a connection that is silent for this long (connections.max.idle.ms)."""
    # Docker kills a process 10 s after SIGTERM, Kubernetes after 30 s.
    drain_max_ms: Live[Duration] = Field(8_000, ge=0)
    """How long a stopping process waits for its clients: it closes each connection as soon as no
    response is due on it. After this time it cuts the remaining ones. If you raise it, also raise
    the time after which your supervisor kills the process. 0: connections are cut at once.
    """
    share_ports: bool = False
    """Whether other processes of the same user may listen on the same ports (SO_REUSEPORT), so that
    the next version can start before this one ends. If false, a port that is in use is an error.
    Otherwise two proxies of different clusters could share a port, and clients, by accident.
    """
    connection_buffers_bytes_max: Size = Field(256 * MiB, ge=MiB)
    """Memory of all connections together: bytes that wait for slow clients and brokers, incomplete
    requests and responses (three times their size, because they are copied), and fetch sessions
    (300 bytes per partition). Above it, the proxy closes the connections that hold the most.
    """
    remote_answers_bytes_max: Size = Field(256 * MiB, ge=KiB)
    """Memory of archived records that are being sent to clients, in addition to the chunk cache.
    Above it, the proxy shortens responses, down to one batch each.
    """
    pace_by_appetite: bool = True
    """librdkafka stops fetching for a second whenever 100,000 records wait for its application. If
    this is true and a client that is catching up stops like this, the proxy sends it records no
    faster than its application takes them.
    """
    gap_policy: Literal["skip", "error"] = "skip"
    """What a reader gets at offsets that were lost before they could be archived. `skip`: the next
    records, as after compaction. `error`: INVALID_RECORD, which stops consumers (aiokafka waits
    instead).
    """
    permit_ttl_ms: Duration = Field(60_000, ge=1)
    """After a broker has returned OffsetOutOfRange to a client, that connection may read the
    topic's archive for this long. Then the broker has to confirm again, so a revoked ACL takes
    effect within this time.
    """
    tls_certificate_file: Path | None = None
    """PEM file with the certificate first, then its chain (ssl.keystore.certificate.chain). If it
    is set, clients can connect only with TLS.
    """
    tls_key_file: Path | None = None
    """PEM file with the private key. Not set: the key is in the certificate's file."""
    tls_key_password: OptionalSecret = None
    """Password of the private key (ssl.key.password)."""
    tls_client_auth: Literal["none", "requested", "required"] = "none"
    """Whether clients have to present a certificate (ssl.client.auth). It admits them to this
    listener; the broker does not see it.
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
    broker-{node_id}.kafka.example.com. Add :PORT if clients connect to a port other than the
    listener's, such as a load balancer's.
    """


class ConsoleConfig(Section):
    """The web console: page, metrics and health."""

    listen: OptionalHostPortText = None
    """host:port of the web console. Not set: no console."""
    allowed_hosts: Live[str] = ""
    """Additional host names, separated by commas, under which browsers, Prometheus and commands may
    call the console. IP addresses, loopback names, the listener's host and this machine's name are
    always allowed. Other names are refused (421), except for health checks: this prevents DNS
    rebinding.
    """
    show_records: Live[bool] = False
    """Whether the console shows archived records to anyone who can reach it. The brokers' ACLs do
    not apply to them.
    """
    masked_fields: Live[str] = ""
    """Names of JSON fields (at any depth) and of headers, separated by commas, whose content the
    console hides. If it is set, keys and values that are not JSON are not shown at all.
    """
    metrics_by_partition: bool = False
    """If true, `/metrics` has up to 14 series for each partition of an archived topic: 10 MB for
    10,000 partitions. If false, it has these series for each topic: the sum of its partitions, or
    the worst.
    """
    token_file: Live[Path | None] = None
    """File with a token. If it is set, every path except /healthz and /readyz needs the token.
    Programs send it as `Authorization: Bearer TOKEN`; in a browser, enter it as the password of any
    user. The file is read at the start, and again at SIGHUP.
    """


class PricesConfig(Section):
    """The prices of the store, for `fetchproxy top`, the API and `fetchproxy sizing`."""

    get_usd_per_1000: Live[float] = Field(0.0, ge=0, allow_inf_nan=False)
    """US dollars for 1,000 reads of the store (GET)."""
    put_usd_per_1000: Live[float] = Field(0.0, ge=0, allow_inf_nan=False)
    """US dollars for 1,000 writes and listings of the store (PUT, LIST)."""
    egress_usd_per_gb: Live[float] = Field(0.0, ge=0, allow_inf_nan=False)
    """US dollars for a GB (10⁹ bytes) that the store sends."""
    storage_usd_per_gb_month: Live[float] = Field(0.0, ge=0, allow_inf_nan=False)
    """US dollars for a GB (10⁹ bytes) in the store for a month."""

    @property
    def are_set(self) -> bool:
        """Whether requests or bytes have a price."""
        return any((self.get_usd_per_1000, self.put_usd_per_1000, self.egress_usd_per_gb))


class ProcessConfig(Section):
    """The whole process."""

    memory_bytes_max: Size = Field(0, ge=0)
    """Ceiling for the memory of the process, not counting the metadata of segments (about 1 KB
    each, or some 90 bytes with metadata.manager=topic). Limits that you have not set shrink until
    all limits together fit; if they cannot, the process does not start. 0: no ceiling, and each
    limit applies on its own.
    """
    workers: int = Field(1, ge=1, le=64)
    """How many processes `fetchproxy serve` starts: one for each core that it should use. They
    share the ports, and each has its share of the memory. The first one archives. Archive-only mode
    uses only one process, because it keeps the consumer groups.
    """


class DrillsConfig(Section):
    """Faults on request (`fetchproxy drill`)."""

    enabled: bool = False
    """If true, `fetchproxy drill` may make this process's store or brokers fail for a while. The
    console accepts drills only from this machine.
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

    level: Live[Literal["debug", "info", "warning", "error"]] = "info"
    """Lowest level that is logged. Requests are logged only at debug."""
    format: Live[Literal["auto", "console", "json"]] = "auto"
    """`console`: lines for people. `json`: one JSON object per line. `auto`: `console` on a
    terminal, otherwise `json`.
    """


class ClusterConfig(Section):
    """The proxy's own connections to the brokers."""

    bootstrap: BootstrapText = "127.0.0.1:9092"
    """host:port[,host:port…] of the brokers."""
    request_max_ms: Duration = Field(10_000, ge=1)
    """How long a broker may take to respond. Connecting to a broker may take three tenths of it,
    also on behalf of a client.
    """
    frame_bytes_max: Size = Field(128 * MiB, ge=KiB)
    """Largest response of a broker to the proxy's own requests. It must exceed 8 MiB plus one batch
    (max.message.bytes), because a Fetch response always contains its first batch completely.
    """
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Protocol of the brokers' listener (security.protocol)."""
    tls_ca_file: Path | None = None
    """PEM file with the authorities that sign the brokers' certificates
    (ssl.truststore.certificates). Not set: the system's authorities.
    """
    tls_certificate_file: Path | None = None
    """PEM file with the proxy's certificate and its chain, for brokers that ask for one (mTLS)."""
    tls_key_file: Path | None = None
    """PEM file with the private key. Not set: the key is in the certificate's file."""
    tls_key_password: OptionalSecret = None
    """Password of the private key (ssl.key.password)."""
    tls_verify_hostname: bool = True
    """If true, a broker's certificate must be for the host name to which the proxy connects
    (ssl.endpoint.identification.algorithm). If false, the owner of any certificate from these
    authorities can pose as any broker.
    """
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """How the proxy authenticates its own requests. Clients' SASL is relayed and needs no setting
    here.
    """
    sasl_username: str | None = None
    """User of PLAIN and SCRAM."""
    sasl_password: OptionalSecret = None
    """Password of PLAIN and SCRAM. Set it in the environment or in a file, because other users of
    the machine can read the command line. A file is read at each authentication.
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
