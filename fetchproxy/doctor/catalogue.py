"""All checks as data: id, severity, what holds if it passes, what to do, and why it matters.

The checks, their output and docs/operate/doctor.md take their words from here. An id is
never given to another check, because scripts name it. `{words}` in a remedy are filled in by the
check that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import NamedTuple

PAGE = "docs/operate/doctor.md"


class Category(StrEnum):
    """In the order of the output. The ids of a category share their first two digits."""

    CONFIG = "settings"
    BROKERS = "brokers and topics"
    STORE = "store"
    LISTENERS = "listeners and addresses"
    CERTIFICATES = "certificates and keys"
    MACHINE = "machine"
    CHANGE = "change of the settings"


class Severity(StrEnum):
    FATAL = "fatal"  # fetchproxy does not work, or loses records; the category ends here
    WARNING = "warning"


class CheckMeaning(NamedTuple):
    category: Category
    severity: Severity
    holds: str
    remedy: str
    why: str


def _check(
    category: Category, severity: Severity, number: str, holds: str, remedy: str, why: str
) -> tuple[str, CheckMeaning]:
    return f"FP{number}", CheckMeaning(category, severity, holds, remedy, why)


_fatal_config = partial(_check, Category.CONFIG, Severity.FATAL)
_warn_config = partial(_check, Category.CONFIG, Severity.WARNING)
_fatal_broker = partial(_check, Category.BROKERS, Severity.FATAL)
_warn_broker = partial(_check, Category.BROKERS, Severity.WARNING)
_fatal_store = partial(_check, Category.STORE, Severity.FATAL)
_warn_store = partial(_check, Category.STORE, Severity.WARNING)
_fatal_listener = partial(_check, Category.LISTENERS, Severity.FATAL)
_warn_listener = partial(_check, Category.LISTENERS, Severity.WARNING)
_fatal_key = partial(_check, Category.CERTIFICATES, Severity.FATAL)
_warn_key = partial(_check, Category.CERTIFICATES, Severity.WARNING)
_fatal_machine = partial(_check, Category.MACHINE, Severity.FATAL)
_warn_machine = partial(_check, Category.MACHINE, Severity.WARNING)
_fatal_change = partial(_check, Category.CHANGE, Severity.FATAL)
_warn_change = partial(_check, Category.CHANGE, Severity.WARNING)

_CHECKS = (
    _fatal_config(
        "0001",
        "the settings can be used",
        "correct the setting that the message names; `fetchproxy config --check FILE` checks a "
        "file",
        "A process does not start if it does not know a setting or cannot use its value.",
    ),
    _fatal_config(
        "0002",
        "`store.url` is set",
        "set `store.url` (`--store URL`, or FETCHPROXY_STORE_URL)",
        "Each process has to know where the archive is.",
    ),
    _fatal_config(
        "0003",
        "the brokers' addresses are not the proxy's own",
        "set `cluster.bootstrap` (`--bootstrap`) to the brokers, not to `gateway.listen`",
        "A proxy that connects to itself instead of the brokers waits for its own response.",
    ),
    _warn_config(
        "0004",
        "no other user of this machine can read the secrets",
        "`chmod o-rwx {file}`",
        "If everyone can read the file, its password is no secret.",
    ),
    _fatal_broker(
        "0101",
        "a bootstrap address accepts connections",
        "start the brokers, or correct `cluster.bootstrap`; test the address with `nc -vz {host} "
        "{port}`",
        "Without a broker, the proxy can neither serve clients nor archive.",
    ),
    _warn_broker(
        "0102",
        "each bootstrap address accepts connections",
        "start the broker, or remove {address} from `cluster.bootstrap`",
        "If the other addresses also become unreachable, a starting proxy finds no broker.",
    ),
    _fatal_broker(
        "0103",
        "TLS with the brokers works",
        "correct `cluster.tls_ca_file`, `cluster.tls_certificate_file` or "
        "`cluster.security_protocol`; "
        "`openssl s_client -connect {host}:{port} -showcerts` shows the broker's certificate",
        "The proxy connects only to brokers whose certificate it accepts.",
    ),
    _fatal_broker(
        "0104",
        "the brokers respond in Kafka's protocol",
        "correct `cluster.bootstrap`, or set `cluster.security_protocol` to the protocol of the "
        "brokers' listener (`listener.security.protocol.map`)",
        "Perhaps another server has this address, or the listener uses another security protocol.",
    ),
    _fatal_broker(
        "0105",
        "the brokers accept the proxy's own user",
        "correct `cluster.sasl_username`, `cluster.sasl_password` and `cluster.sasl_mechanism`; "
        "`kafka-configs.sh --bootstrap-server {bootstrap} --describe --entity-type users` lists "
        "the SCRAM users",
        "If the proxy cannot log in, it relays clients but does not archive.",
    ),
    _fatal_broker(
        "0106",
        "the brokers support the requests that these settings need",
        "upgrade the brokers; `kafka-broker-api-versions.sh --bootstrap-server {bootstrap}` "
        "shows what they support",
        "Brokers older than Kafka 2.8 have no topic ids; the page Compatibility lists the "
        "versions.",
    ),
    _fatal_broker(
        "0107",
        "the brokers can be reached at the addresses that they advertise",
        "set `advertised.listeners` of the broker to an address that this machine can reach, or "
        "make the name resolvable here (`getent hosts {host}`)",
        "Like every Kafka client, the proxy uses the bootstrap addresses only at first, and then "
        "the advertised ones.",
    ),
    _warn_broker(
        "0108",
        "each broker responds",
        "start the broker at {address}, or correct its `advertised.listeners`",
        "The broker's partitions are neither served nor archived until another broker leads them.",
    ),
    _fatal_broker(
        "0109",
        "the proxy's user has the rights that it needs on the topics",
        "`kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal {principal} "
        "--operation {operation} --topic {topic}`",
        "An archiver reads the topics and their settings (docs/security/access.md). It cannot "
        "see topics that it may not DESCRIBE.",
    ),
    _fatal_broker(
        "0110",
        "the proxy's user may join the archivers' group",
        "`kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal {principal} "
        "--operation Read --group {group}`",
        "Archivers that share partitions form a consumer group (`archive.group_id`).",
    ),
    _fatal_broker(
        "0111",
        "the metadata topic keeps all events, or can be created",
        "do what the message says; if it says nothing, set `metadata.topic_replication_factor` "
        "to at most the number of brokers, or `metadata.topic_name` to another topic",
        "With `metadata.manager = topic`, this topic says which segments the archive has.",
    ),
    _warn_broker(
        "0112",
        "`archive.topics` matches topics",
        "correct `archive.topics` (`kafka-topics.sh --bootstrap-server {bootstrap} --list` lists "
        "the topics), or give {principal} DESCRIBE on them",
        "The pattern has to match the whole name: `orders` does not match `orders-eu`.",
    ),
    _warn_broker(
        "0113",
        "no record has a timestamp in the future",
        "correct the clock (`timedatectl`) of the machine that sets the timestamps: with "
        "`message.timestamp.type=LogAppendTime` the broker, otherwise the producer",
        "Time-based retention waits for the newest timestamp in a segment, so a wrong clock "
        "delays it.",
    ),
    _warn_broker(
        "0114",
        "brokers refuse timestamps from the far future if retention is time-based",
        "`kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        "--entity-name {topic} --add-config message.timestamp.after.max.ms=3600000`",
        "A single record dated 2100 protects itself and everything after it from retention.",
    ),
    _fatal_broker(
        "0115",
        "responses with the largest batches fit",
        "set `cluster.frame_bytes_max` to {bytes} or more, or lower `max.message.bytes` of the "
        "topic {topic}",
        "A Fetch response always contains its first batch completely, however large. An archiver "
        "that cannot read it is stuck.",
    ),
    _warn_broker(
        "0116",
        "local retention can be applied to each topic",
        "`kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        "--entity-name {topic} --add-config retention.ms=-1,retention.bytes=-1`",
        "If the topic has its own retention, the brokers do not wait for the copy. So the "
        "archiver does not apply local retention to it.",
    ),
    _fatal_broker(
        "0117",
        "the brokers keep records until they are archived",
        "`kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        "--entity-name {topic} --add-config retention.ms={retention_ms}`, or lower "
        "`archive.segment_age_max_ms`",
        "The broker may delete a record when it is `retention.ms` old. The archiver copies it "
        "only after `archive.segment_age_max_ms` plus the time of a copy. Records that are "
        "deleted before that are lost.",
    ),
    _warn_broker(
        "0118",
        "the brokers keep at least as many bytes as a segment of the archive has",
        "`kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        "--entity-name {topic} --add-config retention.bytes={retention_bytes}`, or lower "
        "`archive.segment_bytes_max`",
        "The archiver collects up to `archive.segment_bytes_max` before it copies; the broker "
        "may delete what exceeds `retention.bytes` before that.",
    ),
    _fatal_broker(
        "0119",
        "each matching topic can be archived",
        "change `archive.topics` so that it does not match {topic}; or archive it with "
        "`archive.compacted_topics`, for the restore of a lost cluster; or, if it does not need "
        "compaction, `kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type "
        "topics --entity-name {topic} --add-config cleanup.policy=delete`",
        "Compaction removes records after they have been copied, so compacted topics are not "
        "archived for readers (as in KIP-405).",
    ),
    _fatal_store(
        "0201",
        "the store responds",
        "correct `store.url`, the network, or the credentials in this process's environment",
        "While the store is unavailable, archiving stops, and readers of archived records wait.",
    ),
    _fatal_store(
        "0202",
        "the archive belongs to this cluster",
        "correct `store.url`, `cluster.bootstrap` or `metadata.manager`; for a new archive, start "
        "the archiver with `--create` once",
        "Two clusters, or two kinds of metadata, in one place would lose each other's segments.",
    ),
    _warn_store(
        "0203",
        "there is an archive at `store.url`",
        "correct the prefix in `store.url`, or start an archiver: `fetchproxy archive --topics "
        "REGEX`",
        "Without an archive, a proxy only relays; it cannot serve records that the brokers have "
        "deleted.",
    ),
    _fatal_store(
        "0204",
        "objects can be written and read back unchanged",
        "give this process the rights to write and read objects below `store.url` "
        "(s3:PutObject, s3:GetObject)",
        "An archiver writes segments. Readers check each chunk and refuse changed bytes.",
    ),
    _fatal_store(
        "0205",
        "a range read returns exactly the requested bytes",
        "use a server that honours `Range`; if a cache or proxy strips this header, set "
        "`store.url` to the server behind it",
        "Readers read segments in chunks, with range reads.",
    ),
    _fatal_store(
        "0206",
        "listings show all objects that were written",
        "grant the right to list (s3:ListBucket), or set `store.url` to a server whose listings "
        "are complete",
        "Readers do not find objects that are missing from listings.",
    ),
    _warn_store(
        "0207",
        "a conditional write does not replace an existing object",
        "set `store.url` to a server that supports `If-None-Match`; or, for a new archive, start a "
        "single archiver first",
        "It matters only when two archivers start a new archive at the same time.",
    ),
    _warn_store(
        "0208",
        "objects can be deleted",
        "grant the right to delete (s3:DeleteObject), or keep everything: set "
        "`archive.topic_deletion=keep` and no retention",
        "Retention needs it, and so does removing the archives of deleted topics. If you keep "
        "everything, you can do without; doctor's probes, `doctor.*`, then stay in the store.",
    ),
    _warn_store(
        "0209",
        "this machine's clock and the store's agree",
        "correct this machine's clock (`timedatectl`, `chronyc tracking`)",
        "S3 refuses requests that are 15 minutes off, and time-based retention is paused.",
    ),
    _warn_store(
        "0210",
        "the store responds within a second",
        "use a store closer to this process, or raise `store.timeout_ms`",
        "Each first read of archived records waits at least this long.",
    ),
    _fatal_store(
        "0211",
        "no rule of the store deletes or hides segments",
        "{remedy}",
        "A lifecycle rule ignores offsets, so it leaves holes for consumers.",
    ),
    _warn_store(
        "0212",
        "the store really removes what the archive deletes",
        "{remedy}",
        "Otherwise you keep paying for old versions of objects that retention has deleted.",
    ),
    _fatal_listener(
        "0301",
        "the ports are free",
        "stop the process that uses the port (`ss -ltnp 'sport = :{port}'`), or set {key} to "
        "another port",
        "A proxy that cannot listen does not start. This is checked only with --before.",
    ),
    _fatal_listener(
        "0302",
        "the advertised names can be resolved",
        "make the name resolvable (`getent hosts {host}`), or correct `gateway.advertise_host`, "
        "`gateway.node_map` or `gateway.sni_node_pattern`",
        "Clients connect to these names.",
    ),
    _warn_listener(
        "0303",
        "clients on other machines are not given a loopback address",
        "set `gateway.advertise_host` (`--advertise`) to a host that clients can reach",
        "A client that is given 127.0.0.1 connects to its own machine.",
    ),
    _fatal_listener(
        "0304",
        "the proxy accepts connections at the address that clients use",
        "start it (`fetchproxy serve`), or open the firewall for {address}; before the first "
        "start, use `fetchproxy doctor --before`",
        "Doctor connects to it from this machine, as a client would.",
    ),
    _fatal_listener(
        "0305",
        "the proxy responds to clients",
        "read its log; `curl http://{console}/readyz` says what is missing. If another server "
        "uses the port, set `gateway.listen` to another one",
        "Doctor connects like a client, as the proxy's own user.",
    ),
    _fatal_listener(
        "0306",
        "clients reach every address that the proxy advertises",
        "set `gateway.advertise_host` or `gateway.node_map` to addresses that clients can reach, "
        "and open the firewall for {address}",
        "A client connects to the advertised address of a partition's leader.",
    ),
    _warn_listener(
        "0307",
        "the proxy says that it is ready",
        "do what each line of `curl http://{console}/readyz` says",
        "The console says what the running process lacks.",
    ),
    _fatal_key(
        "0401",
        "the listener's certificate and key can be used",
        "correct `gateway.tls_certificate_file` and `gateway.tls_key_file`; "
        "`openssl x509 -noout -text -in {file}` shows the certificate",
        "The proxy does not start with a certificate that it cannot load.",
    ),
    _fatal_key(
        "0402",
        "the files for TLS with brokers can be used",
        "correct `cluster.tls_ca_file`, `cluster.tls_certificate_file` and `cluster.tls_key_file`",
        "The proxy does not start without them.",
    ),
    _fatal_key(
        "0403",
        "no certificate has expired",
        "replace the certificate in {file}; a running proxy needs no restart. `openssl x509 "
        "-noout -enddate -in {file}` shows when it expires",
        "Clients or brokers refuse an expired certificate.",
    ),
    _warn_key(
        "0404",
        "no certificate expires within 14 days",
        "renew the certificate in {file}; `openssl x509 -noout -enddate -in {file}` shows when "
        "it expires",
        "ACME clients renew 30 days ahead, so if only 14 days are left, the renewal has failed.",
    ),
    _fatal_key(
        "0405",
        "the listener's certificate contains the names that clients connect to",
        "issue a certificate with a subject alternative name for {name}, or advertise a name that "
        "it has (`gateway.advertise_host`)",
        "Clients compare the name that they connect to with the names in the certificate.",
    ),
    _fatal_key(
        "0406",
        "clients can verify the listener's certificate and its chain",
        "put the certificate into {file}, followed by those of its issuers; it must be issued "
        "for server use. `openssl verify -partial_chain -purpose sslserver -trusted {file} "
        "{file}` checks it",
        "A client knows only its root authorities. The proxy has to send all certificates in "
        "between.",
    ),
    _fatal_key(
        "0407",
        "the key ring for the archive's encryption can be read",
        "correct `store.encryption_keys`; `fetchproxy keys list FILE` checks a file, and "
        "`fetchproxy keys generate FILE` creates a new one",
        "Without its keys, an encrypted archive cannot be read.",
    ),
    _fatal_key(
        "0408",
        "the key ring can encrypt a data key and decrypt it again",
        "grant this process kms:Encrypt and kms:Decrypt on the key in `store.encryption_keys`, "
        "and make sure that it can reach the key service",
        "Each new segment gets its own data key.",
    ),
    _warn_key(
        "0409",
        "the key ring has an active key for new segments",
        "`fetchproxy keys rotate FILE` adds a key",
        "Without an active key, new segments are not encrypted; with ?required=true they are "
        "refused.",
    ),
    _fatal_key(
        "0410",
        "the users file can be used",
        "correct {file}; `fetchproxy user NAME` creates the line for a user",
        "In archive-only mode, only the users in this file may log in.",
    ),
    _warn_machine(
        "0501",
        "the process may open enough files for its clients",
        "raise the limit: `ulimit -n {files}`, LimitNOFILE={files} in a systemd unit, or lower "
        "`gateway.connections_max`",
        "Each client connection needs two open files. The proxy accepts as many as fit.",
    ),
    _warn_machine(
        "0502",
        "the memory plan fits into the available memory",
        "set `process.memory_bytes_max` to {bytes}, or give the process more memory",
        "The kernel kills a process that uses more memory than there is.",
    ),
    _fatal_machine(
        "0503",
        "the spool can be written",
        "let this user write there (`chown {user} {folder}`), or set `archive.spool_dir` to "
        "another folder",
        "The archiver collects records there until they are a segment.",
    ),
    _fatal_machine(
        "0504",
        "the spool's disk has room for at least one segment",
        "free space (`df -h {folder}`), or set `archive.spool_dir` to another disk",
        "A full disk stops the archiver.",
    ),
    _warn_machine(
        "0505",
        "the spool's disk has room for the whole of `archive.spool_bytes_max`",
        "set `archive.spool_bytes_max` to {bytes} or less, or `archive.spool_dir` to a larger disk "
        "(`df -h {folder}`)",
        "The spool can grow to this size while the store is slow.",
    ),
    _fatal_machine(
        "0506",
        "the process's own folders can be written",
        "`chown {user} {folder}`, or set `{key}` to another folder",
        "The process keeps caches and committed offsets there.",
    ),
    _warn_machine(
        "0507",
        "the disk cache fits on its disk",
        "set `remote_fetch.disk_cache_bytes_max` to {bytes} or less (`df -h {folder}`)",
        "When the disk is full, the cache shrinks, and everything else on that disk is affected "
        "too.",
    ),
    _fatal_machine(
        "0508",
        "the broker's log directories are readable",
        "set `archive.log_dirs` to all log directories of the broker on this host, and let this "
        "user read them",
        "With `archive.log_dirs`, the archiver copies the broker's segment files.",
    ),
    _warn_change(
        "0601",
        "all topics that are archived now will still be archived",
        "if this is not intended, put them back into `archive.topics`",
        "What is already archived of these topics stays. New records are not archived.",
    ),
    _warn_change(
        "0602",
        "the archive stays where it is",
        "`fetchproxy mirror --cut-over` moves an archive",
        "A new place is empty: clients do not find what is archived at the old one.",
    ),
    _fatal_change(
        "0603",
        "the metadata manager stays the same",
        "leave `metadata.manager`, `metadata.topic_name` and `metadata.topic_partitions` as they "
        "are; `fetchproxy restore` rebuilds a metadata topic",
        "All processes of an archive must use the same values.",
    ),
    _warn_change(
        "0604",
        "retention will not delete more than now",
        "if this is not intended, do not lower `archive.remote_log_retention_ms` and "
        "`archive.remote_log_retention_bytes`",
        "Deleted data cannot be recovered. A step that deletes more than half of a partition "
        "waits for `archive.retention_step_grace_ms` first.",
    ),
)
CHECKS: Mapping[str, CheckMeaning] = dict(_CHECKS)
