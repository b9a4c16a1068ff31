"""What each event of the log means, and what to do; docs/reference/log-events.md is made of it.

The code that logs does not need this table: a test compares it with every call that logs, the same
names, the same levels. The metric of log messages has these names as its labels.

The rule for whoever has to act: a warning or an error whose action does not begin with "none"
carries its `hint` in the line itself, in the words of the table. It needs none if a condition with
a remedy says the same (the action is then the condition's `Kind`), or if it has a traceback, which
says that it is a defect. Events at debug level are for developers, and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from fetchproxy.observability.health import Kind

LEVELS = ("error", "warning", "info")
NONE = "none"
DEFECT = "report a bug, with the traceback from this log line"
# Of the event `client_connection_closed`.
CLOSE_REASONS: Mapping[str, str] = {
    "bad_proxy_header": "a connection from `gateway.proxy_protocol_from` does not begin with a "
    "PROXY header: `error` says what is there instead, and `hint` what to do",
    "broker_moved": "another broker has the address now; the client reconnects",
    "client_stall_max_ms": "the client read no bytes of its response; its machine may be gone",
    "connection_buffers_bytes_max": "the connection held too much of the memory that all "
    "connections share",
    "connections_max": "there are as many clients as `gateway.connections_max` allows",
    "connections_per_ip_max": "this address has as many connections as "
    "`gateway.connections_per_ip_max` allows",
    "half_frame_max_ms": "a request did not arrive completely in time",
    "idle_max_ms": "the client was silent for `gateway.idle_max_ms`; it reconnects when it needs "
    "to",
    "login_max_s": "the client did not log in in time",
    "login_refused": "unknown user or wrong password (archive-only)",
    "no_listener_for_broker": "a response names a broker for which the proxy has no port: see "
    "`node_listener_not_opened`",
    "proxy_header_max_ms": "a load balancer did not send its PROXY header in time; see `hint`",
    "request_refused": "archive-only does not serve this request; the `hint` says why",
    "user_changed": "the user was removed, or got a new password (archive-only)",
    "wire_error": "what `side` sent is not Kafka's protocol. If `error` names TLS, HTTP or the "
    "PROXY protocol, `hint` says what to do",
}


class LogEvent(NamedTuple):
    """`levels`: the worst first. `action`: a condition's kind, if its remedy is what to do."""

    levels: tuple[str, ...]
    meaning: str
    action: str | Kind = NONE

    @property
    def needs_operator(self) -> bool:
        return isinstance(self.action, Kind) or not self.action.startswith(NONE)


def _event(
    levels: tuple[str, ...], name: str, meaning: str, action: str | Kind = NONE
) -> tuple[str, LogEvent]:
    return name, LogEvent(levels, meaning, action)


def _also_logged(kind: Kind, level: str) -> tuple[str, LogEvent]:
    """The condition is logged where it is found, with more fields."""
    return kind.value, LogEvent((level,), kind.meaning.means, kind)


_error = partial(_event, ("error",))
_warning = partial(_event, ("warning",))
_info = partial(_event, ("info",))

