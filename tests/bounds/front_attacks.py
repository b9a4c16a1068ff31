"""What comes before a request is read: the console's HTTP, logins by SASL, TLS, PROXY headers."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import ssl
import struct
import zlib
from collections.abc import Sequence
from urllib.parse import quote

import blown_messages
from attack_parts import (
    RESPONSE_S_MAX,
    Attack,
    Connection,
    close_all,
    exchange,
    heard,
    open_many,
    reset,
    send,
)
from blown_messages import Shape
from fetchproxy_protocol.headers import request_header
from victims import BALANCER, Victim

from fetchproxy.console.api import ENDPOINTS

_HOST = b"Host: localhost\r\n"


async def _http(victim: Victim, pieces: Sequence[bytes], *, pause_s: float = 0.0) -> None:
    """Sends the pieces on one connection, and reads what comes until it ends or is silent."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(RESPONSE_S_MAX):
            reader, writer = await victim.connected(victim.console_port)
        sending = asyncio.create_task(_pieces(writer, pieces, pause_s))
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(3.0):
                while await reader.read(1 << 20):
                    pass
        sending.cancel()
        reset(writer)


_TOPICS = ("orders", "many-000", "bomb-gzip", "forged-open", "none", "o", "")
_ODD_TEXTS = (
    "%", "..", "../..", "\x00", "\x1b[2J", "‮", "a" * 3_000, "/", "'\"<>&", "*" * 200, "é" * 1_000,
)  # fmt: skip
_API_PATHS = (
    *(f"/api/{name}?limit=1000" for name in ("topics", "readers", "groups", "conditions", "log")),
    *("/api/process", "/api/openapi.json", "/api/topics/none/partitions"),
    *("/api/history?limit=1000", "/api/topics?sort=-size_bytes&faulty=true&name_part=o"),
    *("/api/topics/none/timeline", "/api/status?rows_max=20&topics_max=0"),
)


async def _pieces(writer: asyncio.StreamWriter, pieces: Sequence[bytes], pause_s: float) -> None:
    for piece in pieces:
        await send(writer, [piece])
        await asyncio.sleep(pause_s)


def _bomb(codec: str) -> bytes:
    zeros = bytes(100 << 20)
    return gzip.compress(zeros, 1) if codec == "gzip" else zlib.compress(zeros, 1)


