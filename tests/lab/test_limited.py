"""How a trial gives a process other limits: said once, and only what there is."""

from __future__ import annotations

import json
import sys

import pytest
from pydantic import ValidationError

from fetchproxy.app import LIMITS
from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.writing.limits import WritingLimits
from lab.limited import command, limits_of, options, section_and_limits

SETTINGS = {"gateway.idle_max_ms": 5, "limits.serving.half_frame_max_ms": 7}


def test_settings_and_limits_of_one_mapping() -> None:
    limits = json.dumps({"serving.half_frame_max_ms": 7})
    assert command(SETTINGS) == [sys.executable, "-m", "lab.limited", limits]
    assert options(SETTINGS) == ["--set", "gateway.idle_max_ms=5"]
    assert command({"gateway.idle_max_ms": 5}) == [sys.executable, "-m", "fetchproxy"]


def test_what_is_changed_and_what_is_not() -> None:
    limits = limits_of({"serving.half_frame_max_ms": "7", "tls_reload_interval_ms": 9})
    assert limits.serving.half_frame_max_ms == 7
    assert limits.tls_reload_interval_ms == 9
    assert limits.serving.client_stall_max_ms == LIMITS.serving.client_stall_max_ms
    assert limits.reading == LIMITS.reading


@pytest.mark.parametrize("key", ["serving.no_such_limit", "no_such_limit"])
def test_a_limit_that_there_is_not(key: str) -> None:
    with pytest.raises(TypeError):
        limits_of({key: 1})


def test_a_section_and_its_limits() -> None:
    config, limits = section_and_limits(
        ArchiveConfig, WritingLimits, topics="t", discovery_interval_ms=1
    )
    assert (config.topics, limits.discovery_interval_ms) == ("t", 1)
    with pytest.raises(ValidationError):
        section_and_limits(ArchiveConfig, WritingLimits, no_such_name=1)
