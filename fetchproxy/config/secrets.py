"""What counts as a secret, by name, and how text is shown without it. Logs and errors use it."""

from __future__ import annotations

import re

MASK = "•••"

# Kafka's `api_key` is a number on the wire and no secret, so plain "key" is not in the list.
_SECRET_WORDS = (
    "password|passwd|passphrase|secret|token|authorization|credential|cookie"
    "|access_?key|private_?key|sasl_?auth_?bytes|jaas"
)
_SECRET_NAME = re.compile(_SECRET_WORDS, re.IGNORECASE)
# The repeats are bounded, as these run over whatever is logged: unbounded ones take quadratic time.
_ASSIGNED = re.compile(
    rf"(?P<name>(?:{_SECRET_WORDS})[\w.-]{{0,40}})(?P<sign>\"?'?\s{{0,4}}[=:]\s{{0,4}})"
    r"(?P<value>(?:(?:Bearer|Basic)\s+)?(?:\"[^\"]*\"|'[^']*'|[^\s&,;\"']+))",
    re.IGNORECASE,
)
_USERINFO = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]{0,20}://)(?P<userinfo>[^/\s@]+)@", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def mask_text(text: str) -> str:
    """`text` with the user part of URLs and the values of `secret-like-name=value` covered."""
    text = _USERINFO.sub(lambda match: f"{match['scheme']}{MASK}@", text)
    return _ASSIGNED.sub(lambda match: f"{match['name']}{match['sign']}{MASK}", text)