def http(rng: random.Random, victim: Victim) -> Attack:
    paths = ("/healthz", "/metrics", "/api/status", "/api/partitions", "/api/records", "/", "/no")
    path = rng.choice((*paths, *_API_PATHS))
    get = b"GET " + path.encode() + b" HTTP/1.1\r\n" + _HOST
    count = rng.choice((1, 8, 64))

    def packed() -> list[bytes]:
        codec = rng.choice(("gzip", "deflate"))
        body = _bomb(codec)
        head = get + f"Content-Encoding: {codec}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        return [head, body]

    ways = {
        "packed bodies": packed,
        "chunks of one byte": lambda: [
            get + b"Transfer-Encoding: chunked\r\n\r\n",
            b"1\r\nx\r\n" * 200_000,
        ],
        "pipelined requests": lambda: [(get + b"\r\n") * 1_000],
        "100,000 header lines": lambda: [get + b"a: b\r\n" * 100_000 + b"\r\n"],
        "a header line without end": lambda: [get + b"a: " + b"b" * (8 << 20)],
        "a query of 1 MB": lambda: [get.replace(b" HTTP", b"?" + b"a=b&" * 250_000 + b" HTTP")],
        "a long search": lambda: [
            b"GET /api/partitions?name_part=" + b"%2A" * 2_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n"
        ],
        "half a request": lambda: [get],
        "bytes that are no HTTP": lambda: [bytes(range(256)) * 4_000],
        "websocket": lambda: [get + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n"],
    }
    name = rng.choice(list(ways))
    pieces = ways[name]()

    async def run(victim: Victim) -> None:
        await asyncio.gather(*(_http(victim, pieces) for _ in range(count)))

    return Attack(f"console: {count} × {name} at {path}", run)


def pages(rng: random.Random, victim: Victim) -> Attack:
    """Every page of the HTTP API, with parameters that are right, odd, long or many."""
    endpoint = rng.choice(ENDPOINTS)
    path = endpoint.path
    for name in endpoint.parameters:
        named = ("0", "99", "9" * 9, "-1") if name == "partition" else _TOPICS
        path = path.replace("{" + name + "}", quote(rng.choice((*named, *_ODD_TEXTS))))
    values_of = {
        "limit": ("1", "1000", "1001", "0", "-1", "9" * 4_000),
        "after": (*_TOPICS, "0", "9" * 30, *_ODD_TEXTS),
        "sort": (*endpoint.sorts, *(f"-{one}" for one in endpoint.sorts), *_ODD_TEXTS),
        "name_part": (*_TOPICS, *_ODD_TEXTS),
        "faulty": ("true", "false", "maybe"),
        "unknown": _ODD_TEXTS,
    }
    pairs = [(name, rng.choice(values_of[name])) for name in rng.choices(list(values_of), k=3)]
    text = "&".join(f"{name}={quote(value)}" for name, value in pairs)[:7_000]
    count, each = rng.choice((1, 8, 60)), rng.choice((1, 5))
    line = f"GET {path[:4_000]}?{text} HTTP/1.1\r\n".encode() + _HOST + b"\r\n"

    async def run(victim: Victim) -> None:
        await asyncio.gather(*(_http(victim, [line] * each) for _ in range(count)))

    return Attack(f"console: {count} × {each} × {path[:80]}?{text[:120]}", run)


# -- logins ------------------------------------------------------------------------------------

_HANDSHAKE, _AUTHENTICATE = 17, 36


def _handshake(mechanism: str) -> bytes:
    return blown_messages.request(_HANDSHAKE, 1, Shape(fixed={"Mechanism": mechanism}))


def _token(token: bytes) -> bytes:
    head = request_header(_AUTHENTICATE, 0, 7, blown_messages.CLIENT_ID)
    body = struct.pack(">i", len(token)) + token
    return struct.pack(">i", len(head) + len(body)) + head + body


def logins(rng: random.Random, victim: Victim) -> Attack:
    mechanism = rng.choice(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"))
    junk = rng.randbytes(rng.choice((0, 1, 100, 16_000)))
    name = rng.choice(
        (b"reader", b"nobody", b"=2C" * 2_000, b"=3D" * 3_000, b"\xff", b"a" * 15_000)
    )
    tokens = (
        junk,
        b"\0" * rng.choice((1, 2, 3, 15_000)),
        b"\0" + name + b"\0wrong",
        b"n,,n=" + name + b",r=abc",
        b"n,,n=" + name + b",r=" + b"x" * 10_000,
        b"n,a=" + name + b",n=" + name + b",r=abc",
        b"n,,n=reader,r=abc," + b"a=b," * 3_000,
        b"c=biws,r=abc,p=" + b"A" * 10_000,
    )
    token = rng.choice(tokens)
    followed = rng.choice((b"", b"c=biws,r=abc,p=QUJD", junk, b"c=" + b"b" * 9_000 + b",r=,p="))
    count = rng.choice((1, 20, 100))
    frames = [_handshake(mechanism), _token(token)]
    frames += [_token(followed)] if followed else []
    how = rng.choice(("answered", "pipelined", "handshakes", "large"))
    if how == "handshakes":
        frames = [_handshake(mechanism)] * 200
    elif how == "large":
        frames = [
            _handshake(mechanism),
            struct.pack(">ihhih", 100 << 20, 36, 0, 1, -1) + bytes(1 << 16),
        ]

    async def one(connection: Connection) -> None:
        reader, writer = connection
        for frame in frames if how == "answered" else [b"".join(frames)]:
            await send(writer, [frame])
            if not await heard(reader, 1):
                break

    async def run(victim: Victim) -> None:
        every = await open_many(victim, count)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):  # wrong passwords are answered slowly
                await asyncio.gather(*(one(each) for each in every))
        close_all(every)

    return Attack(f"{count} logins by {mechanism}, {how}: {token[:40]!r}, {followed[:20]!r}", run)


def before_login(rng: random.Random, victim: Victim) -> Attack:
    """Requests of those who have not logged in."""
    key = rng.choice(blown_messages.described())
    version = rng.choice(blown_messages.versions_of(key))
    name = blown_messages.message_name(key)
    paths = blown_messages.arrays_of(name, version)
    size = rng.choice((16_000, 500_000))
    shape = Shape(long=rng.choice(paths) if paths else None, frame_bytes=size)

    async def run(victim: Victim) -> None:
        frame = blown_messages.request(key, version, shape)
        await asyncio.gather(*(exchange(victim, [frame]) for _ in range(10)))

    return Attack(f"10 × {name} v{version} of {size} bytes before the login", run)


# -- TLS ---------------------------------------------------------------------------------------


def _hello() -> bytes:
    """A client's first message."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


async def _spoken(victim: Victim, pieces: Sequence[bytes], source: str | None = None) -> None:
    """Sends the pieces on one connection, and listens for a moment."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(RESPONSE_S_MAX):
            reader, writer = await victim.connected(victim.port, source=source)
        await send(writer, pieces)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await reader.read(1 << 16)
        reset(writer)


def tls(rng: random.Random, victim: Victim) -> Attack:
    hello = _hello()
    ways: dict[str, list[bytes]] = {
        "silent": [],
        "cut hello": [hello[: rng.randrange(1, len(hello))]],
        "hello alone": [hello],
        "hello, then junk": [hello, rng.randbytes(20_000)],
        "hello byte by byte": [hello[at : at + 1] for at in range(len(hello))],
        "a record of 2^14": [b"\x16\x03\x01\x40\x00" + bytes(1 << 14)],
        "a record that is too long": [b"\x16\x03\x01\xff\xff" + bytes(1 << 16)],
        "alerts": [b"\x15\x03\x01\x00\x02\x01\x00" * 5_000],
        "plaintext": [blown_messages.request(18, 0, Shape())],
        "HTTP": [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"],
        "changed hello": [hello[:50] + rng.randbytes(100) + hello[150:]],
    }
    name = rng.choice(list(ways))
    count = rng.choice((20, 200, 1_000)) if name == "silent" else rng.choice((20, 200))

    async def run(victim: Victim) -> None:
        await asyncio.gather(*(_spoken(victim, ways[name]) for _ in range(count)))

    return Attack(f"TLS: {count} × {name}", run)


# -- load balancers ----------------------------------------------------------------------------

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def balancer(rng: random.Random, victim: Victim) -> Attack:
    """Headers of the PROXY protocol, and what should be one."""
    hello = _hello()
    client = _SIGNATURE + b"\x21\x11\0\x0c" + rng.randbytes(12)
    ways: dict[str, list[bytes]] = {
        "silent": [],
        "a header and silence": [client],
        "a header, then junk": [client + rng.randbytes(20_000)],
        "a header, then TLS": [client + hello],
        "a header byte by byte": [client[at : at + 1] for at in range(len(client))],
        "two headers": [client + client + hello],
        "fields up to the bound": [_SIGNATURE + b"\x21\x11\x0f\xf0" + bytes(4_080) + hello],
        "fields that never come": [_SIGNATURE + b"\x21\x11\x0f\xf0" + bytes(4_079)],
        "a header of 64 KiB": [_SIGNATURE + b"\x21\x11\xff\xff" + bytes(65_535)],
        "a line without end": [b"PROXY TCP4 " + b"1" * 100_000],
        "a line in pieces": [b"P", b"R", b"OXY ", b" " * 200],
        "no header": [hello],
    }
    name = rng.choice(list(ways))
    count = rng.choice((20, 200))

    async def run(victim: Victim) -> None:
        await asyncio.gather(*(_spoken(victim, ways[name], BALANCER) for _ in range(count)))

    return Attack(f"a load balancer: {count} × {name}", run)
