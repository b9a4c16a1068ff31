"""Each setting that SIGHUP takes has a test that changes it while its part runs."""

from __future__ import annotations

from marked_tests import marked

from fetchproxy.config.load import all_keys

TRIED = marked("live")


def test_each_live_setting_is_changed_by_a_test() -> None:
    """Mark that test: `@pytest.mark.live("section.key")`."""
    assert {key.dotted for key in all_keys().values() if key.live} - TRIED == set()


def test_marks_name_live_settings() -> None:
    keys = all_keys()
    assert [name for name in TRIED if name not in keys or keys[name].live is None] == []
