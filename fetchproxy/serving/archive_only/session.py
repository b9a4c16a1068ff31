"""One client's connection: its requests are answered one after the other, as by a broker.

While a request waits for its response, the next ones wait in the socket. So a client holds at most
one request and one response in memory, and the bytes received together with them. A client that
waits for one response longer than `gateway.idle_max_ms` is disconnected, as by a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fetchproxy_protocol.addresses import REBOOTSTRAP_FROM
from fetchproxy_protocol.apis import ApiKey, FrameTooLarge
from fetchproxy_protocol.headers import RequestHead, client_id, peek_request_header
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.config.values import is_loopback
from fetchproxy.observability.metrics import (
    ARCHIVE_ONLY_LOGINS,
    ARCHIVE_ONLY_REFUSED,
    ARCHIVE_ONLY_REQUESTS,
    LIMITS_REACHED,
)
from fetchproxy.runtime.cooperative import READ_AT_ONCE_BYTES_MAX
from fetchproxy.runtime.fair_room import NoRoomInTime
from fetchproxy.runtime.patience import Patience
from fetchproxy.serving.admission import host_of
from fetchproxy.serving.archive_only.handling import ArchiveOnlyParts, Request, RequestRefused
from fetchproxy.serving.archive_only.logins import ANYBODY, NOBODY, Login, LoginRefused, User
from fetchproxy.serving.archive_only.table import (
    authenticate,
    bootstrap_again,
    handshake,
    login_refusal,
    served_api,
    too_new,
)
from fetchproxy.serving.session import ClientSession, RequestFraming, SessionOwner

# Before login: the largest token is a user's name with its password.
_LOGIN_REQUEST_BYTES_MAX = 16 * 1024
_LOGIN_MAX_S = 30.0


# Responses that wait: for records, members, other disks or services. They take no turn.
_MAY_WAIT = frozenset(
    {
        *(ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.LIST_OFFSETS),
        *(ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.OFFSET_COMMIT),
        *(ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS),
    }
)
# Responses that a short request makes long.
_OF_ALL = frozenset(
    {
        *(ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.LIST_CONFIG_RESOURCES),
        *(ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_GROUPS, ApiKey.OFFSET_FETCH),
    }
)
# What a request takes in memory while it is worked on, with its response, as a multiple of its
# bytes: a partition of a fetch has few (16), and takes some 600. Shorter requests than
# `READ_AT_ONCE_BYTES_MAX` do not count.
_FETCH_WORK, _OTHER_WORK = 36, 30


def _work_bytes(head: RequestHead, size_bytes: int) -> int:
    is_members = head.api_key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)  # groups count these
    if size_bytes <= READ_AT_ONCE_BYTES_MAX or is_members:
        return 0
    return size_bytes * (_FETCH_WORK if head.api_key == ApiKey.FETCH else _OTHER_WORK)


def _response_bytes(pieces: Sequence[Buffer]) -> int:
    """Archived records do not count here: they are views of chunks, and `sending` counts them."""
    return sum(len(piece) for piece in pieces if isinstance(piece, bytes | bytearray))


class _UserGone(Exception):
    """The logged-in user was removed from the file of users, or has other passwords now."""


class ArchiveOnlySession(ClientSession):
    def __init__(self, owner: SessionOwner, parts: ArchiveOnlyParts) -> None:
        super().__init__(owner, parts.purgatory.steps, parts.admission)
        self._parts = parts
        self._logins = parts.logins
        self._host, self._port = "", 0  # both set when the client connects
        self._login: Login | None = None
        self._login_until = owner.clock() + _LOGIN_MAX_S
        self._ended = False  # close after the response under way
        self._patience = Patience()  # of its waits for records; over when the process ends
        self._held_bytes = 0  # see `_holds`
        self.muted = True  # until a task group can serve it
        largest = parts.limits.request_bytes_max
        self.requests = WholeRequests(
            self, owner.clock, min(largest, _LOGIN_REQUEST_BYTES_MAX) if parts.logins else largest
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        local = transport.get_extra_info("sockname") or ("",)
        self._host, self._port = self._owner.advertised(str(local[0]))
        super().connection_made(transport)
        if self._logins is not None:
            tls = transport.get_extra_info("sslcontext") is not None
            # Behind a load balancer on this machine, the client may be elsewhere.
            here = is_loopback(str(local[0])) and is_loopback(self.client_host)
            secret_path = tls or here
            self._login = Login(self._logins, host_of(self.client_host), secret_path)

    @property
    def logged_in(self) -> bool:
        return self._login is None or self._login.user is not None

    # -- called by the listener, again and again ---------------------------------------------------
    def look(self, now: float) -> None:
        logs_in = self._login is not None and self._login.user is None
        if logs_in and not self.closing and now > self._login_until:
            LIMITS_REACHED.labels("login_max_s").inc()
            self.close("login_max_s")
        super().look(now)

    def _hurry(self) -> None:
        self._patience.end()

    # -- requests --------------------------------------------------------------------------------
    def on_request(self, payload: bytes) -> None:
        """A whole request, without size prefix."""
        self.mute_while(self._serve(payload), "serve-request")

    async def _serve(self, payload: bytes) -> None:
        """Keeps neither request nor answer for the next one. Raises WireError."""
        try:
            request = self._request(payload)
            del payload
            pieces = await self._in_turn(request)
            self._holds(_response_bytes(pieces))
            with self.share.sending(pieces) as pieces:
                await self.write_as_taken(pieces)
            del request, pieces
        except RequestRefused as refusal:
            ARCHIVE_ONLY_REFUSED.labels(refusal.api).inc()
            self.close_late(
                "request_refused", kind=refusal.api, version=refusal.version, hint=refusal.hint
            )
        except NoRoomInTime:
            self._give_up_waiting()
        except _UserGone as gone:
            self.close("user_changed", user=str(gone))
        finally:
            self._holds(0)
            self.share.to_store()
            self.has_received = True
        await self.share.pay()
        if self._ended:
            self.close_late()

    async def _in_turn(self, request: Request) -> Sequence[Buffer]:
        """Requests that name much, or ask for all, are worked off a few at a time: side by side
        they would all be in memory, and each would be late. Those that need only CPU take turns;
        all that name much wait for memory. Raises NoRoomInTime, and as `_respond`.
        """
        key, work_bytes = request.head.api_key, _work_bytes(request.head, len(request.payload))
        takes_turn = key not in _MAY_WAIT and self.logged_in and (work_bytes or key in _OF_ALL)
        if not takes_turn:
            return await self._in_room(request, work_bytes)
        self._holds(len(request.payload))
        async with self._parts.large.turn(request.client):
            return await self._in_room(request, work_bytes)

    async def _in_room(self, request: Request, work_bytes: int) -> Sequence[Buffer]:
        if not work_bytes:
            return await self._respond(request)
        self._holds(len(request.payload))
        async with self._parts.place_for(request, work_bytes):
            self._holds(0)  # from now on the place counts for it
            return await self._respond(request)

    def _give_up_waiting(self) -> None:
        LIMITS_REACHED.labels("connection_buffers_bytes_max").inc()
        waited_s = self._parts.limits.large_request_max_wait_ms / 1000
        self.close("connection_buffers_bytes_max", waited_s=waited_s)

    def _holds(self, size_bytes: int) -> None:
        """The request that waits, or its response, takes this much memory. If all together take too
        much, the connection that takes most is closed. One alone always fits.
        """
        size_bytes = min(size_bytes, self._owner.accumulated.bytes_max // 2)
        if size_bytes != self._held_bytes:
            self._held_bytes = size_bytes
            self.accumulates(self.requests.kept_bytes)

    def accumulates(self, size: int) -> None:
        super().accumulates(size + self._counted_bytes)

    @property
    def kept_bytes(self) -> int:
        return super().kept_bytes + self._counted_bytes

    @property
    def _counted_bytes(self) -> int:
        """Who gives up is about to free it, and must not cost another one its place."""
        return 0 if self.closing else self._held_bytes

    def _request(self, payload: bytes) -> Request:
        """Raises WireError."""
        head = peek_request_header(payload)
        return Request(
            head,
            payload,
            client_id(payload, head),
            self.client_host,
            self._user(),
            self.share,
            self._host,
            self._port,
            self._patience,
            self._parts.clock(),
        )

    async def _respond(self, request: Request) -> Sequence[Buffer]:
        """Raises RequestRefused, WireError."""
        login, key = self._login, request.head.api_key
        if login is not None and login.user is None and key != ApiKey.API_VERSIONS:
            return await self._log_in(login, request)
        api = served_api(request.head)
        if key == ApiKey.METADATA:
            self.supports_rebootstrap = request.version >= REBOOTSTRAP_FROM
            if self.supports_rebootstrap and self.draining:
                self.take_no_more()
                return await bootstrap_again(request)
        if api is not None:
            ARCHIVE_ONLY_REQUESTS.labels(api.key.name).inc()
            return await api.respond(self._parts, request)
        refusal = too_new(request.head)
        if refusal is None:  # a broker closes on unknown requests too
            raise RequestRefused(request.head, "not answered in archive-only mode")
        return refusal

    # -- login -----------------------------------------------------------------------------------
    def _user(self) -> User:
        """The user of the present request. Raises _UserGone."""
        if self._login is None or self._logins is None:
            return ANYBODY
        if self._login.user is None:
            return NOBODY
        user = self._logins.still(self._login.user)
        if user is None:
            raise _UserGone(self._login.user.name)
        return user

    async def _log_in(self, login: Login, request: Request) -> Sequence[Buffer]:
        """Raises RequestRefused, WireError."""
        key = request.head.api_key
        if key == ApiKey.SASL_HANDSHAKE:
            pieces, goes_on = await handshake(login, request)
            self._ended = not goes_on
            return pieces
        if key != ApiKey.SASL_AUTHENTICATE:
            raise RequestRefused(request.head, "clients log in first (SASL)")
        try:
            pieces = await authenticate(login, request)
        except LoginRefused as refused:
            self._ended = True
            ARCHIVE_ONLY_LOGINS.labels("refused").inc()
            self._say_closed("login_refused", kind=str(refused), user=login.name)
            return await login_refusal(request, login.mechanism)
        if login.user is not None:
            self.share.payer = f"User:{login.user.name}"
            self.share.user = login.user.name
            self.requests.bytes_max = self._parts.limits.request_bytes_max
            ARCHIVE_ONLY_LOGINS.labels("accepted").inc()
        return pieces


class WholeRequests(RequestFraming[RequestHead]):
    """Holds a request until it is whole. The next one waits until it is answered."""

    _session: ArchiveOnlySession

    def _consume(self, view: memoryview) -> int:
        request = self._next(view, 0, len(view))
        if request is None:
            return 0
        frame_bytes = 4 + request[0]
        if len(view) < frame_bytes:
            self._whole_at = frame_bytes
            return 0
        self.begun_at = None
        self._session.on_request(bytes(view[4:frame_bytes]))
        return frame_bytes

    def _is_full(self) -> bool:
        return False

    def _accept(self, size: int, head: RequestHead) -> RequestHead:
        return head

    def _check_size(self, size: int, head: RequestHead | None) -> None:
        """A client that has not logged in is not reported: it may be anybody."""
        if self._session.logged_in:
            raise self._too_large(size, head, "request_bytes_max", self.bytes_max)
        raise FrameTooLarge(f"a request of {size} bytes before the login", "request_bytes_max")
