"""When a partition is processed next."""

from uuid import UUID

from fetchproxy.model import TopicIdPartition
from fetchproxy.writing.schedule import ProcessingSchedule

A = TopicIdPartition(UUID(int=1), "t", 0)
B = TopicIdPartition(UUID(int=1), "t", 1)
C = TopicIdPartition(UUID(int=1), "t", 2)


def schedule() -> ProcessingSchedule:
    return ProcessingSchedule(rlm_process_interval_ms=1_000, rlm_retry_interval_ms=5_000)


def test_new_partitions_are_due_at_once_in_order() -> None:
    plan = schedule()
    assert plan.next_due_at() is None
    for tp in (B, A):
        plan.assign(tp)
    assert plan.next_due_at() == 0
    assert plan.take_due(100.0) == B
    assert plan.take_due(100.0) == A
    assert plan.take_due(100.0) is None
    assert plan.next_due_at() is None  # both are in process


def test_success_failure_and_more_work() -> None:
    plan = schedule()
    for tp in (A, B, C):
        plan.assign(tp)
    for _ in range(3):
        plan.take_due(100.0)
    assert plan.succeeded(A, 100.0)
    assert plan.failed(B, 100.0)
    assert plan.succeeded(C, 100.0, more_waits=True)
    assert plan.take_due(100.0) == C
    assert plan.take_due(100.0) is None
    assert plan.next_due_at() == 101.0
    assert plan.take_due(101.0) == A
    assert plan.next_due_at() == 105.0
    assert plan.take_due(104.9) is None
    assert plan.take_due(105.0) == B


def test_more_work_queues_behind_what_is_due() -> None:
    plan = schedule()
    plan.assign(A)
    plan.assign(B)
    assert plan.take_due(10.0) == A
    plan.succeeded(A, 10.0, more_waits=True)
    assert plan.take_due(10.0) == B
    assert plan.take_due(10.0) == A


def test_assigning_twice_changes_nothing() -> None:
    plan = schedule()
    plan.assign(A)
    plan.take_due(1.0)
    plan.assign(A)
    assert plan.take_due(2.0) is None
    plan.succeeded(A, 2.0)
    plan.assign(A)
    assert plan.next_due_at() == 3.0


def test_unassigned_while_waiting_is_removed() -> None:
    plan = schedule()
    plan.assign(A)
    assert plan.unassign(A)
    assert plan.take_due(1.0) is None
    assert not plan.unassign(A)
    plan.assign(A)  # its old heap item must not count for the new assignment
    assert plan.take_due(1.0) == A
    assert plan.take_due(1.0) is None


def test_unassigned_in_process_goes_when_brought_back() -> None:
    plan = schedule()
    plan.assign(A)
    plan.take_due(1.0)
    assert not plan.unassign(A)
    assert not plan.succeeded(A, 2.0)
    assert plan.next_due_at() is None


def test_reassigned_in_process_stays() -> None:
    plan = schedule()
    plan.assign(A)
    plan.take_due(1.0)
    plan.unassign(A)
    plan.assign(A)
    assert plan.succeeded(A, 2.0)
    assert plan.take_due(3.0) == A


def test_hastened_partitions_are_due_at_once() -> None:
    plan = schedule()
    plan.assign(A)
    plan.assign(B)
    plan.take_due(10.0)
    plan.succeeded(A, 10.0)
    plan.take_due(10.0)
    plan.hasten(A)
    plan.hasten(B)  # a worker has it, so no second one gets it
    plan.hasten(C)  # unknown
    assert plan.take_due(10.0) == A
    assert plan.take_due(10.0) is None
    plan.succeeded(A, 10.0)
    plan.succeeded(B, 10.0)
    assert plan.next_due_at() == 11.0
    assert plan.take_due(10.5) is None


def test_a_large_backlog_of_one_starves_nobody() -> None:
    plan = schedule()
    for tp in (A, B, C):
        plan.assign(tp)
    turns = []
    for now in range(30):
        tp = plan.take_due(float(now))
        assert tp is not None
        turns.append(tp)
        plan.succeeded(tp, float(now), more_waits=tp == A)
    assert turns.count(B) == turns.count(C) == 10


def test_who_keeps_failing_waits_longer_up_to_a_limit() -> None:
    plan = schedule()
    plan.assign(A)
    waits = []
    now = 0.0
    for _ in range(6):
        assert plan.take_due(now) == A
        plan.failed(A, now)
        due_at = plan.next_due_at()
        assert due_at is not None
        waits.append(due_at - now)
        now = due_at
    assert waits == [5, 10, 20, 30, 30, 30]
    assert plan.take_due(now) == A
    plan.succeeded(A, now)
    assert plan.take_due(now + 1) == A
    plan.failed(A, now + 1)
    assert plan.next_due_at() == now + 1 + 5
