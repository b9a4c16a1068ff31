"""The user in a SASL token: of the mechanisms that name one, and of nothing else."""

from __future__ import annotations

import struct

import pytest
from fetchproxy_protocol.headers import peek_request_header, request_header
from fetchproxy_protocol.sasl_user import TOKEN_BYTES_MAX, user_of_request, user_of_token
from hypothesis import given
from hypothesis import strategies as st
from message_schema import encode_body

SASL_AUTHENTICATE = 36


def request(token: bytes, version: int) -> bytes:
    body = encode_body("SaslAuthenticateRequest", version, {"AuthBytes": token})
    return request_header(SASL_AUTHENTICATE, version, 7, "app") + body


def user(frame: bytes, end: int | None = None) -> str:
    return user_of_request(frame, peek_request_header(frame), len(frame) if end is None else end)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_plain_and_scram_name_their_user(version: int) -> None:
    assert user(request(b"\0alice\0s3cret", version)) == "alice"
    assert user(request(b"admin\0alice\0s3cret", version)) == "alice"  # on behalf of another
    assert user(request(b"n,,n=alice,r=nonce", version)) == "alice"
    assert user(request(b"n,a=admin,n=al=2Cice=3D,r=nonce", version)) == "al,ice="
    assert user(request("n,,n=zoë,r=nonce".encode(), version)) == "zoë"


@pytest.mark.parametrize(
    "token",
    [
        *(b"", b"c=biws,r=nonce,p=proof", b"n,,\x01auth=Bearer eyJ.eyJ.x\x01\x01"),
        *(b"n,,r=nonce", b"\0", b"\0\0\0", b"p=tls-unique,,n=alice,r=x"),
        b"\0" + b"x" * TOKEN_BYTES_MAX + b"\0pw",
    ],
)
def test_other_tokens_name_no_user(token: bytes) -> None:
    assert user(request(token, 2)) == ""


def test_a_token_that_came_in_part_names_none() -> None:
    frame = request(b"\0alice\0s3cret", 2)
    head = peek_request_header(frame)
    for end in range(head.body_position, len(frame) - 1):
        assert user(frame, end) == ""


@given(st.binary(max_size=60))
def test_any_bytes_are_taken(token: bytes) -> None:
    assert isinstance(user_of_token(token), str)
    frame = struct.pack(">hhih", SASL_AUTHENTICATE, 2, 1, 0) + b"\0" + token
    assert isinstance(user(frame), str)
