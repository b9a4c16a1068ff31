"""What the system says, in words: no call of ours, no number."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

import pytest

from fetchproxy.errors import system_error_in_words
from lab.process import free_port

REFUSED = "Connection refused"


async def test_asyncio_names_its_call_and_we_do_not() -> None:
    with pytest.raises(ConnectionRefusedError) as refused:
        await asyncio.open_connection("127.0.0.1", free_port())
    assert system_error_in_words(refused.value) == REFUSED


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), "
                 "[Errno 113] Connect call failed ('127.0.0.1', 1)"),
         f"{REFUSED}; No route to host"),
        (OSError(errno.ECONNRESET, "Connection lost"), "Connection reset by peer"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/a"),
         "No such file or directory"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
         "Name or service not known"),
        (ssl.SSLError(1, "[SSL] a reason of OpenSSL"), "[SSL] a reason of OpenSSL"),
        (OSError("no connection within 5 ms"), "no connection within 5 ms"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)  # fmt: skip
def test_an_error_of_the_system_is_told_in_plain_words(error: OSError, words: str) -> None:
    assert system_error_in_words(error) == words
