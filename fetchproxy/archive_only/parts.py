"""What the APIs of archive-only mode work with: the archive, the groups, and one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fetchproxy.archive_only.access.logins import Logins
from fetchproxy.archive_only.access.user import User
from fetchproxy.archive_only.catalogue import ArchiveWatch
from fetchproxy.archive_only.groups.committed_offsets import CommittedOffsets
from fetchproxy.archive_only.groups.group_coordinator import GroupCoordinator
from fetchproxy.config.archive_only import ArchiveOnlyConfig
from fetchproxy.config.sections import GatewayConfig
from fetchproxy.gateway.answer_budget import AnswerBudget
from fetchproxy.gateway.answer_turns import AnswerTurns, ConnectionTurn
from fetchproxy.gateway.client_rates import Client, ClientRates, ConnectionPace
from fetchproxy.gateway.skipped_offsets import SkippedOffsets
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.remote_fetch.purgatory import RemoteFetchPurgatory
from fetchproxy.tls.acceptor import Warn
from protocol.apis import ApiKey
from protocol.headers import RequestHead
from protocol.message_codec import Fields, Structure, read_request, write_response
from protocol.primitives import Buffer

# The only node there is. Clients compare it with nothing else, so any number would do.
NODE_ID = 0


@dataclass(frozen=True, slots=True)
class ArchiveOnlyParts:
    config: ArchiveOnlyConfig
    gateway: GatewayConfig
    cluster_id: str
    rlmm: RemoteLogMetadataManager
    purgatory: RemoteFetchPurgatory
    archive: ArchiveWatch
    groups: GroupCoordinator
    offsets: CommittedOffsets
    logins: Logins | None  # None: nobody has to log in
    answers: AnswerBudget
    turns: AnswerTurns
    rates: ClientRates
    skipped: SkippedOffsets
    warn: Warn
    clock: Callable[[], float]


@dataclass(slots=True)
class Request:
    """A whole request. `payload` is without size prefix; `host`, `port`: where clients dial us.

    It is read once, and not kept while the answer is waited for: that may take minutes.
    """

    head: RequestHead
    payload: bytes
    client_id: str
    client_host: str
    user: User
    pace: ConnectionPace
    turn: ConnectionTurn
    host: str
    port: int

    @property
    def client(self) -> Client:
        return self.client_host, self.client_id

    @property
    def version(self) -> int:
        return self.head.api_version

    def may_read(self, topic: str) -> bool:
        return topic in self.user.topics

    def may_join(self, group_id: str) -> bool:
        return group_id in self.user.groups

    def read(self, table: Structure) -> Fields:
        """Raises WireError."""
        head = self.head
        return read_request(
            table, self.take_payload(), head.body_position, head.api_key, head.api_version
        )

    def take_payload(self) -> bytes:
        payload, self.payload = self.payload, b""
        return payload

    def respond(self, table: Structure, values: dict[str, Any]) -> Sequence[Buffer]:
        head = self.head
        return [write_response(table, values, head.api_key, head.api_version, head.correlation_id)]


class RequestRefused(Exception):
    """A request that has no answer that its client would read: the connection is closed.

    `api` is its name, `hint` says to whoever reads the log why.
    """

    def __init__(self, api: str, version: int, hint: str) -> None:
        super().__init__(api, version, hint)
        self.api, self.version, self.hint = api, version, hint


# A framed answer in pieces. Raises WireError, RequestRefused.
Answer = Callable[[ArchiveOnlyParts, Request], Awaitable[Sequence[Buffer]]]


@dataclass(frozen=True, slots=True)
class ServedApi:
    """An API with the versions that are advertised and answered, both inclusive."""

    key: ApiKey
    lowest: int
    highest: int
    answer: Answer
