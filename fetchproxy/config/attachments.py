"""`attach.archives`: which topic of which archive is served under which name. Text only."""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.model import is_topic_name


@dataclass(frozen=True, slots=True)
class Attachment:
    """`topic` of the archive at `store_url` is served as `name`."""

    name: str
    store_url: str
    topic: str


def parse_attachments(text: str) -> list[Attachment]:
    """`NAME=STORE_URL#TOPIC`, separated by white space. Raises ValueError, also for a name twice.

    A store URL has neither a `#` nor a space in it.
    """
    found: dict[str, Attachment] = {}
    for part in text.split():
        name, separator, place = part.partition("=")
        url, hash_sign, topic = place.partition("#")
        if not (separator and hash_sign and "://" in url):
            raise ValueError(f"expected NAME=STORE_URL#TOPIC, not {part!r}")
        if not is_topic_name(name) or not is_topic_name(topic):
            raise ValueError(f"{part!r}: a topic cannot be called so")
        if name in found:
            raise ValueError(f"{name} comes twice")
        found[name] = Attachment(name, url, topic)
    return list(found.values())
