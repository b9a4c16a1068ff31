"""Bearer tokens for OAUTHBEARER: from a file that something else renews, or from a token endpoint.

Knows no broker. A token and a client's secret never appear in errors or logs.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Protocol
from urllib.parse import quote_plus

import aiohttp

from fetchproxy.cluster.single_flight import SingleFlight
from fetchproxy.config.secret_file import secret_from
from fetchproxy.config.sections import ClusterConfig
from fetchproxy.errors import AuthenticationRefused, ClusterUnavailable

# A token is fetched again after this share of its life (sasl.login.refresh.window.factor).
_REFRESH_AFTER = 0.8
# Where the endpoint names no expires_in (it is optional in RFC 6749, 5.1), as the token is opaque.
_LIFETIME_UNSTATED_S = 60.0
# So long a token that is still good is used before an endpoint that failed is asked again.
_RETRY_PAUSE_S = 5.0
_ANSWER_BYTES_MAX = 256 * 1024
_ERROR_NAME = re.compile(r"[a-z_]{1,40}")  # RFC 6749, 5.2: invalid_client and its like
_BUSY = frozenset({408, 425, 429})


class TokenSource(Protocol):
    async def token(self) -> str:
        """Raises ClusterUnavailable (worth another try), AuthenticationRefused, ConfigError."""
        ...


class TokenFile:
    def __init__(self, file: Path) -> None:
        self._file = file

    async def token(self) -> str:
        key = "cluster.sasl_oauthbearer_token_file"
        token = await asyncio.to_thread(secret_from, None, self._file, key)
        assert token is not None  # the file is given
        return token


class TokenEndpoint:
    """Client credentials grant (RFC 6749, 4.4); the id and the secret go by HTTP Basic."""

    def __init__(self, config: ClusterConfig) -> None:
        assert config.sasl_oauthbearer_token_endpoint_url is not None
        self._url = config.sasl_oauthbearer_token_endpoint_url
        self._config = config
        self._fetching = SingleFlight[str]()
        self._token = ""
        self._refresh_at = self._ends_at = float("-inf")  # loop seconds

    async def token(self) -> str:
        now = asyncio.get_running_loop().time()
        if now < self._refresh_at:
            return self._token
        try:
            return await self._fetching.run("token", self._fetch)
        except ClusterUnavailable:
            if now >= self._ends_at:
                raise
            # An endpoint that is away harms only when the token is over.
            self._refresh_at = min(now + _RETRY_PAUSE_S, self._ends_at)
            return self._token

    async def _fetch(self) -> str:
        asked_at = asyncio.get_running_loop().time()
        status, body = await self._post()
        if status != 200:
            raise self._refusal(status, body)
        token, lifetime = body.get("access_token"), body.get("expires_in", _LIFETIME_UNSTATED_S)
        if not isinstance(token, str) or not token:
            raise AuthenticationRefused(
                f"token endpoint {self._url} answered without an access_token"
            )
        lifetime_s = float(lifetime) if isinstance(lifetime, int | float) else _LIFETIME_UNSTATED_S
        self._refresh_at = asked_at + _REFRESH_AFTER * lifetime_s
        self._ends_at = asked_at + lifetime_s
        self._token = token
        return token

    async def _post(self) -> tuple[int, dict[str, object]]:
        config = self._config
        secret = await asyncio.to_thread(
            secret_from,
            config.sasl_oauthbearer_client_secret,
            config.sasl_oauthbearer_client_secret_file,
            "cluster.sasl_oauthbearer_client_secret_file",
        )
        form = {"grant_type": "client_credentials"}
        if config.sasl_oauthbearer_scope is not None:
            form["scope"] = config.sasl_oauthbearer_scope
        # Both are encoded like a form's fields first (RFC 6749, 2.3.1).
        basic = aiohttp.encode_basic_auth(
            quote_plus(config.sasl_oauthbearer_client_id or ""), quote_plus(secret or "")
        )
        timeout = aiohttp.ClientTimeout(total=config.request_max_ms / 1000)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as http,
                # A redirection would carry the secret to another place.
                http.post(
                    self._url,
                    data=form,
                    headers={"Authorization": basic, "Accept": "application/json"},
                    allow_redirects=False,
                ) as answer,
            ):
                return answer.status, _json(await _bounded(answer.content))
        except (aiohttp.ClientError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise ClusterUnavailable(f"token endpoint {self._url} failed: {why}") from None

    def _refusal(self, status: int, body: dict[str, object]) -> Exception:
        named = body.get("error")
        why = f" ({named})" if isinstance(named, str) and _ERROR_NAME.fullmatch(named) else ""
        text = f"token endpoint {self._url} answered with status {status}{why}"
        if status >= 500 or status in _BUSY:
            return ClusterUnavailable(text)
        client = self._config.sasl_oauthbearer_client_id
        return AuthenticationRefused(f"{text} for client {client!r}")


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    async for piece in content.iter_chunked(16 * 1024):
        body += piece
        if len(body) > _ANSWER_BYTES_MAX:
            break
    return bytes(body)


def _json(body: bytes) -> dict[str, object]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
