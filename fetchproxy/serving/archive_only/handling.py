"""The types that sessions and the APIs of archive-only mode share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode, is_known
from fetchproxy_protocol.headers import RequestHead
from fetchproxy_protocol.messages import (
    ELEMENTS_MAX,
    MessageFields,
    Structure,
    read_request,
    write_response,
)
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.config.schema import KiB
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.runtime.cooperative import a_turn, in_steps
from fetchproxy.runtime.fair_room import FairRoom, PlaceInRoom
from fetchproxy.runtime.fairness import FairTurns
from fetchproxy.runtime.patience import Patience
from fetchproxy.serving.admission import Admission, ClientQuota
from fetchproxy.serving.archive_only.committed_offsets import CommittedOffsets
from fetchproxy.serving.archive_only.groups import GroupCoordinator
from fetchproxy.serving.archive_only.logins import Logins, User
from fetchproxy.serving.archive_only.schemas import request_of, response_of
from fetchproxy.serving.archive_only.topics import ArchiveWatch
from fetchproxy.serving.archived_reads import SkippedOffsets
from fetchproxy.serving.limits import ArchiveOnlyLimits
from fetchproxy.storage.reader_accounts import Client

# The only node. Clients compare the id with nothing else, so any number would do.
NODE_ID = 0
# A longer request, of some 100 elements, waits for a turn of the loop of its own: 60 members that
# join at the same time with many protocols each took one of 60 ms.
READ_SIDE_BY_SIDE_BYTES_MAX = 1_024
# Elements in all arrays of a request, if real clients need far fewer than ELEMENTS_MAX. A joining
# member names a protocol for each assignor, four at most; a leader assigns to all members.
ELEMENTS_MAX_OF: Mapping[int, int] = {
    ApiKey.JOIN_GROUP: 1_000,
    ApiKey.SYNC_GROUP: 2_000,
    ApiKey.LEAVE_GROUP: 2_000,
}
# Requests that name much, or ask for all, and are worked off at a time: each takes up to 20 MiB
# while it is. They need nothing but CPU, so more at once would be no faster.
LARGE_AT_ONCE = 2
# Work that takes less needs no place.
_WORK_BYTES_MIN = 64 * KiB
READ_ONLY = "this node serves an archive, which cannot be written to"


@dataclass(frozen=True, slots=True)
class ArchiveOnlyParts:
    """`logins`: None if clients need not log in. `large`: turns of large requests that need only
    CPU. `room`: memory of all large requests.
    """

    limits: ArchiveOnlyLimits
    cluster_id: str
    rlmm: RemoteLogMetadataManager
    purgatory: RemoteFetchPurgatory
    archive: ArchiveWatch
    groups: GroupCoordinator
    offsets: CommittedOffsets
    logins: Logins | None
    admission: Admission
    skipped: SkippedOffsets
    room: FairRoom
    clock: Callable[[], float]
    large: FairTurns = field(default_factory=lambda: FairTurns(LARGE_AT_ONCE, "large requests"))

    @asynccontextmanager
    async def place_for(self, request: Request, work_bytes: int) -> AsyncIterator[None]:
        """Memory for a large request, or for a long response to a short one. Raises NoRoomInTime
        if it waits too long.
        """
        if request.place is not None or work_bytes <= _WORK_BYTES_MIN:
            yield
            return
        wait_max_s = self.limits.large_request_max_wait_ms / 1000
        async with self.room.place(request.client, work_bytes, wait_max_s) as request.place:
            yield


@dataclass(slots=True)
class Request:
    """A whole request. `payload` has no size prefix, is read once, and is not kept during the wait
    for a response, which may take minutes. `host`, `port`: the address that clients dial.
    `came_at`: loop time, s. `patience`: a request that waits for records does so within it.
    `place`: of a large request.
    """

    head: RequestHead
    payload: bytes
    client_id: str
    client_host: str
    user: User
    share: ClientQuota
    host: str
    port: int
    patience: Patience
    came_at: float
    place: PlaceInRoom | None = None

    @property
    def client(self) -> Client:
        return self.share.client(self.client_host, self.client_id)

    def names_group(self, group: str) -> None:
        """The client asks for this group, which it may join."""
        self.share.group_is(self.client_host, self.client_id, group)

    @property
    def version(self) -> int:
        return self.head.api_version

    def may_read(self, topic: str) -> bool:
        return topic in self.user.topics

    def missing(self, topic: str) -> ErrorCode:
        """Why the topic is not shown. Reveals nothing of a topic that the user may not read."""
        if self.may_read(topic):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def may_join(self, group_id: str) -> bool:
        return group_id in self.user.groups

    async def idle(self, work: Awaitable[None]) -> None:
        """Await `work`, which only waits: not to its end if others need the memory meanwhile."""
        await (work if self.place is None else self.place.idle(work))

    @property
    def pressed(self) -> bool:
        """Others wait for its memory, and it has waited: answer with what there is."""
        return self.place is not None and self.place.pressed

    async def read(self, table: Structure | None = None) -> MessageFields:
        """Read by its API's schema, or by `table`, in steps. Raises WireError."""
        head = self.head
        if len(self.payload) > READ_SIDE_BY_SIDE_BYTES_MAX:
            await a_turn()
        steps = read_request(
            table or request_of(head.api_key),
            self.take_payload(),
            head.body_position,
            head.api_key,
            head.api_version,
            ELEMENTS_MAX_OF.get(head.api_key, ELEMENTS_MAX),
        )
        return await in_steps(steps)

    def take_payload(self) -> bytes:
        payload, self.payload = self.payload, b""
        return payload

    async def respond(self, values: dict[str, Any]) -> Sequence[Buffer]:
        """Written in steps."""
        head = self.head
        table, key = response_of(head.api_key), head.api_key
        steps = write_response(table, values, key, head.api_version, head.correlation_id)
        return [await in_steps(steps)]


class RequestRefused(Exception):
    """The request has no response that its client would read: close. `hint`: a hint for the log."""

    def __init__(self, head: RequestHead, hint: str) -> None:
        super().__init__(head, hint)
        self.api = ApiKey(head.api_key).name if is_known(head.api_key) else "unknown"
        self.version, self.hint = head.api_version, hint


# A framed response in pieces. Raises WireError, RequestRefused.
Respond = Callable[[ArchiveOnlyParts, Request], Awaitable[Sequence[Buffer]]]


@dataclass(frozen=True, slots=True)
class ServedApi:
    """An API with the versions that are advertised and answered, both inclusive."""

    key: ApiKey
    lowest: int
    highest: int
    respond: Respond
