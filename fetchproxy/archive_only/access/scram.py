"""The server's side of SCRAM (RFC 5802, RFC 7677), as functions on values. No I/O, no randomness.

As in Kafka passwords are taken as the bytes that the client has (no SASLprep), and there is no
channel binding.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# Kafka's least (RFC 7677 too), and the most that its own tools make. It is work for each client.
ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 1_000_000
ITERATIONS_MADE = 16_384
_SALT_BYTES_MIN = 8

_KEYS = {"salt", "stored_key", "server_key", "iterations"}
_FIRST = re.compile(r"(?P<header>[ny],(?:a=(?P<authzid>[^,]*))?,)(?P<bare>n=(?P<name>[^,]*),r=.+)")
_FINAL = re.compile(r"(?P<bare>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*).*),p=(?P<proof>[^,]*)")
_NONCE = re.compile(r"[!-+\--~]+")  # printable ASCII but a comma


class ScramError(Exception):
    """What the client has sent is no SCRAM, or not what it has to send now."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """Of one password: whoever reads it cannot log in with it, but can guess by it."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    def text(self) -> str:
        """In the form of Kafka's own (ScramCredentialUtils)."""
        salt, stored, server = (
            b64encode(value).decode() for value in (self.salt, self.stored_key, self.server_key)
        )
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"


def credential_of(mechanism: str, password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Takes milliseconds, in which other threads run."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password, salt, iterations)
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", name), iterations)


def parse_credential(mechanism: str, text: str) -> ScramCredential:
    """`salt=…,stored_key=…,server_key=…,iterations=…`. Raises ValueError, without the text."""
    given = dict(part.partition("=")[::2] for part in text.split(","))
    if given.keys() != _KEYS:
        raise ValueError("expected salt=…,stored_key=…,server_key=…,iterations=…")
    try:
        salt, stored, server = (
            b64decode(given[key], validate=True) for key in ("salt", "stored_key", "server_key")
        )
        iterations = int(given["iterations"])
    except ValueError:
        raise ValueError("expected keys in base64 and iterations as a number") from None
    size = hashlib.new(HASHES[mechanism]).digest_size
    if (len(stored), len(server)) != (size, size) or len(salt) < _SALT_BYTES_MIN:
        raise ValueError(
            f"expected keys of {size} bytes and a salt of at least {_SALT_BYTES_MIN} bytes"
        )
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"expected {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations")
    return ScramCredential(salt, stored, server, iterations)


def has_password(credential: ScramCredential, mechanism: str, password: bytes) -> bool:
    """For PLAIN, whose client sends the password itself. Takes milliseconds, as `credential_of`."""
    made = credential_of(mechanism, password, credential.salt, credential.iterations)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """What a client begins with: who it says it is, and its half of the nonce."""

    header: str
    bare: str
    name: str
    nonce: str


def read_first(token: bytes) -> ClientFirst:
    """Raises ScramError."""
    text = _text(token)
    found = _FIRST.fullmatch(text)
    if found is None:
        raise ScramError("no client-first message without channel binding")
    nonce, _, extensions = found["bare"].partition(",r=")[2].partition(",")
    name = _name(found["name"])
    if extensions:
        # Kafka's `tokenauth` is one: there are no delegation tokens here.
        raise ScramError("extensions, and none is known")
    if not _NONCE.fullmatch(nonce):
        raise ScramError("no nonce")
    if found["authzid"] and _name(found["authzid"]) != name:
        raise ScramError("another user to act as")
    return ClientFirst(found["header"], found["bare"], name, nonce)


@dataclass(frozen=True, slots=True)
class Challenge:
    """What the server has answered, and needs to judge what comes next."""

    mechanism: str
    first: ClientFirst
    credential: ScramCredential
    nonce: str

    @property
    def message(self) -> str:
        salt = b64encode(self.credential.salt).decode()
        return f"r={self.nonce},s={salt},i={self.credential.iterations}"


def challenge(
    mechanism: str, first: ClientFirst, credential: ScramCredential, own_nonce: str
) -> Challenge:
    """`own_nonce` is used once, and nobody can guess it."""
    return Challenge(mechanism, first, credential, first.nonce + own_nonce)


def server_final(asked: Challenge, token: bytes) -> bytes | None:
    """What proves the server to the client; None: the client has another password.

    Raises ScramError.
    """
    found = _FINAL.fullmatch(_text(token))
    if found is None:
        raise ScramError("no client-final message")
    if _decoded(found["binding"]) != asked.first.header.encode() or found["nonce"] != asked.nonce:
        raise ScramError("a client-final message of another exchange")
    name = HASHES[asked.mechanism]
    said = ",".join((asked.first.bare, asked.message, found["bare"])).encode()
    signature = hmac.digest(asked.credential.stored_key, said, name)
    proof = _decoded(found["proof"])
    if len(proof) != len(signature):
        raise ScramError(f"a proof of {len(proof)} bytes")
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    stored_key = hashlib.new(name, client_key).digest()
    if not hmac.compare_digest(stored_key, asked.credential.stored_key):
        return None
    return b"v=" + b64encode(hmac.digest(asked.credential.server_key, said, name))


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise ScramError("no UTF-8") from None


def _name(text: str) -> str:
    """RFC 5802 writes a comma as =2C and = as =3D."""
    if re.search("=(?!2C|3D)", text):
        raise ScramError("a user name with a bare =")
    return text.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ScramError("no base64") from None
