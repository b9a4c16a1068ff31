"""Names of files and folders that are called after a topic. Pure.

Spark, pyarrow and Hadoop take a file whose name begins with `_` or `.` for hidden and leave it out
in silence. File systems take names of 255 bytes, and topics have up to 249.
"""

from __future__ import annotations

from hashlib import sha256

# What follows a topic in the longest name: partition, two offsets, the number of a date's file,
# `.parquet`, and the mark of a file that is being written.
_TOPIC_BYTES_MAX = 140
_HASH_DIGITS = 16


def file_stem(topic: str) -> str:
    """The topic itself, if a name may begin with it. Otherwise a name that no topic has."""
    stem = topic
    if len(topic) > _TOPIC_BYTES_MAX:
        digest = sha256(topic.encode()).hexdigest()[:_HASH_DIGITS]
        stem = f"{topic[: _TOPIC_BYTES_MAX - _HASH_DIGITS - 1]}~{digest}"
    return f"topic~{stem}" if stem.startswith(("_", ".")) else stem
