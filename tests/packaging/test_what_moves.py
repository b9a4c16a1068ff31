"""docs/operate/what-moves.md: each row of its table has a test, and each test its row."""

from __future__ import annotations

import ast
import re

import pytest
from compose_file import ROOT

# What moves, as in the table → the tests that move it, as `module::function`.
TESTS = {
    "a broker comes back at another address": (
        "serving/test_brokers_that_move.py::test_a_nodes_port_leads_to_its_broker_wherever_that_is",
        "serving/test_brokers_that_move.py::test_a_real_broker_comes_back_at_another_port",
        "simulation/test_broker_watch.py::test_one_that_moved_is_not_missed_at_its_old_address",
    ),
    "another broker has a broker's old address": (
        "serving/test_brokers_that_move.py::"
        "test_a_client_leaves_a_broker_that_took_another_ones_address",
    ),
    "all brokers move": (
        "serving/test_brokers_that_move.py::"
        "test_all_brokers_moved_and_the_last_bootstrap_name_alone_leads_to_them",
        "simulation/test_broker_watch.py::test_all_of_them_moved_behind_the_bootstrap_name",
    ),
    "the bootstrap addresses are gone": (
        "serving/test_brokers_that_move.py::"
        "test_new_clients_get_in_when_the_bootstrap_address_is_gone",
    ),
    "a broker advertises an address that cannot be reached": (
        "serving/test_brokers_that_move.py::test_the_proxy_lives_with_such_a_broker",
    ),
    "a broker joins": (
        "e2e/cluster/test_cluster_changes.py::test_a_broker_joins_and_takes_partitions",
    ),
    "the proxy's password at the brokers": (
        "security/test_own_credentials.py::test_a_mended_password_file_is_taken_up",
    ),
    "the proxy's OAuth token": (
        "security/test_own_credentials.py::test_tokens_that_expire_are_renewed_from_file",
        "security/test_own_credentials.py::"
        "test_an_expiring_token_is_fetched_again_and_an_outage_only_hurts_at_its_end",
    ),
    "certificates and authorities of clients and brokers": (
        "tls/test_tls_reload.py::test_reload_under_traffic",
        "tls/test_tls_reload.py::test_a_broken_file_leaves_the_old_one_in_use",
    ),
    "the users of an archive-only node": (
        "archive_only/test_archive_only_users.py::"
        "test_who_is_taken_out_of_the_file_is_let_go_and_a_broken_file_changes_nothing",
    ),
    "S3 keys in a profile or credentials file": (
        "storage/test_rotated_credentials.py::test_a_rotated_credentials_file_is_read_again",
        "storage/test_rotated_credentials.py::test_credentials_that_come_later_are_found",
    ),
    "S3 credentials of a role or a web identity": (
        "storage/test_rotated_credentials.py::test_credentials_of_a_web_identity_are_renewed",
    ),
    "the authority of an S3 server": (
        "storage/test_rotated_credentials.py::test_a_rotated_authority_is_trusted",
    ),
    "the key file of a Cloud Storage account": (
        "storage/test_rotated_credentials.py::"
        "test_a_rotated_key_file_of_cloud_storage_is_read_again",
    ),
    "an Azure account key or signature (SAS)": (
        "contracts/test_cloud_stores.py::test_a_rotated_key_is_read_again",
    ),
    "the delegation token of HDFS": (
        "storage/test_hdfs_wrong_answers.py::test_a_refused_token_is_read_again",
        "storage/test_hdfs_kerberos.py::test_a_token_that_has_ended_is_replaced_once",
    ),
    "the active NameNode": (
        "storage/test_hdfs_wrong_answers.py::test_a_standby_is_passed_over_for_good",
        "contracts/test_hdfs_store.py::test_the_next_namenode_is_asked_where_one_is_away",
    ),
    "HDFS enters and leaves safe mode": (
        "contracts/test_hdfs_store.py::test_safe_mode_is_an_outage_of_writing",
    ),
    "the store stops or hangs, and comes back": (
        "e2e/test_store_outages.py::test_a_store_freezes_and_then_is_killed",
        "e2e/test_store_outages.py::test_a_proxy_that_starts_in_an_outage",
    ),
    "the folder of a store is unmounted": (
        "storage/test_filesystem_outages.py::test_an_empty_mount_point_is_an_outage",
        "storage/test_filesystem_outages.py::test_a_folder_is_looked_for_again_by_a_reader",
    ),
    "the file of a key ring": (
        "storage/test_packed_segments.py::"
        "test_a_ring_that_becomes_unusable_keeps_its_keys_and_says_so",
    ),
    "the key service": (
        "storage/test_kms_keys.py::"
        "test_a_silent_service_is_asked_by_one_and_fails_the_others_at_once",
        "reading/test_fetcher_pool.py::"
        "test_a_key_service_that_hangs_holds_no_place_and_is_no_outage_of_the_store",
    ),
    "a disk fills up": (
        "e2e/test_outages_named.py::test_a_full_disk_is_named",
        "reading/test_disk_cache.py::test_a_disk_that_fails_is_left_alone_for_a_while",
        "archive_only/test_committed_offsets.py::"
        "test_a_disk_that_refuses_fails_the_commit_and_changes_nothing",
    ),
    "the clock is set": (
        "writing/test_retention_step.py::"
        "test_a_clock_forty_days_ahead_hides_nothing_while_records_are_written",
    ),
    "a topic is deleted and recreated": (
        "e2e/test_topics_under_readers.py::test_a_topic_is_made_again_under_its_reader",
        "writing/test_archiver_kafka.py::test_a_recreated_topic_is_another_log",
        "archive_only/test_topics_that_change.py::"
        "test_partitions_come_and_topics_are_deleted_and_made_again",
        "remotelog/test_followed_archive.py::test_a_topic_that_was_made_again_is_noticed",
        "jobs/test_backfill_job.py::test_a_topic_that_was_made_again_stops_no_other",
    ),
    "a log is truncated": (
        "e2e/cluster/test_unclean_election.py::test_the_archive_is_truncated_and_goes_on",
        "writing/test_log_begins_again.py::"
        "test_a_log_that_begins_again_takes_nothing_out_of_the_archive",
    ),
}


def test_each_row_has_its_tests() -> None:
    page = (ROOT / "docs" / "operate/what-moves.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    assert rows[1:] == list(TESTS)


@pytest.mark.parametrize("row", TESTS)
def test_its_tests_are_there(row: str) -> None:
    for test in TESTS[row]:
        module, _, function = test.partition("::")
        tree = ast.parse((ROOT / "tests" / module).read_text(encoding="utf-8"))
        defined = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert function in defined, test
