"""The ACLs that docs/security/access.md asks for are enough, and each of them is needed."""

from __future__ import annotations

import pytest
from archive_process import segments
from fetchproxy_command import archive_once
from proxy_process import ProxyProcess, wait_for
from secured_clients import SaslConnection, as_user
from topic_data import TopicData, produce

from lab.secured_kafka import SecuredKafka

OUT_OF_RANGE = 1

pytestmark = pytest.mark.kafka

# Topics of the archiver's session end after `sec-`, so that it leaves these alone.
NEEDED = ("READ", "DESCRIBE_CONFIGS")


def archived(kafka: SecuredKafka, store: str, topic: str) -> tuple[int, str]:
    result = archive_once(kafka.sasl, store, topic, as_user("archiver", "PLAIN"))
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("granted", "why_not"),
    [
        (NEEDED, None),
        # READ would bring DESCRIBE along
        (("DESCRIBE", "DESCRIBE_CONFIGS"), "Fetch of {topic}-0: error 29"),
        (("READ",), "DescribeConfigs of {topic}: error 29"),
    ],
    ids=["all", "without-READ", "without-DESCRIBE_CONFIGS"],
)
def test_an_archiver(
    granted: tuple[str, ...], why_not: str | None, secured: SecuredKafka, tmp_path_factory
) -> None:
    store = tmp_path_factory.mktemp("privilege-store").as_uri()
    data = TopicData(secured.create_topic(f"privilege-{'-'.join(granted)}"))
    produce(secured.bootstrap, data, 100)
    secured.allow("archiver", data.topic, *granted)
    status, output = archived(secured, store, data.topic)
    if why_not is None:
        assert status == 0, output
        assert segments(store, data.topic)[-1]["last_offset"] == 99
    else:
        assert status == 2, output
        assert why_not.format(topic=data.topic) in output
        assert segments(store, data.topic) == []


def test_a_topic_that_the_proxy_may_not_describe_is_as_without_a_proxy(
    make_replayed, secured: SecuredKafka, proxy: ProxyProcess
) -> None:
    """Nobody hangs on it, and the log says why nothing of it comes from the archive."""
    data = make_replayed("sec-undescribed", "alice", records=200, proxy_describes=False)
    with SaslConnection(proxy.bootstrap, "alice") as alice:
        topic_id = alice.topic_id(data.topic)
        for _ in range(3):
            assert alice.fetch(13, data.topic, topic_id, 0, wait_ms=10_000).error == OUT_OF_RANGE
        lines = [line for line in proxy.logged("topic_not_described") if str(topic_id) in str(line)]
        assert len(lines) == 1
        secured.allow("proxy", data.topic, "DESCRIBE")

        def served() -> bool:
            return bool(alice.fetch(13, data.topic, topic_id, 0, wait_ms=10_000).records)

        wait_for("the archive", served)
