"""All checks as data: id, severity, what holds if it passes, what to do, and why it matters.

The code that looks, the output and docs/operate/doctor.md take their words from here. An id is
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
        "correct the key that the message names; `fetchproxy config --check FILE` checks a file",
        "A process does not start with a setting that it does not know or cannot use.",
    ),
    _fatal_config(
        "0002",
        "the archive has a place",
        "set `store.url` (`--store URL`, or FETCHPROXY_STORE_URL)",
        "Each process needs the place of the archive.",
    ),
    _fatal_config(
        "0003",
        "the brokers' addresses are not the proxy's own",
        "set `cluster.bootstrap` (`--bootstrap`) to the brokers, not to `gateway.listen`",
        "A proxy that asks itself for the brokers waits for itself.",
    ),
    _warn_config(
        "0004",
        "no other user of this machine can read the secrets",
        "`chmod o-rwx {file}`",
        "A password in a file that everybody may read is no secret.",
    ),
    _fatal_broker(
        "0101",
        "a bootstrap address takes connections",
        "start the brokers, or correct `cluster.bootstrap`; `nc -vz {host} {port}` tries it again",
        "Without a broker, clients are not served and nothing is archived.",
    ),
    _warn_broker(
        "0102",
        "each bootstrap address takes connections",
        "start the broker, or take {address} out of `cluster.bootstrap`",
        "The others serve until they are away, too. Then a proxy that starts finds no broker.",
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
        "the brokers answer in Kafka's protocol",
        "correct `cluster.bootstrap`, or set `cluster.security_protocol` to the protocol of the "
        "brokers' listener (`listener.security.protocol.map`)",
        "Another server at this address, or a listener of another protocol, answers nothing "
        "useful.",
    ),
    _fatal_broker(
        "0105",
        "the brokers accept the proxy's own user",
        "correct `cluster.sasl_username`, `cluster.sasl_password` and `cluster.sasl_mechanism`; "
        "`kafka-configs.sh --bootstrap-server {bootstrap} --describe --entity-type users` lists "
        "the SCRAM users",
        "Without a login of its own, the proxy relays clients and archives nothing.",
    ),
    _fatal_broker(
        "0106",
        "the brokers have the requests that these settings need",
        "upgrade the brokers; `kafka-broker-api-versions.sh --bootstrap-server {bootstrap}` shows "
        "what they have",
        "Brokers older than Kafka 2.8 have no topic ids; the page Compatibility lists the "
        "versions.",
    ),
    _fatal_broker(
        "0107",
        "the brokers can be reached at the addresses that they advertise",
        "set `advertised.listeners` of the broker to an address that this machine can dial, or "
        "make the name known here (`getent hosts {host}`)",
        "Kafka's clients, and so the proxy, dial the advertised addresses, and the bootstrap "
        "addresses only at first.",
    ),
    _warn_broker(
        "0108",
        "each broker answers",
        "start the broker at {address}, or correct its `advertised.listeners`",
        "Partitions that it leads are neither served nor archived until another broker leads them.",
    ),
    _fatal_broker(
        "0109",
        "the proxy's user has its rights on the topics",
        "`kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal {principal} "
        "--operation {operation} --topic {topic}`",
        "An archiver reads the topics and their settings (docs/security/access.md). Topics that "
        "it may not DESCRIBE do not exist for it.",
    ),
    _fatal_broker(
        "0110",
        "the proxy's user may join the archivers' group",
        "`kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal {principal} "
        "--operation Read --group {group}`",
        "Archivers that share partitions are a consumer group (`archive.group_id`).",
    ),
    _fatal_broker(
        "0111",
        "the metadata topic keeps what is written to it, and can be made",
        "do as the message says; without one, set `metadata.topic_replication_factor` to at most "
        "the number of brokers, or `metadata.topic_name` to another topic",
        "With `metadata.manager = topic`, this topic says which segments the archive has.",
    ),
    _warn_broker(
        "0112",
        "`archive.topics` matches topics",
        "correct `archive.topics` (`kafka-topics.sh --bootstrap-server {bootstrap} --list` lists "
        "the topics), or give {principal} DESCRIBE on them",
        "The expression has to match whole names: `orders` does not match `orders-eu`.",
    ),
    _warn_broker(
        "0113",
        "clocks agree: no record is from the future",
        "correct the clock (`timedatectl`) of the machine that stamps the records: of the broker "
        "with `message.timestamp.type=LogAppendTime`, else of the producer",
        "Retention by time waits for the newest record of a segment, and so for a wrong clock.",
    ),
    _warn_broker(
        "0114",
        "brokers refuse timestamps from the far future, if retention is by time",
        "`kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        "--entity-name {topic} --add-config message.timestamp.after.max.ms=3600000`",
        "One record with a timestamp in the year 2100 keeps all behind it from retention.",
    ),
    _fatal_broker(
        "0115",
        "answers with the largest batches fit",
        "set `cluster.frame_bytes_max` to {bytes} or more, or lower `max.message.bytes` of the "
        "topic {topic}",
        "A Fetch answer has its first batch whole, however large. An archiver that cannot read it "
        "stands still.",
    ),
    _warn_broker(
        "0116",
        "local retention can delete from each topic",
        "`kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        "--entity-name {topic} --add-config retention.ms=-1,retention.bytes=-1`",
        "A broker with a retention of its own does not wait for the copy, so the archiver deletes "
        "nothing from such a topic.",
    ),
    _fatal_broker(
        "0117",
        "the brokers keep records until they are archived",
        "`kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        "--entity-name {topic} --add-config retention.ms={retention_ms}`, or lower "
        "`archive.segment_age_max_ms`",
        "The broker may delete a record at the age `retention.ms`. The archiver copies it after "
        "`archive.segment_age_max_ms` and the time of a copy. What is deleted first is lost.",
    ),
    _warn_broker(
        "0118",
        "the brokers keep as many bytes as a segment of the archive has",
        "`kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        "--entity-name {topic} --add-config retention.bytes={retention_bytes}`, or lower "
        "`archive.segment_bytes_max`",
        "The archiver gathers up to `archive.segment_bytes_max` before it copies; the broker may "
        "delete beyond `retention.bytes` before that.",
    ),
    _fatal_broker(
        "0119",
        "each matching topic can be archived",
        "change `archive.topics` so that it leaves {topic} out; or, if its records may be kept "
        "once each, `kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        "--entity-name {topic} --add-config cleanup.policy=delete`",
        "Compaction removes records after they were copied, so compacted topics are not archived "
        "(as in KIP-405).",
    ),
    _fatal_store(
        "0201",
        "the store answers",
        "correct `store.url`, the network, or the credentials in this process's environment",
        "Readers of archived records wait while the store is away, and nothing is archived.",
    ),
    _fatal_store(
        "0202",
        "the archive there is this cluster's own",
        "correct `store.url`, `cluster.bootstrap` or `metadata.manager`; for a new archive give "
        "`fetchproxy serve --create` once",
        "Two clusters, or two kinds of metadata, in one place would lose segments.",
    ),
    _warn_store(
        "0203",
        "there is an archive",
        "correct the prefix in `store.url`, or start an archiver: `fetchproxy archive --topics "
        "REGEX`",
        "A proxy without an archive relays, and serves no deleted record.",
    ),
    _fatal_store(
        "0204",
        "objects can be written, and are read as they were written",
        "give this process the rights to write and read objects below `store.url` "
        "(s3:PutObject, s3:GetObject)",
        "An archiver writes segments. Readers check each chunk, and refuse changed bytes.",
    ),
    _fatal_store(
        "0205",
        "a range read gives exactly these bytes",
        "set `store.url` to a server that honours `Range`, or to the server itself behind a cache "
        "or proxy that drops it",
        "Readers read segments in chunks by ranges.",
    ),
    _fatal_store(
        "0206",
        "listings show what was written",
        "give the right to list (s3:ListBucket), or set `store.url` to a server whose listings are "
        "complete",
        "An object that no listing shows is not found by readers.",
    ),
    _warn_store(
        "0207",
        "a conditional write keeps what is there",
        "set `store.url` to a server that supports `If-None-Match`; else start one archiver alone "
        "at first",
        "Two archivers that begin an archive at once rely on it.",
    ),
    _warn_store(
        "0208",
        "objects can be deleted",
        "give the right to delete (s3:DeleteObject), or keep everything: "
        "`archive.topic_deletion=keep`, no retention",
        "Retention and deleted topics need it. An archiver that deletes nothing can do without; "
        "then doctor's own probes, `doctor.*`, stay in the store.",
    ),
    _warn_store(
        "0209",
        "this machine's clock and the store's agree",
        "correct this machine's clock (`timedatectl`, `chronyc tracking`)",
        "S3 refuses requests that are 15 minutes off, and retention by time waits.",
    ),
    _warn_store(
        "0210",
        "the store answers within a second",
        "use a store nearer to this process, or raise `store.timeout_ms`",
        "Each first read of archived records waits this long.",
    ),
    _fatal_store(
        "0211",
        "no rule of the store deletes or hides segments",
        "{remedy}",
        "A lifecycle rule knows nothing of offsets: consumers find holes.",
    ),
    _warn_store(
        "0212",
        "no setting of the store keeps what the archive deletes",
        "{remedy}",
        "Retention deletes objects, and the store keeps their versions and their cost.",
    ),
    _fatal_listener(
        "0301",
        "the ports are free",
        "stop the process that has the port (`ss -ltnp 'sport = :{port}'`), or set {key} to "
        "another one",
        "Only with --before: a proxy that cannot listen does not start.",
    ),
    _fatal_listener(
        "0302",
        "the advertised names can be resolved",
        "make the name known (`getent hosts {host}`), or correct `gateway.advertise_host`, "
        "`gateway.node_map` or `gateway.sni_node_pattern`",
        "Clients dial these names.",
    ),
    _warn_listener(
        "0303",
        "clients of other machines are not told a loopback address",
        "set `gateway.advertise_host` (`--advertise`) to a host that clients can dial",
        "A client that is told 127.0.0.1 dials its own machine.",
    ),
    _fatal_listener(
        "0304",
        "the proxy takes connections at the address that clients use",
        "start it (`fetchproxy serve`), or open the firewall for {address}; before a first start "
        "use `fetchproxy doctor --before`",
        "This is dialed from this machine, as a client would.",
    ),
    _fatal_listener(
        "0305",
        "the proxy answers clients",
        "look into its log; `curl http://{console}/readyz` says what is missing. If another server "
        "has the port, set `gateway.listen` to another one",
        "Doctor connects as a client does, with the proxy's own user.",
    ),
    _fatal_listener(
        "0306",
        "clients reach every address that the proxy advertises",
        "set `gateway.advertise_host` or `gateway.node_map` to what clients can dial, and open the "
        "firewall for {address}",
        "A client connects to the advertised address of a partition's leader.",
    ),
    _warn_listener(
        "0307",
        "the proxy says that it is ready",
        "do as each line of `curl http://{console}/readyz` says",
        "The console knows what the running process lacks.",
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
        "no certificate has ended",
        "replace the certificate in {file}; a running proxy reads it by itself. "
        "`openssl x509 -noout -enddate -in {file}` shows its end",
        "The other side refuses it.",
    ),
    _warn_key(
        "0404",
        "no certificate ends soon",
        "renew the certificate in {file}; `openssl x509 -noout -enddate -in {file}` shows its end",
        "ACME clients renew 30 days ahead, so with 14 days left the renewal has failed.",
    ),
    _fatal_key(
        "0405",
        "the listener's certificate is for the names that clients dial",
        "issue a certificate with a subject alternative name for {name}, or advertise a name that "
        "it has (`gateway.advertise_host`)",
        "Clients compare the name that they dial with the certificate.",
    ),
    _fatal_key(
        "0406",
        "clients can verify the listener's certificate and its chain",
        "put the certificate first into {file}, then each issuer's, and for use as a server; "
        "`openssl verify -partial_chain -purpose sslserver -trusted {file} {file}` tries it",
        "A client knows its authorities only. All that lies between has to come from the proxy.",
    ),
    _fatal_key(
        "0407",
        "the key ring for the archive's encryption can be read",
        "correct `store.encryption_keys`; `fetchproxy keys list FILE` checks a file, and "
        "`fetchproxy keys generate FILE` makes a new one",
        "Without its keys an encrypted archive cannot be read.",
    ),
    _fatal_key(
        "0408",
        "the key ring encrypts a data key, and decrypts it again",
        "give this process the rights kms:Encrypt and kms:Decrypt on the key of "
        "`store.encryption_keys`, and a way to the key service",
        "Each new segment has a data key of its own.",
    ),
    _warn_key(
        "0409",
        "the key ring has an active key for new segments",
        "`fetchproxy keys rotate FILE` adds a key",
        "Without an active key new segments are not encrypted, or with ?required=true refused.",
    ),
    _fatal_key(
        "0410",
        "the users' file can be used",
        "correct {file}; `fetchproxy user NAME` makes a user's line",
        "In archive-only mode the users of this file may log in.",
    ),
    _warn_machine(
        "0501",
        "the process may open enough files for its clients",
        "raise the limit: `ulimit -n {files}`, LimitNOFILE={files} in a systemd unit, or lower "
        "`gateway.connections_max`",
        "A client takes two open files. The proxy takes as many clients as fit.",
    ),
    _warn_machine(
        "0502",
        "the memory plan fits into the memory that there is",
        "set `process.memory_bytes_max` to {bytes}, or give the process more memory",
        "The kernel ends a process that takes more than there is.",
    ),
    _fatal_machine(
        "0503",
        "the spool can be written",
        "give this user the right to write (`chown {user} {folder}`), or set `archive.spool_dir` "
        "to another folder",
        "The archiver gathers segments there.",
    ),
    _fatal_machine(
        "0504",
        "the spool's disk has room for the segments that are gathered",
        "free space (`df -h {folder}`), or set `archive.spool_dir` to another disk",
        "A full disk stops the archiver.",
    ),
    _warn_machine(
        "0505",
        "the spool's disk has room for `archive.spool_bytes_max`",
        "set `archive.spool_bytes_max` to {bytes} or less, or `archive.spool_dir` to a larger disk "
        "(`df -h {folder}`)",
        "The spool grows to this size while the store is slow.",
    ),
    _fatal_machine(
        "0506",
        "the process's own folders can be written",
        "`chown {user} {folder}`, or set `{key}` to another folder",
        "Caches and committed offsets are kept there.",
    ),
    _warn_machine(
        "0507",
        "the disk cache fits on its disk",
        "set `remote_fetch.disk_cache_bytes_max` to {bytes} or less (`df -h {folder}`)",
        "A full disk ends the use of the cache, and of everything else on that disk.",
    ),
    _fatal_machine(
        "0508",
        "the broker's log directories can be read",
        "set `archive.log_dirs` to all log directories of the broker on this host, and let this "
        "user read them",
        "With `archive.log_dirs` the archiver copies segment files.",
    ),
    _warn_change(
        "0601",
        "all topics that are archived now are archived afterwards",
        "put them back into `archive.topics`, if this is not intended",
        "What the archive has of these topics stays. New records are not archived.",
    ),
    _warn_change(
        "0602",
        "the archive stays where it is",
        "`fetchproxy mirror --cut-over` moves an archive",
        "A new place begins empty: clients do not find what is archived at the old one.",
    ),
    _fatal_change(
        "0603",
        "the metadata stay with their manager",
        "leave `metadata.manager`, `metadata.topic_name` and `metadata.topic_partitions` as they "
        "are; `fetchproxy restore` rebuilds a metadata topic",
        "All processes of an archive need the same values.",
    ),
    _warn_change(
        "0604",
        "retention deletes no more than now",
        "leave `archive.remote_log_retention_ms` and `archive.remote_log_retention_bytes` higher, "
        "if this is not intended",
        "What retention deletes does not come back. A step that deletes more than half of a "
        "partition waits for `archive.retention_step_grace_ms`.",
    ),
)
CHECKS: Mapping[str, CheckMeaning] = dict(_CHECKS)
