"""The classic group's rules one by one, then members that do anything at any time."""

from __future__ import annotations

from collections import Counter

import pytest
from fetchproxy_protocol.apis import ErrorCode
from group_driver import REBALANCE_S, SESSION_S, GroupDriver
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fetchproxy.serving.archive_only import groups
from fetchproxy.serving.archive_only.groups import (
    PROTOCOLS_MAX,
    GroupState,
    JoinReply,
    JoinRequest,
    Membership,
)


def stable_pair() -> tuple[GroupDriver, JoinReply, JoinReply]:
    driver = GroupDriver(initial_delay_s=1)
    tickets = [driver.join(), driver.join()]
    assert not driver.responses
    driver.advance_to(1)
    first, second = (driver.joined(t) for t in tickets)
    waiting = driver.sync(second)
    assert waiting not in driver.responses
    sync_token = driver.sync(first, {first.member_id: b"A", second.member_id: b"B"})
    assert driver.synced(sync_token).assignment == b"A"
    assert driver.synced(waiting).assignment == b"B"
    assert driver.group.state is GroupState.STABLE
    return driver, first, second


def test_the_first_to_join_leads_and_alone_sees_the_members() -> None:
    _, first, second = stable_pair()
    assert first.leader == second.leader == first.member_id
    assert first.generation_id == second.generation_id == 1
    assert {m["member_id"] for m in first.members} == {first.member_id, second.member_id}
    assert second.members == ()
    assert first.protocol_name == "range"


