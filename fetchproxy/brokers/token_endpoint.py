"""Tokens of an OAuth 2.0 endpoint, for OAUTHBEARER at brokers.

Secrets and tokens never appear in errors or logs.
"""

from __future__ import annotations

import asyncio
import json
import re
from urllib.parse import quote_plus

import aiohttp

from fetchproxy.config.schema import ClusterConfig
from fetchproxy.config.values import secret_from
from fetchproxy.errors import AuthenticationRefused, ClusterUnavailable
from fetchproxy.runtime.single_flight import SingleFlight

# A token is fetched again after this share of its life (sasl.login.refresh.window.factor).
_REFRESH_AFTER = 0.8
# For an endpoint without expires_in (optional in RFC 6749, 5.1), because the token is opaque.
_LIFETIME_UNSTATED_S = 60.0
# After the endpoint failed, a valid token is used this long before the endpoint is asked again.
_RETRY_PAUSE_S = 5.0
_RESPONSE_BYTES_MAX = 256 * 1024
_ERROR_NAME = re.compile(r"[a-z_]{1,40}")  # RFC 6749, 5.2: for example invalid_client
_BUSY = frozenset({408, 425, 429})


class TokenEndpoint:
    """Client credentials grant (RFC 6749, 4.4). Sends id and secret by HTTP Basic."""

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
            # An endpoint that is away does harm only after the token expires.
            self._refresh_at = min(now + _RETRY_PAUSE_S, self._ends_at)
            return self._token

    async def _fetch(self) -> str:
        sent_at = asyncio.get_running_loop().time()
        status, body = await self._post()
        if status != 200:
            raise self._refusal(status, body)
        token, lifetime = body.get("access_token"), body.get("expires_in", _LIFETIME_UNSTATED_S)
        if not isinstance(token, str) or not token:
            raise AuthenticationRefused(f"token endpoint {self._url} returned no access_token")
        lifetime_s = float(lifetime) if isinstance(lifetime, int | float) else _LIFETIME_UNSTATED_S
        self._refresh_at = sent_at + _REFRESH_AFTER * lifetime_s
        self._ends_at = sent_at + lifetime_s
        self._token = token
        return token

    async def _post(self) -> tuple[int, dict[str, object]]:
        config = self._config
        key = "cluster.sasl_oauthbearer_client_secret"
        secret = await asyncio.to_thread(secret_from, config.sasl_oauthbearer_client_secret, key)
        form = {"grant_type": "client_credentials"}
        if config.sasl_oauthbearer_scope is not None:
            form["scope"] = config.sasl_oauthbearer_scope
        # Both are form-encoded first (RFC 6749, 2.3.1).
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
                ) as response,
            ):
                return response.status, await _json(response.content)
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise ClusterUnavailable(f"token endpoint {self._url} failed: {reason}") from None

    def _refusal(self, status: int, body: dict[str, object]) -> Exception:
        named = body.get("error")
        detail = f" ({named})" if isinstance(named, str) and _ERROR_NAME.fullmatch(named) else ""
        text = f"token endpoint {self._url} returned status {status}{detail}"
        if status >= 500 or status in _BUSY:
            return ClusterUnavailable(text)
        client = self._config.sasl_oauthbearer_client_id
        return AuthenticationRefused(f"{text} for client {client!r}")


async def _json(content: aiohttp.StreamReader) -> dict[str, object]:
    """The JSON object in `content`; {} if there is none or it is too long."""
    body = bytearray()
    async for piece in content.iter_chunked(16 * 1024):
        body += piece
        if len(body) > _RESPONSE_BYTES_MAX:
            break
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
