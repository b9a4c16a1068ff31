"""Which Spark a job runs on."""

from __future__ import annotations

import importlib.util

import pytest

from fetchproxy.errors import ConfigError
from fetchproxy.remotelog.session import require_extra, session_settings


def test_without_a_master_this_process_is_spark_and_tasks_that_are_lost_are_done_again() -> None:
    settings = session_settings(None, under_submit=False, cores=3, more={})
    assert settings["spark.master"] == "local[3,4]"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"


def test_what_spark_submit_was_given_counts() -> None:
    settings = session_settings(None, under_submit=True, cores=3, more={"spark.x": "1"})
    assert "spark.master" not in settings
    assert settings["spark.x"] == "1"


def test_a_master_is_taken_and_nothing_of_a_local_one() -> None:
    settings = session_settings("spark://a:7077", under_submit=True, cores=3, more={})
    assert settings["spark.master"] == "spark://a:7077"
    assert "spark.driver.bindAddress" not in settings


def test_settings_have_the_last_word() -> None:
    more = {"spark.master": "local[1]", "spark.ui.enabled": "true"}
    settings = session_settings(None, under_submit=False, cores=3, more=more)
    assert settings | more == settings


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("fetchproxy.remotelog.session.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[spark\]'"):
        require_extra("pyspark")
