"""Signs URLs for reading S3 objects, as the S3 client signs one of them. Pure.

The algorithm is AWS Signature Version 4 in the query ("Authenticating Requests: Using Query
Parameters"). The client takes most of a millisecond for each URL, this some 10 µs.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Self
from urllib.parse import quote, unquote, urlsplit

# The key of the URL that the client signs.
EXAMPLE_KEY = "k"
_SIGNATURE = "X-Amz-Signature"
_PLAIN = {
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-SignedHeaders": "host",
}
# Letters, digits and these are the same in a signed path. All else is percent-encoded.
_UNRESERVED = "-._~"
_SAFE = f"/{_UNRESERVED}"


@dataclass(frozen=True, slots=True)
class UrlSigner:
    """Signs as the client has signed at the same time, with the same credentials. The URLs are
    valid as long as the client's.
    """

    _origin: str  # scheme and host
    _host: str
    _folder: str  # the path before the key
    _query: str  # in order, without the signature
    _date: str
    _scope: str
    _signing_key: bytes

    @classmethod
    def like(cls, url: str, secret_key: str) -> Self | None:
        """`url`: signed by the client for `EXAMPLE_KEY`. None: the client signs in another way."""
        parts = urlsplit(url)
        pairs = sorted(pair.partition("=")[::2] for pair in parts.query.split("&"))
        query = {name: unquote(value) for name, value in pairs}
        signature = query.pop(_SIGNATURE, "")
        scope = query.get("X-Amz-Credential", "").split("/")[1:]
        is_plain = all(query.get(name) == value for name, value in _PLAIN.items())
        if not is_plain or len(scope) != 4 or not parts.path.endswith(f"/{EXAMPLE_KEY}"):
            return None
        key = f"AWS4{secret_key}".encode()
        for part in scope:
            key = hmac.digest(key, part.encode(), sha256)
        signer = cls(
            _origin=f"{parts.scheme}://{parts.netloc}",
            _host=_named_host(parts.scheme, parts.netloc),
            _folder=parts.path.removesuffix(EXAMPLE_KEY),
            _query="&".join(f"{name}={value}" for name, value in pairs if name != _SIGNATURE),
            _date=query.get("X-Amz-Date", ""),
            _scope="/".join(scope),
            _signing_key=key,
        )
        return signer if signer._signature(parts.path) == signature else None

    def signed(self, key: str) -> str:
        path = self._folder + quote(key, safe=_SAFE)
        return f"{self._origin}{path}?{self._query}&{_SIGNATURE}={self._signature(path)}"

    def signed_listing(self, parameters: Mapping[str, str]) -> str:
        """The URL of a page. `parameters`: in the query, by names in lower case, which come after
        those of the signature.
        """
        path = self._folder.rstrip("/") or "/"
        pairs = (
            f"&{name}={quote(parameters[name], safe=_UNRESERVED)}" for name in sorted(parameters)
        )
        query = self._query + "".join(pairs)
        return f"{self._origin}{path}?{query}&{_SIGNATURE}={self._signature(path, query)}"

    def _signature(self, path: str, query: str | None = None) -> str:
        """`query`: without the signature; None: that of an object."""
        query = self._query if query is None else query
        request = f"GET\n{path}\n{query}\nhost:{self._host}\n\nhost\nUNSIGNED-PAYLOAD"
        digest = sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{self._date}\n{self._scope}\n{digest}"
        return hmac.digest(self._signing_key, text.encode(), sha256).hex()


def _named_host(scheme: str, netloc: str) -> str:
    """As clients send it in `Host`: without the scheme's own port."""
    return netloc.removesuffix(":443" if scheme == "https" else ":80")
