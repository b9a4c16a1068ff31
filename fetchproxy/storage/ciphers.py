"""AES-256, of the package `cryptography`: the only module that needs the extra `encryption`."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.errors import CorruptSegment

_AES_BLOCK_BYTES = 16
_CHANGED = "it was changed, or is of another place: its authentication fails"


class AesGcm:
    """A `segments.packing.Cipher`."""

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)

    def seal(self, nonce: bytes, content: Buffer, label: bytes) -> bytes:
        return self._aead.encrypt(nonce, content, label)

    def open(self, nonce: bytes, sealed: Buffer, label: bytes) -> bytes:
        try:
            return self._aead.decrypt(nonce, sealed, label)
        except (InvalidTag, ValueError):  # ValueError: shorter than a tag
            raise CorruptSegment(_CHANGED) from None

    def open_into(self, nonce: bytes, sealed: Buffer, label: bytes, out: memoryview) -> None:
        try:
            self._aead.decrypt_into(nonce, sealed, label, out)
        except (InvalidTag, ValueError):
            raise CorruptSegment(_CHANGED) from None


def stream_at(key: bytes, position: int) -> CipherContext:
    """AES-256 in counter mode, from that byte of a file on: encrypts and decrypts alike.

    A file is as long as before; only one file may ever have the key.
    """
    counter = (position // _AES_BLOCK_BYTES).to_bytes(_AES_BLOCK_BYTES, "big")
    stream = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
    stream.update(bytes(position % _AES_BLOCK_BYTES))
    return stream
