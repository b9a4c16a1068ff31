from __future__ import annotations

import asyncio
from contextlib import ExitStack
from random import Random

import pytest
from fetchproxy_protocol.primitives import Buffer
from virtual_loop import run_virtual

from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.serving.admission import ResponseBudget

RESPONSE_MAX, TOTAL_MAX = 100, 1000
CHUNK = 200


def chunk(size: int = CHUNK) -> memoryview:
    return memoryview(bytes(size))


def test_what_counts_is_the_chunk_behind_the_records_and_it_counts_once() -> None:
    budget = ResponseBudget(RESPONSE_MAX, TOTAL_MAX)
    shared, other = chunk(), chunk()
    with ExitStack() as responses:
        responses.enter_context(budget.taking([b"head", shared[:10], shared[50:90]]))
        assert budget.bytes_in_use == CHUNK + 4
        for _ in range(100):
            responses.enter_context(budget.taking([shared[20:120]]))
        assert budget.bytes_in_use == CHUNK + 4
        responses.enter_context(budget.taking([other[:150]]))
        assert budget.bytes_in_use == 2 * CHUNK + 4
    assert budget.bytes_in_use == 0


def test_the_metrics_say_what_is_taken_now() -> None:
    budget = ResponseBudget(RESPONSE_MAX, TOTAL_MAX)

    def bytes_shown() -> set[float | None]:
        part = {"part": "gateway.remote_answers_bytes_max"}
        memory = REGISTRY.get_sample_value("fetchproxy_memory_used_bytes", part)
        return {memory, REGISTRY.get_sample_value("fetchproxy_remote_answer_bytes")}

    with budget.taking([chunk()]):
        assert bytes_shown() == {CHUNK}
    assert bytes_shown() == {0}


def test_answers_are_cut_to_what_is_left_and_single_batches_have_a_reserve() -> None:
    budget = ResponseBudget(RESPONSE_MAX, TOTAL_MAX)
    rooms = []
    with ExitStack() as responses:
        while not budget.full:
            rooms.append(budget.room())
            responses.enter_context(budget.taking([bytes(max(rooms[-1], 70))]))
        assert rooms == [100] * 7 + [50] + [0] * 4
        assert budget.bytes_in_use == TOTAL_MAX + 50  # by less than one batch
    assert budget.room() == RESPONSE_MAX


def test_when_memory_is_short_records_are_copied_out_of_chunks_they_hardly_use() -> None:
    budget = ResponseBudget(RESPONSE_MAX, TOTAL_MAX)
    little, much = chunk(), chunk()
    pieces: list[Buffer] = [b"head", little[:30], much[:150]]
    with budget.taking(pieces) as pieces_sent:
        assert [
            piece is piece_before for piece, piece_before in zip(pieces_sent, pieces, strict=True)
        ] == [True] * 3
        assert budget.bytes_in_use == 2 * CHUNK + 4
    with budget.taking([bytes(500)]), budget.taking(pieces) as pieces_sent:
        assert list(map(bytes, pieces_sent)) == list(map(bytes, pieces))
        assert pieces_sent[2] is pieces[2]
        assert budget.bytes_in_use == 500 + 4 + 30 + CHUNK
    assert budget.bytes_in_use == 0


def test_who_finds_no_room_waits_for_an_answer_to_leave_and_no_longer_than_it_may() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        budget = ResponseBudget(RESPONSE_MAX, TOTAL_MAX)
        began = loop.time()
        await budget.wait_for_room(began + 5)
        assert loop.time() == began
        waited: list[float] = []

        async def wait(for_s: float) -> None:
            await budget.wait_for_room(began + for_s)
            waited.append(loop.time() - began)

        with budget.taking([bytes(TOTAL_MAX)]):
            async with asyncio.TaskGroup() as group:
                for for_s in (1, 9, 9):
                    group.create_task(wait(for_s))
                await asyncio.sleep(3)
                with budget.taking([b"x"]):
                    pass  # one response has left, and the budget is still full
                await asyncio.sleep(1)
                assert waited == [1]
        assert waited == [1, 9, 9]

    run_virtual(main)


def test_room_is_handed_on_in_the_order_of_waiting() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        budget = ResponseBudget(RESPONSE_MAX, TOTAL_MAX)
        began = loop.time()
        order: list[int] = []

        async def wait(number: int) -> None:
            await budget.wait_for_room(began + 100)
            order.append(number)
            with budget.taking([bytes(300)]):
                await asyncio.sleep(1)

        async with asyncio.TaskGroup() as group:
            with budget.taking([bytes(TOTAL_MAX)]):
                tasks = [group.create_task(wait(number)) for number in range(8)]
                await asyncio.sleep(1)
                tasks[2].cancel()
                await asyncio.sleep(1)
                assert order == []
            await asyncio.sleep(0.5)
            assert order == [0, 1, 3, 4]  # 1200 of 1000: the last had room for one batch
        assert order == [0, 1, 3, 4, 5, 6, 7]
        assert loop.time() == began + 4

    run_virtual(main)

    run_virtual(main)


@pytest.mark.parametrize("seed", range(10))
def test_however_many_take_nothing_the_limit_holds(seed: int) -> None:
    """Answers begin and end at random; each is cut as the gateway cuts it, to at least a batch."""
    rng = Random(seed)
    budget = ResponseBudget(RESPONSE_MAX, TOTAL_MAX)
    under_way: list[tuple[ExitStack, list[Buffer]]] = []
    batch_max = 60
    for _ in range(2000):
        if under_way and rng.random() < 0.4:
            stack, _ = under_way.pop(rng.randrange(len(under_way)))
            stack.close()
        if not budget.full:
            size = max(rng.randint(1, batch_max), min(budget.room(), rng.randint(1, RESPONSE_MAX)))
            stack = ExitStack()
            block = chunk(rng.choice([size, size, size + 20]))
            pieces_sent = stack.enter_context(budget.taking([block[:size]]))
            under_way.append((stack, list(pieces_sent)))
        really = {id(p.obj): len(p.obj) for _, pieces_sent in under_way for p in pieces_sent
                  if isinstance(p, memoryview)}  # fmt: skip
        copies = sum(
            len(p) for _, pieces_sent in under_way for p in pieces_sent if isinstance(p, bytes)
        )
        assert budget.bytes_in_use == sum(really.values()) + copies
        assert budget.bytes_in_use <= TOTAL_MAX + batch_max + 20
    for stack, _ in under_way:
        stack.close()
    assert budget.bytes_in_use == 0
