"""Which object keys are legal, for every backend alike. Pure.

The alphabet is Kafka's for topic names (`[a-zA-Z0-9._-]`) plus what S3 calls safe, so that no
backend has to escape anything. `~` is left out on purpose: a backend may use it in names of its
own (temporary files) and can be certain that no object is called so.
"""

from __future__ import annotations

import re

KEY_BYTES_MAX = 1024  # S3's limit

_PART = re.compile(r"[A-Za-z0-9!_.=+@-]+")


def check_key(key: str) -> str:
    """Return `key`. Raises ValueError if it is no legal key: that is a bug of the caller."""
    if len(key) > KEY_BYTES_MAX:
        raise ValueError(f"object key of {len(key)} bytes is longer than {KEY_BYTES_MAX}")
    for part in key.split("/"):
        if part in (".", "..") or not _PART.fullmatch(part):
            raise ValueError(f"illegal part {part!r} in object key {key!r}")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`, which any legal key may start with. Raises ValueError otherwise."""
    folder, slash, name_start = prefix.rpartition("/")
    if slash:
        check_key(folder)
    if name_start and not _PART.fullmatch(name_start):
        raise ValueError(f"illegal object prefix {prefix!r}")
    return prefix


def check_folder_prefix(prefix: str) -> str:
    """Return `prefix`, which is empty or ends in `/`. Raises ValueError otherwise."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"prefix of folders {prefix!r} does not end in '/'")
    return check_prefix(prefix)
