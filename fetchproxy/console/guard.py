"""Who may talk to the console from a browser, and what its pages may do there.

Against DNS rebinding (a foreign page whose name is made to point at this machine) the Host header
must be an IP address, a loopback name, the listener's own host or one of `console.allowed_hosts`.
Requests that a browser makes for another site's page are refused, but for a link that somebody
follows to the page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Middleware

from fetchproxy.config.addresses import parse_host_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def host_allowed(host_header: str, names: frozenset[str]) -> bool:
    """`host_header` as sent, with or without a port; `names` in lower case."""
    host = host_header.strip().lower()
    try:
        host = parse_host_port(host).host
    except ValueError:
        host = host.removeprefix("[").removesuffix("]")
    if host in names:
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True  # no name was resolved, so none can have been rebound


def allowed_names(listen: str, further: str) -> frozenset[str]:
    """From `console.listen` and the comma-separated `console.allowed_hosts`."""
    names = {"localhost", parse_host_port(listen).host.lower()}
    names.update(name.strip().lower() for name in further.split(",") if name.strip())
    return frozenset(names)


def is_cross_site(request: web.Request) -> bool:
    """By what browsers add to a request (Fetch Metadata, Origin); others send neither."""
    headers = request.headers
    origin = headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != headers.get("Host"):
        return True
    if headers.get("Sec-Fetch-Site", "none") in ("same-origin", "none"):
        return False
    return headers.get("Sec-Fetch-Mode") != "navigate" or request.path != "/"


def host_guard(names: frozenset[str]) -> Middleware:
    """Answers 421 to a Host header that `host_allowed` refuses, 403 to another site's page."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not host_allowed(request.headers.get("Host", ""), names):
            return web.Response(
                status=421,
                text="This console is not known by that name; "
                "set console.allowed_hosts to let browsers use it.\n",
            )
        if is_cross_site(request):
            return web.Response(status=403, text="This console answers no other site's pages.\n")
        return await handler(request)

    return guard


async def add_security_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """For aiohttp's `on_response_prepare`, so errors and refusals carry them too."""
    response.headers.update(SECURITY_HEADERS)