EVENTS: Mapping[str, LogEvent] = dict(
    [
        # --- errors ---
        _also_logged(Kind.ARCHIVE_GAP, "error"),
        _error(
            "archive_not_looked_up",
            "a bug stopped the reading of the archive at the start: the first reads of each "
            "topic are slower",
            DEFECT,
        ),
        _error(
            "archive_truncated",
            "records that the leader's log lacks were removed from the archive, after an unclean "
            "election or by `fetchproxy resolve`",
            "find out why a replica that was behind became leader; after `fetchproxy resolve`, "
            "nothing",
        ),
        _error(
            "corrupt_metadata",
            "the metadata of a topic's segments is damaged, so reads of them fail",
            Kind.SEGMENT_METADATA_UNREADABLE,
        ),
        _error(
            "corrupt_segment",
            "an object of a segment is damaged or missing, so reads of the segment fail",
            Kind.SEGMENT_DAMAGED,
        ),
        _error(
            "finished_offsets_unreadable",
            "the record of what a partition's archive must contain is damaged: earlier losses "
            "may stay unnoticed",
            "none: the archiver writes a new record",
        ),
        _error(
            "held_readers_not_judged",
            "a bug stopped the check on readers that wait: they wait until the next check",
            DEFECT,
        ),
        _error("job_item_defect", "a bug stopped a part of the job", DEFECT),
        _event(
            ("error", "warning"),
            "library_message",
            "a library has logged `message`",
            "none: fetchproxy's own event next to it says what it means",
        ),
        _error(
            "log_start_lookup_failed",
            "a bug stopped the lookup of log starts: clients see the last known ones",
            DEFECT,
        ),
        _error(
            "metadata_cache_failed",
            "the disk cache of the metadata topic cannot be written; it is not used until the "
            "next restart, which takes longer",
            "check the disk of `metadata.cache_dir`, then restart",
        ),
        _error(
            "metadata_cache_file_damaged",
            "a file in the disk cache of the metadata topic is damaged",
            "none: the next start reads the events from the topic",
        ),
        _error(
            "metadata_event_unreadable",
            "a record of the metadata topic cannot be read: some segments may not be served",
            Kind.SEGMENT_METADATA_UNREADABLE,
        ),
        _error(
            "more_metadata_events_unreadable",
            "more records of this metadata partition cannot be read; they are not logged",
            Kind.SEGMENT_METADATA_UNREADABLE,
        ),
        _error(
            "offsets_not_written",
            "the committed offsets cannot be written to disk: clients get an error and retry",
            "free space on the disk of `archive_only.offsets_file`, or replace the disk",
        ),
        _also_logged(Kind.PART_FAILED, "error"),
        _error(
            "partition_process_crashed",
            "a bug stopped the archiver's work on the partition; other partitions continue",
            DEFECT,
        ),
        _error(
            "remote_read_crashed",
            "a bug stopped one read of the archive; other reads continue",
            DEFECT,
        ),
        _error(
            "segment_locked",
            "a reader needs a segment whose encryption key is not available, so its reads fail",
            Kind.SEGMENTS_LOCKED,
        ),
        _also_logged(Kind.SEGMENT_METADATA_UNREADABLE, "error"),
        _error(
            "segment_not_indexed",
            "a segment's index in the store is damaged, so there is no local index of it",
            "run `fetchproxy verify --repair`",
        ),
        _error("session_crashed", "a bug closed the connection of one client", DEFECT),
        _error(
            "store_credentials_unusable",
            "the changed credentials file of the store cannot be used; the previous credentials "
            "stay in use",
            "correct the file; it is read again without a restart",
        ),
        _error(
            "tls_handshake_crashed",
            "a bug stopped the TLS handshake of one client",
            "report a bug",
        ),
        _error(
            "users_file_unusable",
            "the changed users file cannot be used",
            "correct the file; it is read again without a restart, and until then the previous "
            "users stay in force",
        ),
        _error(
            "worker_ended",
            "a worker has exited and is restarted after `starts_again_in_s`; its clients "
            "reconnect to the other workers",
            "if it happens again, look for the reason in the worker's log lines above",
        ),
        # --- warnings ---
        _warning(
            "announced_retention_unreadable",
            "the announcement of a large deletion is damaged in the store",
            "none: the deletion is announced again, and waits again",
        ),
        _warning(
            "archive_discovery_failed",
            "the archiver cannot get the list of topics from the brokers",
            Kind.BROKERS_AWAY,
        ),
        _warning(
            "archive_leadership_lost",
            "this archiver left its group and has stopped archiving its partitions",
            "none: it rejoins, and other archivers take over; if not, see `consumer_group_trouble`",
        ),
        _also_logged(Kind.ARCHIVE_MISSING, "warning"),
        _warning(
            "archive_not_compared_with_leader",
            "the brokers did not respond, so the archive could not be compared with the leader's "
            "log; what was known before is served",
            Kind.BROKER_AWAY,
        ),
        _warning(
            "archive_open_to_anybody",
            "any client that can reach this address may read the archive without a password",
            "set `archive_only.users_file` to let in only users with a password, or "
            "`gateway.tls_client_auth = required` to let in only clients with a certificate",
        ),
        _warning(
            "archive_parted_from_leader",
            "the leader's log and the archive differ from offset `shared_end` on; readers get "
            "the archive up to there",
            "none: the archiver truncates the archive (`archive_truncated`)",
        ),
        _warning(
            "archive_place_not_recorded",
            "the archiver could not note on this machine that it has used the archive; if the "
            "folder is not mounted later, this would look like a new archive",
            "let this user write to `archive.spool_dir`",
        ),
        _warning(
            "archive_unreachable",
            "the store does not respond; the archive-only node serves what it knows",
            Kind.STORE_FAILING,
        ),
        _warning(
            "archived_data_lost",
            "records that the query asked for are missing and were skipped, because "
            "`failOnDataLoss=false` or `corruptBatches=skip` allows it",
            "`fetchproxy verify` names what is missing",
        ),
        _warning(
            "archived_topic_is_gone",
            "a topic was deleted in the cluster; its archive is deleted after the grace time",
            "to keep its archive, set `archive.topic_deletion = keep` before "
            "`archive.topic_deletion_grace_ms` is over",
        ),
        _warning(
            "archived_topic_kept",
            "an archived topic is not in the cluster, and no archiver has ever seen it there, so "
            "its archive is kept",
            "none; to delete such archives, set `archive.topic_deletion = delete-all`",
        ),
        _warning(
            "archived_topics_not_listed",
            "the list of archived topics could not be read from the store; what was known before "
            "is served",
            Kind.STORE_FAILING,
        ),
        _warning(
            "archiver_positions_not_written",
            "the archiver could not write its position to the store; readers between the tiers "
            "wait longer",
            Kind.STORE_FAILING,
        ),
        _warning(
            "archiver_positions_unreadable",
            "the position of another archiver cannot be read; readers between the tiers wait "
            "longer",
            "if this continues, run the same version of fetchproxy everywhere",
        ),
        _warning(
            "attached_topic_not_found",
            "the other archive does not have the topic that `attach.archives` names",
            "correct the topic in `attach.archives`",
        ),
        _warning(
            "aws_credentials_not_found",
            "the store refused the AWS credentials, and no new ones were found",
            "correct the source of the credentials; it is read again without a restart",
        ),
        _warning(
            "broker_unreachable",
            "a client connected, but its broker could not be reached; the client's connection "
            "was closed",
            Kind.BROKER_AWAY,
        ),
        _warning(
            "brokers_unreachable",
            "the brokers did not respond while the archive was being confirmed; this is retried",
            Kind.BROKERS_AWAY,
        ),
        _warning(
            "client_connection_closed",
            "fetchproxy closed a client's connection; `reason` is explained "
            "[below](#why-a-connection-was-closed)",
            "none if you do not know the client; otherwise see the reason",
        ),
        _warning(
            "clipped_segment_unreadable",
            "a segment was shortened but cannot be read, so its newest timestamp is not updated: "
            "retention may delete it later than it should",
            "run `fetchproxy verify`",
        ),
        _warning(
            "clock_jumped",
            "this machine's clock was changed; time-based retention pauses until the clock has "
            "run evenly for a while",
            "if it happens again, correct this machine's time synchronisation",
        ),
        _warning(
            "concerns_not_published",
            "the archiver could not write its conditions to the store; other processes show "
            "older ones",
            Kind.STORE_FAILING,
        ),
        _warning(
            "consumer_group_trouble",
            "the archiver cannot join its group or stay in it; it retries",
            "if this continues, check the brokers and this user's READ right on the group; a "
            "fenced archiver needs its own instance id",
        ),
        _warning(
            "corrupt_batches_skipped",
            "the query skipped damaged batches, because `corruptBatches=skip` allows it",
            "run `fetchproxy verify` on the topic",
        ),
        _warning(
            "credentials_in_plaintext",
            "the proxy sends its own password or token to the brokers without TLS",
            "set `cluster.security_protocol = SASL_SSL`, or use SCRAM as `cluster.sasl_mechanism`",
        ),
        _warning(
            "dead_copies_removed",
            "segments that belong to a replaced part of the log were removed from the archive",
        ),
        _warning(
            "deleted_topics_check_failed",
            "the check for deleted topics got no response from the store or the brokers",
            "none: it is retried, and nothing is deleted meanwhile",
        ),
        _warning(
            "disk_cache_file_damaged",
            "a file of the disk cache is damaged; it was removed, and the chunk was read from "
            "the store",
            "if it happens again, check the disk of `remote_fetch.disk_cache_dir`",
        ),
        _warning(
            "disk_cache_file_refused",
            "a file of the disk cache does not fit the segment's index",
            "none: it was removed, and the chunk was read from the store",
        ),
        _warning(
            "disk_cache_read_failed",
            "the disk cache could not be read; for at least 10 s, reads go to the store",
            "if it happens again, check the disk of `remote_fetch.disk_cache_dir`",
        ),
        _warning(
            "drill_began",
            "`fetchproxy drill` makes the store or the brokers fail for this process, for "
            "`seconds`",
            "none: it ends on its own",
        ),
        _warning("drill_ended", "the drill is over; `why` says what ended it", NONE),
        _warning(
            "disk_cache_remove_failed",
            "old files of the disk cache could not be removed",
            "if it happens again, check the disk of `remote_fetch.disk_cache_dir`",
        ),
        _warning(
            "disk_cache_write_failed",
            "the disk cache could not be written; it is not used for 10 s",
            "if it happens again, check the disk of `remote_fetch.disk_cache_dir`",
        ),
        _warning(
            "epoch_answered_by_broker_alone",
            "the store or the brokers did not respond in time; a consumer that compares its "
            "position with the log (OffsetForLeaderEpoch) got only the broker's response",
            "none: the consumer asks again after the next change of leader",
        ),
        _warning(
            "finished_offsets_not_written",
            "the record of what a partition's archive must contain could not be written; a loss "
            "would be noticed later",
            Kind.STORE_FAILING,
        ),
        _warning(
            "finished_segment_not_in_metadata",
            "the store has a complete segment that the metadata topic does not know; it is kept "
            "but not served",
            "run `fetchproxy restore`",
        ),
        _warning(
            "folder_writable_by_everybody",
            "every user of this machine can write to the folder that `key` names",
            "`chmod o-w`",
        ),
        _warning(
            "gathered_segment_dropped",
            "records that were collected for the next segment do not continue the archived log",
            "none: they are read again",
        ),
        _warning(
            "held_reader_led_on",
            "a reader waited too long for records that the archiver should have copied, and now "
            "continues after them",
            Kind.READERS_HELD,
        ),
        _warning(
            "judgement_without_fresh_knowledge",
            "the store or the brokers did not respond, so it is not known where a reader's "
            "offset is; the reader waits",
            "none: it is decided when they respond; a longer outage is a condition",
        ),
        _warning(
            "kafka_file_left_out",
            "an index file of the broker's segment is damaged, and was not copied",
            "none: fetchproxy does not need it",
        ),
        _warning(
            "listens_on_all_addresses",
            "the proxy tells clients the address at which they reached it; clients behind NAT, a "
            "load balancer or published ports cannot use it",
            "set `gateway.advertise_host` (`--advertise`) to a host that all clients can reach",
        ),
        _warning(
            "listing_check_stays",
            "the probe object of the listing check could not be removed, because this user has "
            "no permission to delete",
            "none: it is a few bytes",
        ),
        _warning(
            "local_index_damaged",
            "a file of the local index is damaged; it was removed, and the index was read from "
            "the store",
            "none: it is fetched again",
        ),
        _warning(
            "local_index_leftovers_not_deleted",
            "local indexes of partitions that this process no longer has could not be removed",
            "if it happens again, check the disk of `archive.local_index_dir`",
        ),
        _warning(
            "local_index_not_dropped",
            "a damaged local index could not be removed; the index is read from the store",
            "if it happens again, check the disk of `archive.local_index_dir`",
        ),
        _warning(
            "local_index_read_failed",
            "the local index could not be read; the store is used instead",
            "if it happens again, check the disk of `archive.local_index_dir`",
        ),
        _warning(
            "local_log_not_trimmed",
            "the leader's log differs from the archive, so the brokers' records were kept",
            "none: it is retried after the archive has been truncated",
        ),
        _also_logged(Kind.LOG_BEGINS_AGAIN, "warning"),
        _warning(
            "log_without_metadata_kept",
            "a segment's metadata is lost; its log is kept but not served",
            "run `fetchproxy verify --repair`",
        ),
        _warning(
            "lost_offsets_skipped",
            "a reader skipped offsets that neither tier has; logged once for each gap",
            Kind.ARCHIVE_GAP,
        ),
        _warning(
            "merge_overtaken",
            "segments changed while they were being merged",
            "none: the next merge includes them",
        ),
        _warning(
            "merge_refused",
            "segments cannot be merged because one of them is damaged or missing",
            "run `fetchproxy verify`",
        ),
        _warning(
            "metadata_cache_damaged",
            "the end of a file in the disk cache of the metadata topic is damaged, for example "
            "after a crash",
            "none: what is missing is read from the topic",
        ),
        _warning(
            "metadata_cache_discarded",
            "the disk cache belongs to another metadata topic or is incomplete",
            "none: the whole topic is read, so the start takes longer",
        ),
        _event(
            ("warning", "info"),
            "metadata_topic_open_to_anybody",
            "the brokers have no authorizer, so every client may write to the metadata topic; at "
            "level info if the proxy listens only on loopback",
            "any client that reaches the brokers can have the archive deleted: let only trusted "
            "clients reach them, or configure an authorizer",
        ),
        _warning(
            "metadata_topic_open_to_others",
            "other users may write to the metadata topic",
            "any writer to this topic can have the archive deleted: allow WRITE only to the users "
            "of archivers and proxies",
        ),
        _warning(
            "metadata_topic_unreachable",
            "the metadata topic could not be read at the start; this is retried",
            Kind.BROKERS_AWAY,
        ),
        _warning(
            "mirror_not_noted",
            "`mirror` could not note the new copy in the archive, because the store refused the "
            "write",
            "keep the old keys after `fetchproxy keys rewrap`, because the copy may need them",
        ),
        _warning(
            "multipart_abort_failed",
            "an upload that failed was not removed from the store",
            "none: the archiver removes it later",
        ),
        _warning(
            "node_listener_not_opened",
            "the port for a broker cannot be opened, so clients cannot reach this broker",
            "free the port, or change `gateway.node_port_base` or `gateway.node_map`",
        ),
        _warning(
            "node_port_taken",
            "the usual port for a broker is taken, so another one is used; clients that knew the "
            "old one ask for the address again",
            "free the port, or give the brokers other ports with `gateway.node_port_base`",
        ),
        _warning(
            "offsets_in_memory_only",
            "committed offsets are lost when this process exits",
            "set `archive_only.offsets_file` to keep commits",
        ),
        _warning(
            "old_log_start_not_deleted",
            "an object that a newer one replaces could not be deleted",
            "none: it does no harm",
        ),
        _also_logged(Kind.PARTITION_FAILING, "warning"),
        _warning(
            "partitions_tried_again",
            "some partitions could not be archived in this pass; they are retried",
            "none: at its end, the command names what was not archived",
        ),
        _warning(
            "plaintext_beyond_loopback",
            "anyone who can watch the network between clients and this listener sees records and "
            "SASL/PLAIN passwords",
            "set `gateway.tls_certificate_file`, unless the network is trusted; let the console "
            "listen on 127.0.0.1, behind a proxy with TLS and a login",
        ),
        _warning(
            "planning_process_ended",
            "a helper process for planning a query has exited, so planning takes longer",
            "if it happens again, give the driver's machine more memory",
        ),
        _warning(
            "records_deleted_on_broker_only",
            "DeleteRecords deleted records on the broker but not yet in the archive, because the "
            "store or the brokers did not respond",
            "none: the client got an error and repeats the request, or the proxy retries",
        ),
        _warning(
            "s3_signed_urls_refused",
            "the store refuses signed URLs, so reads use the slower S3 client",
        ),
        _warning(
            "segment_cut_short",
            "the spool's disk is full, so segments are smaller than `archive.segment_bytes_max`",
            "give the spool's disk more room",
        ),
        _warning(
            "segment_not_encrypted",
            "a segment that was read is not encrypted, although new ones are: someone without a "
            "key may have put it there",
            "compare it with its source; `?required=true` refuses such segments",
        ),
        _warning(
            "segment_not_truncated",
            "a segment that should have been shortened or dropped was deleted by another archiver "
            "or by retention",
        ),
        _warning(
            "spool_leftover_not_deleted",
            "the spool folder of an earlier archiver could not be removed and takes up space",
            "delete the folder",
        ),
        _warning(
            "old_journal_damaged",
            "a journal object of an archiver that is gone is damaged, so it is kept",
            "delete the object when segments have its records; if the cluster is lost, they are "
            "lost too",
        ),
        _warning(
            "old_journals_not_deleted",
            "journals of archivers that are gone could not be checked or deleted",
            "repair what the error names; these journals stay until then",
        ),
        _warning(
            "stale_uploads_not_aborted",
            "unfinished uploads could not be removed; the store may charge for them",
            "if it happens again, allow the store's user to list and abort multipart uploads",
        ),
        _warning(
            "store_unreachable",
            "the store did not respond while the archive was being confirmed; this is retried",
            Kind.STORE_FAILING,
        ),
        _warning(
            "stream_ended_after_repeated_batch",
            "a stream with `availableNow` stopped too early, right after it had repeated a batch",
            "run the query again to get the rest",
        ),
        _warning(
            "temporary_not_removed",
            "the temporary file of a failed write remains in HDFS",
            "none: it takes space but does no harm",
        ),
        _also_logged(Kind.TLS_CERTIFICATE_EXPIRES, "warning"),
        _warning(
            "tls_certificate_expired",
            "the proxy's own certificate has expired, so clients or brokers refuse it",
            Kind.TLS_CERTIFICATE_EXPIRES,
        ),
        _warning(
            "tls_handshake_failed",
            "a client could not connect by TLS; `error` says why",
            "none if you do not know the client; otherwise correct the client, or "
            "`gateway.tls_certificate_file`; if `error` names another protocol, see `hint`",
        ),
        _warning(
            "topic_description_unreadable",
            "the description of a topic in the store is damaged, so its empty partitions are not "
            "served",
            "none: an archiver writes it again",
        ),
        _warning(
            "topic_not_described",
            "the proxy's own user may not see a topic; the topic is relayed, but its archive is "
            "not served",
            "give the proxy's user the right DESCRIBE on the topic",
        ),
        _warning(
            "topic_not_listed",
            "the store did not list a topic's partitions; the last known ones are used",
            Kind.STORE_FAILING,
        ),
        _warning(
            "cluster_state_not_written",
            "the brokers or the store did not respond, so the state of the cluster in the archive "
            "is older than `archive.cluster_state_interval_ms`",
            "none: it is retried; if it keeps failing, the condition `cluster_state_old` appears",
        ),
        _warning(
            "cluster_state_unreadable",
            "the newest state of the cluster in the archive is damaged or of a newer version, or "
            "the store denies it; the archive-only node uses what it knew before",
            "none: the next state that an archiver writes takes its place; if the store denies it, "
            "allow the reader to list and read `cluster-states/`",
        ),
        _warning(
            "cluster_states_not_removed",
            "older states of the cluster stay in the archive",
            "none: they do no harm, and the next write tries again",
        ),
        _warning(
            "topics_not_described",
            "the store or the brokers did not respond, so the descriptions of topics were not "
            "written",
            "none: it is retried; a longer outage is a condition",
        ),
        # --- info ---
        _info(
            "cluster_state_written",
            "the state of the cluster has changed and was written to the archive",
        ),
        _info(
            "abandoned_positions_not_deleted",
            "the position object of a dead archiver could not be removed yet",
        ),
        _info(
            "archive_claimed",
            "an archive that named no cluster or no metadata manager now names this process's",
        ),
        _info("archive_created", "a new archive was started at `store.url`"),
        _info("archive_found", "the archive is there; `partitions` counts what it has"),
        _info(
            "archive_further_than_expected",
            "another archiver has extended the archive; this one continues after it",
        ),
        _info(
            "archive_leadership_assigned",
            "the group's partitions were redistributed; `leads` counts this archiver's",
        ),
        _info(
            "archive_looked_up_in_part",
            "the archive is large: before the first client, only a part of it was read ahead",
        ),
        _info(
            "archive_not_looked_up_yet",
            "the store or the brokers did not respond before the first client connected; this is "
            "retried",
        ),
        _info("archive_only_listening", "clients can connect to the archive"),
        _info("archive_reachable_again", "the store responds again"),
        _info("archive_task_read", "a Spark task has read its part of a partition"),
        _info(
            "archive_then_live",
            "the query reads some partitions from the archive first; `read_live_alone` names the "
            "partitions that it reads only from the brokers",
        ),
        _info(
            "archiver_positions_not_deleted",
            "this archiver stopped, but its position could not be removed from the store",
        ),
        _info("aws_credentials_changed", "the store is used with new AWS credentials"),
        _info(
            "broker_connection_lost",
            "the connection between proxy and broker was lost, so the client's was closed too",
            "none: the client reconnects",
        ),
        _info(
            "collected_metadata_not_read",
            "a topic's collected metadata could not be read, so each object is read separately",
        ),
        _info("console_listening", "the console is at `address`"),
        _info("consumer_group_not_left", "this archiver stopped before it could leave its group"),
        _info("consumer_group_recovered", "the archiver's group works again"),
        _info(
            "freed_memory_is_kept",
            "this system's C library cannot give freed memory back to the system",
        ),
        _info(
            "drained",
            "all clients have disconnected, or the time for draining is over; `connections_cut` "
            "counts those that were cut",
        ),
        _info(
            "draining", "the process is stopping and disconnects its clients between two responses"
        ),
        _info("gateway_listening", "clients can connect"),
        _info("job_progress", "how far a job is"),
        _info(
            "leader_epochs_left_out",
            "the broker's leader epochs contradict the records, so the segment is archived "
            "without them",
        ),
        _info("local_index_dropped", "a local index was incomplete and is fetched again"),
        _info("local_log_trimmed", "archived records were deleted on the brokers"),
        _info("log_start_raised", "retention has hidden the oldest offsets of a partition"),
        _info(
            "metadata_collected",
            "the metadata of a topic's segments were collected in one object, for faster starts",
        ),
        _info(
            "metadata_not_collected",
            "the metadata of a topic's segments could not be collected in one object, so starts "
            "stay slower",
        ),
        _info("metadata_topic_created", "the metadata topic was created"),
        _info(
            "metadata_topic_writers_not_known",
            "the proxy's user may not see who may write to the metadata topic",
            "DESCRIBE on the cluster lets this process see who may write there",
        ),
        _info("node_listener_closed", "the port of a removed broker was closed"),
        _info("node_listener_opened", "the port for a broker was opened"),
        _info(
            "offset_out_of_range_caught",
            "a reader asked for an offset that the brokers no longer have; shown only on the "
            "console, not in the log",
        ),
        _info(
            "compacted_log_copied",
            "a compacted log was copied from its beginning; readers see this copy from now on",
        ),
        _info("offsets_loaded", "committed offsets were read from their file"),
        _info(
            "old_message_format_converted",
            "records in a format from before Kafka 0.11 are archived in the new format",
        ),
        _info(
            "open_files_max_holds_fewer_clients",
            "the system's limit of open files lets in fewer clients than `gateway.connections_max`",
            "raise the limit of open files if you expect more clients",
        ),
        _info("open_files_max_not_raised", "the system did not raise the limit of open files"),
        _info("options_not_needed", "these options of the query change nothing"),
        _info("orphan_object_deleted", "an object that belongs to no segment was deleted"),
        _info("partition_archived", "a pass has archived a partition up to `archive_end`"),
        _info("partition_assigned", "this archiver has taken over a partition"),
        _info("partition_deletion", "the archive of a deleted topic is being deleted"),
        _info("partition_recovered", "a partition that failed is archived again"),
        _info(
            "partition_unassigned",
            "this archiver no longer has the partition; another may have taken it over",
        ),
        _info(
            "producers_not_described",
            "the brokers did not say which producer has an open transaction",
        ),
        _info("records_deleted_in_archive", "DeleteRecords was also carried out in the archive"),
        _info("s3_trusted_certificates_changed", "the store is used with new trusted certificates"),
        _info("segment_deleted", "retention has deleted a segment from the store"),
        _info("segment_deleted_by_another", "another archiver has already deleted the segment"),
        _info("segment_hidden", "a segment is hidden from readers; it is deleted later"),
        _info("segments_merged", "small segments were merged into a large one"),
        _info(
            "settings_read_again",
            "SIGHUP was sent: `taken` are in force now, `waiting` need a restart",
        ),
        _info(
            "old_journals_deleted",
            "journal objects of archivers that are gone were deleted, because segments have all of "
            "their records",
        ),
        _info("stale_uploads_aborted", "unfinished uploads of crashed archivers were removed"),
        _info("stopping", "the process got a signal and is stopping"),
        _info("store_credentials_changed", "the store is used with new credentials"),
        _info("tls_files_reloaded", "changed certificates or keys are in use"),
        _info(
            "topic_deleted_by_another",
            "another archiver has already deleted the archive of the topic",
        ),
        _info("users_file_read_again", "the changed users file is in force"),
        _info("worker_started", "a worker of `process.workers` was started"),
    ]
)
