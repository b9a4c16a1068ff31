"""`python -m benchmarks.hostile`: how hostile clients affect a consumer of the tail.

Fifty hostile connections (`hostile_connections`) run beside a consumer that reads the tail. The
consumer is measured with and without them in turn. *Without credentials*: the brokers' listener
asks for SASL; the consumer has logged in and the hostile clients cannot. *Elsewhere*: the hostile
clients attack a listener that only closes connections (`closing_listener`), which shows how much
the machine alone suffers. *Open*: the listener asks for no credentials, so the proxy parses what
the hostile clients send.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.contestants import FetchproxyServer
from benchmarks.frame import Outcome, Part, Size, child
from benchmarks.goals import TAIL_BESIDE_HOSTILE
from benchmarks.process_usage import resident_mib_max
from benchmarks.report import Row, goal_rows, percentile, ratios, row
from lab.process import ServerProcess, free_port, port_responses
from lab.secured_kafka import SecuredKafka

STRANGERS, OPEN = "without credentials", "open"
CALM, HOSTILE, ELSEWHERE = "calm", "hostile", "hostile elsewhere"
_WAYS = {STRANGERS: (CALM, ELSEWHERE, HOSTILE), OPEN: (CALM, HOSTILE)}
USER, PASSWORD = "alice", "alice-secret"
TOPIC = "benchmark-hostile"
_SETTLE_S = 1.0
_WARM_UP_SAMPLES = 500
# On the open listener, the broker itself answers the hostile clients and uses a whole core for it.
# A record then takes ten times as long. The figure is shown, but it is not a goal.
_OPEN_SHARE = 10
# The broker reserves memory for the size that each request announces, before the request has
# arrived: 90 MiB for several.
_BROKER_HEAP = "2g"
_PROJECT = Path(__file__).parents[1]


@dataclass(slots=True)
class Measured:
    """`latencies`: milliseconds of each record by (listener, way), with a list for each round."""

    latencies: dict[tuple[str, str], list[list[float]]] = field(default_factory=dict)
    # By listener: (peak memory, planned memory) for each round.
    memory_mib: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    attacks: Counter[str] = field(default_factory=Counter)  # on the proxy, by kind
    # By (listener, way): attacks a second for each round. A comparison of two ways needs the same.
    attack_rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)


def rows_of(measured: Measured) -> list[Row]:
    def p99s(listener: str, how: str) -> list[float]:
        return [percentile(samples, 99) for samples in measured.latencies[listener, how]]

    ratios_by_listener = {
        each: ratios(p99s(each, HOSTILE), p99s(each, CALM)) for each in (STRANGERS, OPEN)
    }
    shares = {
        listener: [most / plan for most, plan in rounds]
        for listener, rounds in measured.memory_mib.items()
    }
    worst = [max(together) for together in zip(*shares.values(), strict=True)]
    rows = goal_rows(TAIL_BESIDE_HOSTILE, ratios_by_listener[STRANGERS], worst)
    calm, hostile, elsewhere = (p99s(STRANGERS, how) for how in (CALM, HOSTILE, ELSEWHERE))
    only_closes = "a listener that only closes"
    rows.append(row(f"the same harm to {only_closes} : without", "x", ratios(elsewhere, calm)))
    rows.append(row(f"harm to the proxy : to {only_closes}", "x", ratios(hostile, elsewhere)))
    rows.append(row(f"the same, {OPEN}: what they send is parsed", "x", ratios_by_listener[OPEN]))
    for (listener, how), rounds in measured.latencies.items():
        for percent in (50, 99):
            values = [percentile(samples, percent) for samples in rounds]
            rows.append(row(f"tail p{percent}, {listener}, {how}", "ms", values))
    for listener, listener_samples in measured.memory_mib.items():
        rows.append(
            row(f"memory of the proxy, {listener}", "MiB", [most for most, _ in listener_samples])
        )
    for (listener, how), rates in measured.attack_rates.items():
        rows.append(row(f"attacks, {listener}, {how}", "1/s", rates))
    rows.append(row("harm done", "times", [measured.attacks.total()]))
    return rows


@contextmanager
def beside(bootstrap: str, connections: int) -> Iterator[Counter[str]]:
    """Yields a counter; it has the attacks by kind when the context has ended."""
    command = [sys.executable, "-m", "benchmarks.hostile_connections", bootstrap, str(connections)]
    attacks: Counter[str] = Counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=_PROJECT,
        start_new_session=True,  # its low priority counts by session (`yield_to_others`)
    ) as process:
        try:
            yield attacks
        finally:
            printed, _ = process.communicate(b"", timeout=30)
            attacks.update(json.loads(printed or b"{}"))


@contextmanager
def closing_listener() -> Iterator[str]:
    """Yields its address."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.closing_listener", str(port)]
    with tempfile.TemporaryDirectory(prefix="closing-listener-") as folder:
        process = ServerProcess("closing listener", command, Path(folder) / "log", cwd=_PROJECT)
        process.start()
        try:
            process.wait_until(lambda: port_responses(port), timeout_s=30.0)
            yield f"127.0.0.1:{port}"
        finally:
            process.stop()


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    measured = Measured()
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    as_user = {
        "cluster.security_protocol": "SASL_PLAINTEXT",
        "cluster.sasl_mechanism": "PLAIN",
        "cluster.sasl_username": USER,
    }
    secret = {"FETCHPROXY_CLUSTER_SASL_PASSWORD": PASSWORD}
    with ExitStack() as running:
        kafka = running.enter_context(SecuredKafka({USER: PASSWORD}, heap=_BROKER_HEAP))
        kafka.create_topic(TOPIC)
        for resource in ("TOPIC", "GROUP"):
            kafka.allow(USER, "*", "READ", resource=resource)
        proxies = {
            STRANGERS: running.enter_context(FetchproxyServer(kafka.sasl, as_user, None, secret)),
            OPEN: running.enter_context(FetchproxyServer(kafka.bootstrap)),
        }
        targets = {(HOSTILE, each): proxy.bootstrap for each, proxy in proxies.items()}
        targets[ELSEWHERE, STRANGERS] = running.enter_context(closing_listener())
        for number in range(options.rounds + 1):  # round 0 warms up, and is a short one
            for listener, proxy in proxies.items():
                count = options.samples // (_OPEN_SHARE if listener == OPEN else 1)
                if not number:
                    count = min(count, _WARM_UP_SAMPLES)
                way = (proxy.bootstrap, TOPIC, login if listener == STRANGERS else {})
                for how in _WAYS[listener] if number % 2 else reversed(_WAYS[listener]):
                    begun_at = time.monotonic()
                    with ExitStack() as harm:
                        attacks: Counter[str] = Counter()
                        if how != CALM:
                            target = targets[how, listener]
                            attacks = harm.enter_context(beside(target, options.connections))
                        time.sleep(_SETTLE_S)
                        samples = child(
                            "benchmarks.latency_probe",
                            *(kafka.bootstrap, str(count)),
                            json.dumps([(how, *way)]),
                        )[how]
                    if not number:
                        continue
                    measured.latencies.setdefault((listener, how), []).append(samples)
                    if how != CALM:
                        rate = attacks.total() / (time.monotonic() - begun_at)
                        measured.attack_rates.setdefault((listener, how), []).append(rate)
                    if how == HOSTILE:
                        measured.attacks += attacks
                        plan = proxy.metric("fetchproxy_memory_budget_bytes") / 2**20
                        measured.memory_mib.setdefault(listener, []).append(
                            (resident_mib_max(proxy.pid), plan)
                        )
            console.print(f"round {number} of {options.rounds}" if number else "warm-up")
    return Outcome(rows_of(measured), {"harm": dict(measured.attacks)})


PART = Part(
    name="hostile",
    title="The tail beside clients that mean harm: medians of the rounds, ratios within a round",
    description=__doc__,
    sizes=(
        Size("rounds", 5, 1, "with and without them in turn"),
        Size("connections", 50, 20, "that mean harm"),
        Size("samples", 2_000, 100, "records a round, some 6 ms each: five minutes"),
    ),
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(PART.main())