def test_a_join_costs_by_its_own_protocols_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by those of all members: 120 joins of 9,900 names each once took a minute."""
    requests_costed: list[JoinRequest] = []

    def counted(request: JoinRequest) -> set[str]:
        requests_costed.append(request)
        return {name for name, _ in request.protocols}

    monkeypatch.setattr(groups, "_names", counted)
    driver = GroupDriver(initial_delay_s=20, members_max=1_000)
    many = tuple((f"p{number}", b"") for number in range(PROTOCOLS_MAX))
    for _ in range(200):
        driver.join(protocols=many)
    assert len(driver.group.members) == 200
    assert len(requests_costed) <= 2 * 200


def test_more_protocols_than_any_client_has_are_refused() -> None:
    driver = GroupDriver()
    many = tuple((f"p{number}", b"") for number in range(PROTOCOLS_MAX + 1))
    refused = driver.joined(driver.join(protocols=many))
    assert refused.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.joined(driver.join(protocols=many[:-1])).error_code is ErrorCode.NONE


def test_a_first_rebalance_waits_longer_with_each_newcomer_but_not_for_ever() -> None:
    driver = GroupDriver(initial_delay_s=20)
    driver.join()
    driver.advance_to(19)
    last = driver.join()
    driver.advance_to(REBALANCE_S - 0.1)
    assert not driver.responses
    driver.advance_to(REBALANCE_S)
    assert len(driver.joined(last).leader) > 0


def test_member_id_is_required_first_and_pending_holds_the_rebalance() -> None:
    driver = GroupDriver()
    first_reply = driver.joined(driver.join(two_step=True))
    assert first_reply.error_code is ErrorCode.MEMBER_ID_REQUIRED
    assert first_reply.member_id
    other = driver.join()
    assert other not in driver.responses  # one is about to come
    ticket = driver.join(first_reply.member_id)
    assert driver.joined(ticket).generation_id == driver.joined(other).generation_id == 1


def test_a_pending_member_that_never_comes_is_forgotten() -> None:
    driver = GroupDriver()
    driver.join(two_step=True)
    other = driver.join()
    driver.advance_to(SESSION_S)
    assert driver.joined(other).error_code is ErrorCode.NONE
    assert not driver.group.pending


def test_a_newcomer_moves_the_others_to_join_again() -> None:
    driver, first, second = stable_pair()
    third = driver.join()
    assert driver.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    again = [driver.join(first.member_id), driver.join(second.member_id)]
    assert {driver.joined(t).generation_id for t in (*again, third)} == {2}
    assert driver.heartbeat(first) is ErrorCode.ILLEGAL_GENERATION


def test_who_does_not_join_again_in_time_is_out() -> None:
    driver, first, second = stable_pair()
    third = driver.join()
    again = driver.join(first.member_id)
    for _ in range(4):
        driver.advance_to(driver.now + SESSION_S - 1)
        driver.heartbeat(second)  # alive, but it does not join
    driver.advance_to(driver.now + 1)
    assert {driver.joined(again).generation_id, driver.joined(third).generation_id} == {2}
    assert driver.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_and_its_share_given_away() -> None:
    driver, first, second = stable_pair()
    driver.advance_to(driver.now + SESSION_S - 1)
    assert driver.heartbeat(first) is ErrorCode.NONE
    driver.advance_to(driver.now + 1.5)
    assert list(driver.group.members) == [first.member_id]
    assert driver.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_joins_and_never_syncs_is_removed() -> None:
    driver = GroupDriver(initial_delay_s=1)
    tickets = [driver.join(), driver.join()]
    driver.advance_to(1)
    first, second = (driver.joined(t) for t in tickets)
    sync_token = driver.sync(second)
    for _ in range(5):
        driver.advance_to(driver.now + SESSION_S - 3)
        driver.heartbeat(first)
    assert driver.synced(sync_token).error_code is ErrorCode.REBALANCE_IN_PROGRESS
    assert first.member_id not in driver.group.members
    assert second.member_id in driver.group.members


def test_leaving_rebalances_and_the_last_one_empties_the_group() -> None:
    driver, first, second = stable_pair()
    assert driver.leave(second.member_id) is ErrorCode.NONE
    assert driver.leave(second.member_id) is ErrorCode.UNKNOWN_MEMBER_ID
    again = driver.join(first.member_id)
    assert driver.joined(again).generation_id == 2
    assert driver.leave(first.member_id) is ErrorCode.NONE
    assert driver.group.state is GroupState.EMPTY
    assert driver.group.unused


def test_a_follower_that_lost_its_answer_gets_it_again() -> None:
    driver, _, second = stable_pair()
    again = driver.joined(driver.join(second.member_id))
    assert (again.generation_id, again.leader) == (1, second.leader)
    assert driver.group.state is GroupState.STABLE


def test_the_leader_joining_again_rebalances() -> None:
    driver, first, _ = stable_pair()
    assert driver.join(first.member_id) not in driver.responses
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_protocols_without_a_common_one_are_refused() -> None:
    driver, _, _ = stable_pair()
    other = driver.joined(driver.join(protocols=(("sticky", b""),)))
    assert other.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = driver.joined(driver.join(kind="connect"))
    assert other.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = driver.joined(driver.join(protocols=()))
    assert other.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_is_the_one_most_members_prefer() -> None:
    driver = GroupDriver(initial_delay_s=1)
    both = (("sticky", b"s"), ("range", b"r"))
    tickets = [
        driver.join(protocols=both),
        driver.join(protocols=both[::-1]),
        driver.join(protocols=both),
    ]
    driver.advance_to(3)
    assert driver.joined(tickets[0]).protocol_name == "sticky"
    assert {m["metadata"] for m in driver.joined(tickets[0]).members} == {b"s"}


def test_a_full_group_takes_nobody() -> None:
    driver = GroupDriver(members_max=1)
    driver.join()
    assert driver.joined(driver.join()).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_syncs_are_checked() -> None:
    driver, first, _ = stable_pair()
    wrong = JoinReply(member_id=first.member_id, generation_id=9)
    assert driver.synced(driver.sync(wrong)).error_code is ErrorCode.ILLEGAL_GENERATION
    wrong = JoinReply(member_id="nobody", generation_id=1)
    assert driver.synced(driver.sync(wrong)).error_code is ErrorCode.UNKNOWN_MEMBER_ID
    refused = driver.synced(driver.sync(first, protocol_name="sticky"))
    assert refused.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.synced(driver.sync(first, protocol_name="range")).assignment == b"A"


def test_commits_are_checked() -> None:
    driver, first, _ = stable_pair()
    check = driver.group.check_commit
    assert check(1, Membership(first.member_id, None, 1)) is ErrorCode.NONE
    assert check(1, Membership(first.member_id, None, 0)) is ErrorCode.ILLEGAL_GENERATION
    assert check(1, Membership("", None, -1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert GroupDriver().group.check_commit(0, Membership("", None, -1)) is ErrorCode.NONE


def static_pair() -> tuple[GroupDriver, JoinReply, JoinReply]:
    driver = GroupDriver(initial_delay_s=1)
    tickets = [driver.join(instance="one"), driver.join(instance="two")]
    driver.advance_to(1)
    first, second = (driver.joined(t) for t in tickets)
    for reply, instance in ((second, "two"), (first, "one")):
        assignments = {first.member_id: b"A", second.member_id: b"B"}
        driver.sync(reply, assignments, instance)
    assert driver.group.state is GroupState.STABLE
    return driver, first, second


def test_a_static_member_comes_back_without_rebalance_and_fences_its_former_self() -> None:
    driver, first, second = static_pair()
    back = driver.joined(driver.join(instance="two"))
    assert back.generation_id == 1
    assert back.member_id != second.member_id
    assert driver.group.state is GroupState.STABLE
    assert driver.synced(driver.sync(back)).assignment == b"B"
    assert driver.heartbeat(second, "two") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(first, "one") is ErrorCode.NONE


@pytest.mark.parametrize("skips", [True, False])
def test_a_static_leader_that_comes_back_does_not_assign_anew(skips: bool) -> None:
    driver, first, _ = static_pair()
    back = driver.joined(driver.join(instance="one", skips=skips))
    assert back.skip_assignment is skips
    assert (back.leader == back.member_id) is skips
    assert bool(back.members) is skips
    assert driver.group.leader == back.member_id
    assert driver.heartbeat(first, "one") is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_is_removed_by_its_instance_id() -> None:
    driver, _, second = static_pair()
    assert driver.leave("else", "two") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.leave("", "three") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave("", "two") is ErrorCode.NONE
    assert second.member_id not in driver.group.members


class AnythingGoes(RuleBasedStateMachine):
    """Members join, sync, beat, leave, fall silent and come back, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = GroupDriver(initial_delay_s=1, members_max=5)
        self.joins: list[int] = []
        self.syncs: dict[int, int] = {}  # ticket -> generation
        self.generation = 0

    def known(self) -> list[JoinReply]:
        replies = [self.driver.responses.get(t) for t in self.joins]
        return [r for r in replies if isinstance(r, JoinReply) and r.member_id]

    @rule(
        two_step=st.booleans(),
        instance=st.sampled_from([None, None, "one", "two"]),
        sticky=st.booleans(),
    )
    def join_first(self, two_step: bool, instance: str | None, sticky: bool) -> None:
        names = ("sticky", "range") if sticky else ("range", "sticky")
        protocols = tuple((name, b"") for name in names)
        self.joins.append(
            self.driver.join(two_step=two_step, instance=instance, protocols=protocols)
        )

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def join_again(self, data: st.DataObject) -> None:
        reply = data.draw(st.sampled_from(self.known()))
        self.joins.append(self.driver.join(reply.member_id))

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        reply = data.draw(st.sampled_from(self.known()))
        assignments = {member: member.encode() for member in self.driver.group.members}
        self.syncs[self.driver.sync(reply, assignments)] = reply.generation_id

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        self.driver.heartbeat(data.draw(st.sampled_from(self.known())))

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.driver.leave(data.draw(st.sampled_from(self.known())).member_id)

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.driver.advance_to(self.driver.now + seconds)

    @invariant()
    def generations_only_rise(self) -> None:
        assert self.driver.group.generation >= self.generation
        self.generation = self.driver.group.generation

    @invariant()
    def the_limit_holds(self) -> None:
        group = self.driver.group
        assert len(group.members) + len(group.pending) <= 5

    @invariant()
    def members_are_counted_by_protocol(self) -> None:
        group = self.driver.group
        names = [name for m in group.members.values() for name in dict(m.request.protocols)]
        assert group._members_with == Counter(names)

    @invariant()
    def a_settled_group_has_a_leader_among_its_members(self) -> None:
        group = self.driver.group
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert group.leader in group.members
            assert all(m.respond_to_join is None for m in group.members.values())
        assert (group.state is GroupState.EMPTY) <= (not group.members)

    @invariant()
    def one_generation_has_one_leader_and_one_protocol(self) -> None:
        protocols: dict[int, set[str | None]] = {}
        for reply in self.known():
            if reply.error_code is ErrorCode.NONE:
                protocols.setdefault(reply.generation_id, set()).add(reply.protocol_name)
        assert all(len(names) == 1 for names in protocols.values())

    def teardown(self) -> None:
        """Nobody waits for ever: when all fall silent, every request has been answered."""
        self.driver.advance_to(self.driver.now + 1000)
        assert set(self.joins) | set(self.syncs) <= self.driver.responses.keys()
        assert self.driver.group.unused
        for ticket, reply in self.driver.responses.items():
            if ticket in self.syncs:
                assert not isinstance(reply, JoinReply)


TestAnythingGoes = AnythingGoes.TestCase
