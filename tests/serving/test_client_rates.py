from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taken_settings import take_into
from virtual_loop import run_virtual

from fetchproxy.config.reloading import own_copy
from fetchproxy.config.schema import Config
from fetchproxy.serving.admission import (
    PAUSE_MAX_S,
    PAYERS_MAX,
    Admission,
    ClientQuota,
    ClientRates,
    ResponseBudget,
    ResponseTurns,
    admission_of,
    payer_of,
)
from fetchproxy.serving.client_groups import GroupsOfClients
from fetchproxy.serving.consumer_pacing import ConsumerPaces
from fetchproxy.serving.limits import ServingLimits, to_close
from fetchproxy.storage.reader_accounts import ReaderAccounts

RATE = 1000
A, B = "10.0.0.1", "10.0.0.2"


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def share_of(rates: ClientRates) -> ClientQuota:
    consumer_paces = ConsumerPaces(asyncio.get_running_loop().time)
    return ClientQuota(
        Admission(
            *(ResponseBudget(1, 1), ResponseTurns(1, 1.0), rates, consumer_paces),
            *(ReaderAccounts(), GroupsOfClients()),
        ),
        A,
    )


def test_who_had_too_much_owes_the_time_that_it_would_have_taken() -> None:
    clock = Clock()
    rates = ClientRates(lambda: RATE, clock)
    assert rates.spend(A, 1000) == 0  # one second's worth is saved up
    assert rates.spend(A, 2500) == 2.5
    assert (rates.owed_s(A), rates.owed_s(B)) == (2.5, 0)
    clock.now += 1
    assert rates.owed_s(A) == 1.5
    clock.now += 100
    assert rates.owed_s(A) == 0
    assert rates.spend(A, 1500) == 0.5  # no more than one second's worth was saved


def test_a_long_debt_is_told_in_parts() -> None:
    clock = Clock()
    rates = ClientRates(lambda: RATE, clock)
    rates.spend(A, 101 * RATE)
    waited = 0.0
    while owed := rates.owed_s(A):
        assert owed <= PAUSE_MAX_S
        clock.now += owed
        waited += owed
    assert round(waited, 6) == 100


class Peer(asyncio.BaseTransport):
    """A transport that knows its peer's address and certificate only."""

    def __init__(self, address: str, certificate: dict[str, object] | None = None) -> None:
        super().__init__({"peername": (address, 50_000), "peercert": certificate})


SUBJECT = ((("organizationName", "x"),), (("commonName", "orders"),))


def test_an_address_counts_whatever_its_port_and_for_ipv6_its_network() -> None:
    assert payer_of(Peer("10.0.0.1")) == "10.0.0.1"
    assert payer_of(Peer("::ffff:10.0.0.1")) == "10.0.0.1"  # from a listener on both kinds
    assert payer_of(Peer("2001:db8:1:2::1")) == payer_of(Peer("2001:db8:1:2:ffff::9"))
    assert payer_of(Peer("2001:db8:1:2::1")) != payer_of(Peer("2001:db8:1:3::1"))
    assert payer_of(Peer("fe80::1%eth0")) == "fe80::/64"
    assert payer_of(Peer("host")) == "host"
    assert payer_of(asyncio.BaseTransport()) == "unknown"


def test_a_verified_certificate_counts_from_wherever_it_comes() -> None:
    orders = {"subject": SUBJECT}
    assert payer_of(Peer("10.0.0.1", orders)) == payer_of(Peer("10.0.0.2", orders))
    named = {"subject": (), "subjectAltName": (("URI", "spiffe://x/orders"),)}
    assert payer_of(Peer("10.0.0.1", named)) not in ("10.0.0.1", payer_of(Peer("", orders)))
    # An unverified certificate, or one without a name, counts as none.
    assert payer_of(Peer("10.0.0.1", {})) == payer_of(Peer("10.0.0.1", {"subject": ()}))


def test_one_answer_is_a_seconds_worth() -> None:
    assert ClientRates(lambda: RATE, Clock()).room(5000) == RATE
    assert ClientRates(lambda: RATE, Clock()).room(10) == 10


def test_without_a_limit_nobody_owes() -> None:
    rates = ClientRates(lambda: 0, Clock())
    assert (rates.spend(A, 10**12), rates.owed_s(A), rates.room(10**12)) == (0, 0, 10**12)


def test_clients_remembered_are_bounded() -> None:
    rates = ClientRates(lambda: RATE, Clock())
    for number in range(PAYERS_MAX + 10):
        rates.spend(str(number), 5 * RATE)
    assert rates.owed_s("0") == 0
    assert rates.owed_s(str(PAYERS_MAX)) > 0


def test_a_client_is_told_no_less_than_it_owes_and_counts_as_having_waited() -> None:
    async def main() -> None:
        clock = asyncio.get_running_loop().time
        share = share_of(ClientRates(lambda: RATE, clock))
        assert share.charge(2500, must_wait=True) == 1501
        began = clock()
        await share.pay()
        assert clock() - began == 1.5
        await share.pay()
        assert clock() - began == 1.5

    run_virtual(main)


def test_connections_of_one_client_have_their_turns() -> None:
    """Each connection that has waited is served, even if another just used up the rate."""

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        rates = ClientRates(lambda: RATE, clock)
        served = [0, 0, 0]

        async def connection(number: int) -> None:
            share = share_of(rates)
            while clock() < began + 60:
                size = 0 if share.owed_s() else 800
                served[number] += size
                share.charge(size, must_wait=True)
                await share.pay()
                await asyncio.sleep(0.001)

        began = clock()
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(connection(number))
        assert 0.9 * 60 * RATE <= sum(served) <= 61 * RATE + 3 * 800
        assert max(served) - min(served) <= 3 * 800

    run_virtual(main)


def test_who_may_not_be_kept_waiting_pays_before_it_has_more() -> None:
    async def main() -> None:
        share = share_of(ClientRates(lambda: RATE, asyncio.get_running_loop().time))
        assert share.charge(3000, must_wait=False) == 0
        await share.pay()
        assert share.owed_s() == 2

    run_virtual(main)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers()), max_size=30), st.integers(0, 500))
def test_those_that_hold_most_are_closed_and_no_more_than_need_be(
    sizes_and_ages: list[tuple[int, int]], bytes_max: int
) -> None:
    closed = to_close(sizes_and_ages, bytes_max)
    sizes_left = [
        size for size, _ in sorted(sizes_and_ages, reverse=True, key=lambda pair: pair[0])
    ][len(closed) :]
    assert sum(sizes_left) <= bytes_max
    if closed:
        smallest = sorted((size for size, _ in sizes_and_ages), reverse=True)[len(closed) - 1]
        assert sum(sizes_left) + smallest > bytes_max


@pytest.mark.live("remote_fetch.client_bytes_per_s_max")
def test_a_rate_that_changes_counts_from_then_on() -> None:
    clock, config = Clock(), own_copy(Config())
    rates = admission_of(config, ServingLimits(), clock, ReaderAccounts()).rates
    assert rates.spend(A, 10 * RATE) == 0
    take_into(config.remote_fetch, client_bytes_per_s_max=RATE)
    assert rates.room(10 * RATE) == RATE
    assert rates.spend(A, 3 * RATE) == 2
    take_into(config.remote_fetch, client_bytes_per_s_max=0)
    assert rates.owed_s(A) == 0, "whoever owes may go on at once"
    assert rates.room(10 * RATE) == 10 * RATE
