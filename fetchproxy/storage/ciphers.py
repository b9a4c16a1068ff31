"""AES-256 from the package `cryptography` (extra `encryption`). Only this module loads its 5 MiB,
and only in processes that use encryption.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fetchproxy_protocol.primitives import Buffer

from fetchproxy.errors import ConfigError, CorruptSegment

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

KEY_BYTES = 32
_BLOCK_BYTES = 16
_CHANGED = "its authentication fails: it was changed, or copied from another place"


class AesGcm:
    """A `segments.packing.Cipher`."""

    def __init__(self, key: bytes) -> None:
        """Raises ConfigError if the package is missing."""
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ConfigError(
                "store.encryption_keys: the package cryptography is not installed: "
                "in a clone of the project: pip install '.[encryption]'"
            ) from None
        self._aead = AESGCM(key)
        self._refusals = (InvalidTag, ValueError)  # ValueError: shorter than a tag

    def seal(self, nonce: bytes, content: Buffer, label: bytes) -> bytes:
        return self._aead.encrypt(nonce, content, label)

    def open(self, nonce: bytes, sealed: Buffer, label: bytes) -> bytes:
        try:
            return self._aead.decrypt(nonce, sealed, label)
        except self._refusals:
            raise CorruptSegment(_CHANGED) from None

    def open_into(self, nonce: bytes, sealed: Buffer, label: bytes, out: memoryview) -> None:
        try:
            self._aead.decrypt_into(nonce, sealed, label, out)
        except self._refusals:
            raise CorruptSegment(_CHANGED) from None


def check_aes() -> None:
    """Find a missing package at the start, before the first read. Raises ConfigError."""
    AesGcm(bytes(KEY_BYTES))


def stream_at(key: bytes, position: int) -> CipherContext:
    """AES-256 in counter mode from byte `position` of a file on: encrypts and decrypts alike.

    The file's length does not change. Each key may be used for one file only.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    counter = (position // _BLOCK_BYTES).to_bytes(_BLOCK_BYTES, "big")
    stream = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
    stream.update(bytes(position % _BLOCK_BYTES))
    return stream
