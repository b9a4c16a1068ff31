from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.runtime.fairness import WAIT_SHOWN_S, FairQueue, FairTurns

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


def test_of_clients_that_are_level_the_one_with_the_smaller_item_goes_first() -> None:
    queue: FairQueue[int] = FairQueue()
    for client in range(5):
        queue.push(f"large-{client}", client, 40)
        queue.push(f"large-{client}", 10 + client, 40)
    assert queue.pop() == 0
    for item in range(100, 103):
        queue.push("small", item, 4)
        assert queue.pop() == item


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


class Turns:
    """Workers that hold their turn until they are told to end it."""

    def __init__(self, at_once: int) -> None:
        self.turns = FairTurns(at_once)
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def ask(self, client: Hashable, name: str, cost: int = 1) -> None:
        self._ends[name] = asyncio.Event()

        async def work() -> None:
            async with self.turns.turn(client, cost):
                self.begun.append(name)
                await self._ends[name].wait()

        self.tasks[name] = asyncio.create_task(work())
        await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)

    async def cancel(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
        await asyncio.wait([self.tasks[name] for name in names])
        await asyncio.sleep(0)


async def test_clients_take_turns() -> None:
    turns = Turns(2)
    for n in range(4):
        await turns.ask("many", f"many-{n}")
    await turns.ask("one", "one")
    assert (turns.begun, turns.turns.waiting) == (["many-0", "many-1"], 3)
    for name in ("many-0", "many-1", "many-2", "one", "many-3"):
        await turns.end(name)
    assert turns.begun == ["many-0", "many-1", "many-2", "one", "many-3"]
    assert turns.turns.waiting == 0


async def test_who_has_gone_leaves_the_queue_and_gives_its_turn_back() -> None:
    turns = Turns(1)
    for name in ("first", "second", "third", "fourth"):
        await turns.ask(name, name)
    await turns.cancel("second")
    assert turns.turns.waiting == 2
    await turns.cancel("first")
    assert turns.begun == ["first", "third"]
    turns.tasks["third"].cancel()
    await turns.cancel("fourth")  # both at once: its turn would come in this step
    await turns.ask("fifth", "fifth")
    assert turns.begun == ["first", "third", "fifth"]
    await turns.end("fifth")


async def test_a_long_wait_is_a_condition_that_names_who_waits_for_most() -> None:
    turns = Turns(1)
    now = asyncio.get_running_loop().time
    await turns.ask("one", "first")
    assert not list(turns.turns.conditions(now() + WAIT_SHOWN_S))
    for n in range(3):
        await turns.ask(("10.0.0.1", "x" * 10_000), f"many-{n}")
    await turns.ask("one", "last")
    assert not list(turns.turns.conditions(now()))
    (condition,) = turns.turns.conditions(now() + WAIT_SHOWN_S)
    assert condition.what.startswith("4 turns wait, 3 of them of '10.0.0.1 xxx")
    assert len(condition.what) < 200
    await turns.cancel(*turns.tasks)
    assert not list(turns.turns.conditions(now() + WAIT_SHOWN_S))


async def test_another_client_may_wait_for_the_same_turn() -> None:
    turns = FairTurns(1)
    begun: list[str] = []

    async def work(client: str, name: str) -> None:
        async with turns.turn(client, name=name):
            begun.append(name)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for n in range(5):
            tasks.create_task(work("many", f"many-{n}"))
        await asyncio.sleep(0)
        turns.join("many-4", "other")
        turns.join("gone", "other")
    assert begun == ["many-0", "many-1", "many-4", "many-2", "many-3"]
    turns.join("many-4", "other")
    assert turns.waiting == 0
