"""`/api/drill` of the console: POST begins a drill, GET asks about it, DELETE ends it.

It changes what clients feel, so it is for this machine alone, and only if `drills.enabled` is set.
The console's guard has refused other sites' pages before. Parameters are in the address, because
the console reads no body. With `UNCONNECTED`, a broker may be one to which this process has no
connection: another worker has one.
"""

from __future__ import annotations

from functools import partial

from aiohttp import web

from fetchproxy.config.values import is_loopback, parse_host_port
from fetchproxy.console.api import DRILL_PATH
from fetchproxy.errors import ConfigError
from fetchproxy.runtime.drills import Drill, Fault

UNCONNECTED = "unconnected=true"


def add_drill(app: web.Application, drill: Drill) -> None:
    app.router.add_post(DRILL_PATH, partial(_begin, drill))
    app.router.add_get(DRILL_PATH, partial(_renew, drill))
    app.router.add_delete(DRILL_PATH, partial(_end, drill))


async def _begin(drill: Drill, request: web.Request) -> web.Response:
    """`?fault=store-down&for_s=300`, and for broker-down `&broker=host:port`."""
    if (refusal := refused_as_remote(request)) is not None:
        return refusal
    try:
        fault = Fault(request.query.get("fault", ""))
        for_s = float(request.query.get("for_s", ""))
        broker = request.query.get("broker")
        address = parse_host_port(broker) if broker else None
        must_be_connected = UNCONNECTED not in request.query_string.split("&")
    except ValueError as error:
        return web.Response(status=400, text=f"{error}\n")
    try:
        address_pair = None if address is None else (address.host, address.port)
        drill.begin(fault, for_s, address_pair, must_be_connected)
    except ConfigError as error:
        return web.Response(status=409, text=f"{error}\n")
    return _state_of(drill)


async def _renew(drill: Drill, request: web.Request) -> web.Response:
    """Also shows the drill that whoever began it is still there."""
    if (refusal := refused_as_remote(request)) is not None:
        return refusal
    drill.renew()
    return _state_of(drill)


async def _end(drill: Drill, request: web.Request) -> web.Response:
    if (refusal := refused_as_remote(request)) is not None:
        return refusal
    drill.end("it was ended by request")
    return _state_of(drill)


def _state_of(drill: Drill) -> web.Response:
    return web.json_response({"fault": drill.fault, "left_s": round(drill.left_s, 1)})


def refused_as_remote(request: web.Request) -> web.Response | None:
    if is_loopback(request.remote or ""):
        return None
    return web.Response(
        status=403, text="Drills are accepted only from this machine: use 127.0.0.1.\n"
    )
