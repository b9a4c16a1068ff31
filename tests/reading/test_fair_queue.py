from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.runtime.fairness import FairQueue

COST_MAX = 40


def drain(queue: FairQueue[int]) -> list[int]:
    order = []
    while queue:
        order.append(queue.pop())
    return order


def test_a_client_with_one_read_waits_for_one_of_another_with_a_hundred() -> None:
    queue: FairQueue[int] = FairQueue()
    for item in range(100):
        queue.push("many", item, 4)
    queue.push("one", 1000, 4)
    assert drain(queue)[:3] == [0, 1000, 1]


def test_reads_of_one_size_are_served_round_robin_and_each_clients_own_in_order() -> None:
    queue: FairQueue[int] = FairQueue()
    for item in range(9):
        queue.push("abc"[item // 3], item, 5)
    assert drain(queue) == [0, 3, 6, 1, 4, 7, 2, 5, 8]


def test_turns_are_by_bytes() -> None:
    queue: FairQueue[int] = FairQueue()
    for item in range(4):
        queue.push("large", item, 40)
    for item in range(100, 140):
        queue.push("small", item, 10)
    order = drain(queue)
    # Once both wait, four small ones go for each large one.
    assert [sum(i >= 100 for i in order[a:b]) for a, b in pairwise([0, 5, 10, 15])] == [4, 4, 4]


def test_what_nobody_else_wanted_is_held_against_nobody() -> None:
    queue: FairQueue[int] = FairQueue()
    for item in range(60):
        queue.push("early", item, 10)
    for _ in range(50):
        queue.pop()
    for item in range(100, 110):
        queue.push("late", item, 10)
    order = drain(queue)
    assert sum(item >= 100 for item in order[:10]) in (5, 6)


def test_one_that_comes_back_at_once_does_not_starve_the_rest() -> None:
    """It never has two reads in the queue, and its reads are small."""
    queue: FairQueue[int] = FairQueue()
    for item in range(20):
        queue.push("deep", item, 40)
    served: Counter[str] = Counter()
    for item in range(1000, 1200):
        queue.push("quick", item, 10)
        popped = queue.pop()
        while popped < 1000:
            served["deep"] += 40
            popped = queue.pop()
        served["quick"] += 10
        if served["deep"] == 800:
            break
    assert served["deep"] == 800
    assert abs(served["deep"] - served["quick"]) <= 2 * COST_MAX


def test_whose_read_waits_for_room_keeps_the_turn() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.push("large", 1, 1000)
    queue.push("large", 2, 1000)
    queue.pop()
    assert queue.head() == 2
    queue.push("new", 3, 1)
    assert queue.head() == 2
    assert drain(queue) == [2, 3]


def test_a_read_that_two_wait_for_goes_with_the_first_turn_and_once() -> None:
    queue: FairQueue[int] = FairQueue()
    for item in range(10):
        queue.push("many", item, 4)
    queue.join(9, "one")
    queue.join(9, "one")
    queue.join(77, "one")  # 77 no longer waits
    assert (len(queue), queue.clients) == (10, 2)
    assert drain(queue) == [0, 9, 1, 2, 3, 4, 5, 6, 7, 8]
    assert (len(queue), queue.clients, queue.head()) == (0, 0, None)


def test_who_left_the_queue_has_no_turn() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.push("a", 1, 4)
    queue.push("b", 2, 4)
    assert queue.head() == 1
    assert queue.remove(1)
    assert not queue.remove(1)
    assert queue.head() == 2
    assert drain(queue) == [2]


@given(st.integers(0, 2**32), st.integers(2, 6))
def test_clients_that_wait_are_never_far_apart(seed: int, clients: int) -> None:
    """With any mixture of pushes, joins and removals, served bytes differ by at most two reads."""
    rng = Random(seed)
    queue: FairQueue[int] = FairQueue()
    waiting: dict[int, tuple[str, int]] = {}
    # Two clients always wait, with reads of their own; the others come and go.
    served: Counter[str] = Counter()
    number = 0

    def push(client: str, cost: int) -> None:
        nonlocal number
        number += 1
        waiting[number] = (client, cost)
        queue.push(client, number, cost)

    for _ in range(rng.randint(1, 50)):
        push("A", rng.randint(1, COST_MAX))
    push("B", COST_MAX)
    for _ in range(200):
        for client in ("A", "B"):
            if not any(owner == client for owner, _ in waiting.values()):
                push(client, rng.randint(1, COST_MAX))
        action = rng.random()
        others = [item for item, (owner, _) in waiting.items() if owner not in "AB"]
        if action < 0.3:
            push(f"other {rng.randrange(clients)}", rng.randint(1, COST_MAX))
        elif action < 0.4 and others:
            item = rng.choice(others)
            queue.remove(item)
            del waiting[item]
        elif action < 0.5 and others:
            queue.join(rng.choice(others), f"other {rng.randrange(clients)}")
        else:
            item = queue.head()
            assert item is not None
            assert queue.pop() == item
            owner, cost = waiting.pop(item)
            served[owner] += cost
        assert len(queue) == len(waiting)
        assert abs(served["A"] - served["B"]) <= 2 * COST_MAX
    assert sorted(drain(queue)) == sorted(waiting)
