"""Leadership with the log-dirs source: the instance beside the leading broker leads."""

from __future__ import annotations

from uuid import UUID

from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.model import TopicIdPartition
from fetchproxy.writing.leadership import LogDirsLeadership

TOPIC_ID = UUID(int=1)


def topic(*leaders: int) -> TopicInfo:
    return TopicInfo(TOPIC_ID, "t", False, {p: (node, 3) for p, node in enumerate(leaders)})


def test_it_follows_the_brokers_leaders() -> None:
    leadership = LogDirsLeadership({1, 2})
    changes: list[frozenset[int]] = []
    of = [TopicIdPartition(TOPIC_ID, "t", p) for p in range(4)]

    def led() -> frozenset[int]:
        return frozenset(tp.partition for tp in of if leadership.leads(tp))

    leadership.on_change = lambda: changes.append(led())
    assert led() == set()
    leadership.manage([topic(1, 2, 3, -1)])
    leadership.manage([topic(1, 2, 3, -1)])
    leadership.manage([topic(3, 2, 1, -1)])
    leadership.manage([])
    assert changes == [{0, 1}, {1, 2}, set()]
