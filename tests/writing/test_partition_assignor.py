"""How partitions are shared: evenly, with one owner each, and with few moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.writing.leadership import Member, Partition, assign

COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 12), min_size=1)
NAMES = st.sets(st.sampled_from(["m1", "m2", "m3", "m4", "m5"]), min_size=1)


def settle(
    members: Mapping[str, Member], counts: Mapping[str, int]
) -> tuple[dict[str, Member], int]:
    """Run rounds until no member gives anything back; return the members and the moves."""
    now, moved = dict(members), 0
    for generation in range(1, 5):
        parts = assign(now, counts)
        taken = [partition for part in parts.values() for partition in part]
        assert len(taken) == len(set(taken)), "two members are told to lead one partition"
        for name, part in parts.items():
            others = {p for other in now.keys() - {name} for p in now[other].owned & part}
            assert not others, "assigned while its owner still leads it"
        given_back = {name: member.owned - parts[name] for name, member in now.items()}
        moved += sum(map(len, given_back.values()))
        now = {
            name: replace(member, owned=frozenset(parts[name]), generation=generation)
            for name, member in now.items()
        }
        if not any(given_back.values()):
            return now, moved
    raise AssertionError("it does not settle")


def every(counts: Mapping[str, int]) -> set[Partition]:
    return {(topic, number) for topic, count in counts.items() for number in range(count)}


def alike(names: set[str], counts: Mapping[str, int]) -> dict[str, Member]:
    return {name: Member(frozenset(counts)) for name in names}


@given(COUNTS, NAMES)
def test_all_is_shared_out_evenly(counts: dict[str, int], names: set[str]) -> None:
    settled, moved = settle(alike(names, counts), counts)
    assert set().union(*(member.owned for member in settled.values())) == every(counts)
    sizes = [len(member.owned) for member in settled.values()]
    assert max(sizes) - min(sizes) <= 1
    assert moved == 0


@given(COUNTS, NAMES)
def test_nothing_moves_while_nothing_changes(counts: dict[str, int], names: set[str]) -> None:
    settled, _ = settle(alike(names, counts), counts)
    assert settle(settled, counts) == (
        {name: replace(member, generation=1) for name, member in settled.items()},
        0,
    )


@given(COUNTS, NAMES, st.data())
def test_a_member_that_goes_or_comes_moves_no_more_than_its_part(
    counts: dict[str, int], names: set[str], data: st.DataObject
) -> None:
    settled, _ = settle(alike(names, counts), counts)
    newcomer = {"new": Member(frozenset(counts))}
    joined, moved = settle({**settled, **newcomer}, counts)
    assert moved == len(joined["new"].owned)
    sizes = [len(member.owned) for member in joined.values()]
    assert max(sizes) - min(sizes) <= 1
    gone = data.draw(st.sampled_from(sorted(joined)))
    members_left, moved = settle({n: m for n, m in joined.items() if n != gone}, counts)
    assert moved == 0  # only partitions without an owner are assigned
    assert members_left == {} or set().union(*(m.owned for m in members_left.values())) == every(
        counts
    )


@given(COUNTS, NAMES, st.data())
def test_members_that_want_different_topics(
    counts: dict[str, int], names: set[str], data: st.DataObject
) -> None:
    wants = st.frozensets(st.sampled_from(sorted(counts)))
    members = {name: Member(data.draw(wants)) for name in sorted(names)}
    settled, _ = settle(members, counts)
    for name, member in settled.items():
        assert {topic for topic, _ in member.owned} <= members[name].topics
    topics = frozenset().union(*(m.topics for m in members.values()))
    assert set().union(*(m.owned for m in settled.values())) == {
        p for p in every(counts) if p[0] in topics
    }


def test_of_two_that_claim_the_same_the_newer_generation_is_right() -> None:
    topics = frozenset("a")
    both = frozenset({("a", 0), ("a", 1)})
    members = {"old": Member(topics, both, 3), "new": Member(topics, both, 7)}
    first = assign(members, {"a": 2})
    assert first["new"] <= both
    assert len(first["new"]) == 1
    assert first["old"] == set()  # it gets its partition in the next round
