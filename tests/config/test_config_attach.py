from __future__ import annotations

import pytest

from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.values import Attachment, parse_attachments
from fetchproxy.errors import ConfigError


def test_attachments() -> None:
    assert parse_attachments("") == []
    text = "a=file:///x#orders\n  b.old=s3://bucket/p?region=eu&endpoint_url=http://h:1#orders-v2 "
    assert parse_attachments(text) == [
        Attachment("a", "file:///x", "orders"),
        Attachment("b.old", "s3://bucket/p?region=eu&endpoint_url=http://h:1", "orders-v2"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orders", "expected NAME=STORE_URL#TOPIC"),
        ("a=file:///x", "expected NAME=STORE_URL#TOPIC"),
        ("a=/x#orders", "expected NAME=STORE_URL#TOPIC"),
        ("a/b=file:///x#orders", "not a valid topic name"),
        ("a=file:///x#", "not a valid topic name"),
        ("a=file:///x#t a=file:///y#t", "a is given twice"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_attachments(text)


def test_attached_topics_need_archive_only() -> None:
    attach = Setting("attach.archives", "a=file:///x#t", "--set attach.archives")
    with pytest.raises(ConfigError, match=r"needs archive_only\.enabled"):
        load_config(None, {}, [attach])
    enabled = Setting("archive_only.enabled", True, "--archive-only")
    assert load_config(None, {}, [attach, enabled]).attach.archives == "a=file:///x#t"
