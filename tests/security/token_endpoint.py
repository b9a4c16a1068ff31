"""An authorization server, as far as the client credentials grant goes (RFC 6749, 4.4)."""

from __future__ import annotations

import base64
from typing import Self
from urllib.parse import unquote_plus

from aiohttp import web

from lab.secured_kafka import unsecured_token


class TokenEndpointServer:
    """Tokens for user proxy. `status` other than 200 is answered to everybody."""

    def __init__(self, client_id: str, secret: str) -> None:
        self._client = (client_id, secret)
        self.lifetime_s = 60.0
        self.status = 200
        self.requests = 0
        self.elsewhere = 0
        self.scopes: list[str] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/token", self._token)
        app.router.add_route("*", "/elsewhere", self._elsewhere)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/token"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _elsewhere(self, request: web.Request) -> web.Response:
        self.elsewhere += 1
        return web.Response()

    async def _token(self, request: web.Request) -> web.Response:
        self.requests += 1
        form = await request.post()
        kind, _, encoded = request.headers["Authorization"].partition(" ")
        pair = base64.b64decode(encoded).decode().split(":")
        client = tuple(unquote_plus(part) for part in pair)
        good = (kind, client, form["grant_type"]) == ("Basic", self._client, "client_credentials")
        status = self.status if good else 401
        if status != 200:
            return web.json_response(
                {"error": "invalid_client", "error_description": f"no {encoded}"},
                status=status,
                headers={"Location": "/elsewhere"} if status == 302 else {},
            )
        self.scopes.append(str(form["scope"]))
        token = unsecured_token("proxy", self.lifetime_s)
        return web.json_response({"access_token": token, "expires_in": self.lifetime_s})
