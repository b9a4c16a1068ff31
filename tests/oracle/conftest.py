"""Both sides, started once for all of this folder, and what a run's end says of differences."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from folder_fixture import folder_fixture
from oracle_rules import Findings, explained
from oracle_steps import Scene, Shape, Step
from oracle_world import World

from lab.errors import PartMissing
from lab.kafka_versions import KAFKA_NEWEST

_counted = pytest.StashKey[Counter[str]]()
_steps = pytest.StashKey[list[int]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_counted] = Counter()
    config.stash[_steps] = [0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    steps, counted = config.stash[_steps][0], config.stash[_counted]
    if not steps:
        return
    met = ", ".join(f"{id} ×{count}" for id, count in sorted(counted.items()))
    terminalreporter.write_line(f"oracle: {steps} generated steps; explained: {met or 'none'}")
    unmet = sorted(explained().keys() - counted.keys())
    if unmet:
        terminalreporter.write_line(f"oracle: listed, but not met in this run: {', '.join(unmet)}")


@folder_fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A tiered Kafka, and a plain one behind fetchproxy. Use topics of your own."""
    yield from started(World(tmp_path_factory.mktemp("oracle")))


@folder_fixture
def newest_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The same with the newest Kafka."""
    yield from started(World(tmp_path_factory.mktemp("oracle"), KAFKA_NEWEST))


def started(made: World) -> Iterator[World]:
    try:
        made.__enter__()
    except PartMissing as missing:
        if "kafka" in os.environ.get("FETCHPROXY_REQUIRE_PARTS", ""):
            pytest.fail(f"required part kafka: {missing}", pytrace=False)
        pytest.skip(f"part kafka: {missing}")
    try:
        yield made
        assert not made.proxied.crashes(), made.proxied.crashes()[:3]
    finally:
        made.__exit__(None, None, None)


Play = Callable[..., Scene]


@pytest.fixture
def play(world: World, tally: Tally) -> Iterator[Play]:
    """`play(step, …)` runs steps on one topic (`shape` at the first call), and goes on."""
    yield from playing(world, tally)


@pytest.fixture
def play_newest(newest_world: World, tally: Tally) -> Iterator[Play]:
    yield from playing(newest_world, tally)


def playing(world: World, tally: Tally) -> Iterator[Play]:
    scenes: list[Scene] = []

    def run(*steps: Step, shape: Shape = (1,)) -> Scene:
        if not scenes:
            scenes.append(Scene(world, Findings(), world.new_topics(*shape)))
        scene = scenes[0]
        for step in steps:
            scene.run(step)
            assert not scene.findings.unexplained, (
                f"{step} → {[*map(str, scene.findings.unexplained)]}"
            )
        return scene

    yield run
    for scene in scenes:
        tally(scene.findings)
        scene.clear()


Tally = Callable[..., None]


@pytest.fixture
def tally(pytestconfig: pytest.Config) -> Tally:
    """`tally(found, steps)` adds to what the run's end says."""

    def add(findings: Findings, steps: int = 0) -> None:
        pytestconfig.stash[_counted].update(findings.counted)
        pytestconfig.stash[_steps][0] += steps

    return add
