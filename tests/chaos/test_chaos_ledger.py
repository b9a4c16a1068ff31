"""The ledger calls wrong what is wrong, and misses what is missing."""

from __future__ import annotations

from chaos.ledger import ABORTED, COMMITTED, Log, ReadRecord, ranges


def log_of(count: int) -> Log:
    log = Log("chaos-txn", 0)
    log.written = {offset: log.next_value() for offset in range(count)}
    return log


def wrong(log: Log, record: ReadRecord, *, committed_only: bool = True) -> str | None:
    return log.wrong(record, committed_only=committed_only)


def test_a_record_is_right_as_it_was_written() -> None:
    log = log_of(3)
    assert wrong(log, ReadRecord(1, COMMITTED, log.written[1])) is None
    assert "is not" in str(wrong(log, ReadRecord(1, COMMITTED, log.written[2])))
    assert "never written" in str(wrong(log, ReadRecord(1, COMMITTED, log.written[1] + b"?")))


def test_what_nobody_was_told_the_first_reader_tells() -> None:
    log = log_of(3)
    other = log.next_value()
    assert wrong(log, ReadRecord(3, COMMITTED, other)) is None
    assert log.expected(0, 9, committed_only=True) == {0, 1, 2, 3}
    assert wrong(log, ReadRecord(3, COMMITTED, log.written[0])) is not None


def test_aborted_records_are_for_readers_of_all() -> None:
    log = log_of(4)
    log.aborted = {1}
    assert log.expected(0, 4, committed_only=True) == {0, 2, 3}
    assert log.expected(1, 4, committed_only=False) == {1, 2, 3}
    assert wrong(log, ReadRecord(1, ABORTED, log.written[1]), committed_only=False) is None
    assert "aborted" in str(wrong(log, ReadRecord(1, ABORTED, log.written[1])))


def test_a_transaction_in_doubt_is_decided_by_who_reads_all() -> None:
    log = log_of(4)
    log.undecided = {1, 2, 3}
    assert log.expected(0, 4, committed_only=True) == {0}
    log.decide({0, 1}, 0, 3)
    assert log.expected(0, 4, committed_only=True) == {0, 1}
    assert (log.aborted, log.undecided) == ({2}, {3})


def test_nobody_misses_what_was_lost() -> None:
    log = log_of(6)
    log.lost = [range(1, 3), range(4, 5)]
    assert log.expected(0, 6, committed_only=False) == {0, 3, 5}
    assert ranges({1, 2, 4}) == [(1, 2), (4, 4)]


def test_retention_may_delete_the_oldest_and_leaves_what_it_has_to() -> None:
    log = Log("chaos-kept", 0, keeps=10)
    assert (log.begins(100), log.begins(5)) == (90, 0)
    assert Log("chaos-plain", 0).begins(100) == 0
