"""Checks of the proxy's addresses: free before it starts, and as clients see them while it runs."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig, Config, GatewayConfig
from fetchproxy.config.values import (
    HostPort,
    is_any_address,
    is_loopback,
    parse_host_port,
    parse_node_map,
)
from fetchproxy.doctor.brokers import dial_each
from fetchproxy.doctor.installation import (
    NOTHING,
    CheckFunction,
    DoesNotApply,
    Finding,
    Installation,
    NotChecked,
    Passed,
    from_brokers,
)
from fetchproxy.doctor.settings import own_addresses
from fetchproxy.errors import ClusterError, system_error_in_words
from fetchproxy.serving.gateway.addresses import PORTS, ServerNames
from fetchproxy.tls.contexts import LoadedContext
from fetchproxy.tls.reloading import ReloadingContext

_CONNECT_MAX_MS = 3_000
_REQUEST_MAX_MS = 10_000
_READYZ_MAX_S = 5.0
_READYZ_BYTES_MAX = 64 * 1024
_PEM_BEGIN = "-----BEGIN CERTIFICATE-----"


async def _ports_are_free(installation: Installation) -> Sequence[Finding]:
    if not installation.before:
        raise DoesNotApply("only with --before")
    findings: list[Finding] = []
    for key, address in await _ports_to_open(installation):
        try:
            await _bind(address)
        except OSError as error:
            words = {"key": f"`{key}`", "port": address.port, "address": address}
            findings.append(Finding(f"{key}: {address}: {system_error_in_words(error)}", words))
    return findings


async def _bind(address: HostPort) -> None:
    """As the listener does, but nobody is accepted."""
    loop = asyncio.get_running_loop()
    host, port = address.host, address.port
    server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    server.close()


async def _ports_to_open(installation: Installation) -> list[tuple[str, HostPort]]:
    config = installation.config
    listen = parse_host_port(config.gateway.listen)
    ports = [("gateway.listen", listen)]
    for address in parse_node_map(config.gateway.node_map or "").values():
        ports.append(("gateway.node_map", HostPort(listen.host, address.listen_port)))
    base = config.gateway.node_port_base
    if base and not config.archive_only.enabled:
        mapped_addresses = parse_node_map(config.gateway.node_map or "")
        nodes = await from_brokers((await installation.cluster()).brokers())
        for node in sorted(nodes.keys() - mapped_addresses.keys()):
            if base + node < PORTS:
                ports.append(("gateway.node_port_base", HostPort(listen.host, base + node)))
    if config.console.listen is not None:
        ports.append(("console.listen", parse_host_port(config.console.listen)))
    return ports


async def _names_resolve(installation: Installation) -> Sequence[Finding]:
    loop = asyncio.get_running_loop()
    findings: list[Finding] = []
    for host in await advertised_hosts(installation):
        try:
            await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            findings.append(Finding(f"{host}: {system_error_in_words(error)}", {"host": host}))
        except UnicodeError as error:
            findings.append(Finding(f"{host}: {error}", {"host": host}))
    return findings


async def advertised_hosts(installation: Installation) -> list[str]:
    """The hosts that clients dial. With server names (SNI), those of the brokers if they answer."""
    config = installation.config
    nodes: Collection[int] = ()
    if config.gateway.sni_node_pattern is not None:
        with suppress(NotChecked):
            nodes = (await from_brokers((await installation.cluster()).brokers())).keys()
    return list(dict.fromkeys(_hosts(config.gateway, sorted(nodes))))


def _hosts(gateway: GatewayConfig, nodes: Iterable[int]) -> Iterator[str]:
    if gateway.sni_bootstrap_host is not None:
        yield gateway.sni_bootstrap_host
    elif not is_any_address(host := gateway.advertise_host or parse_host_port(gateway.listen).host):
        yield host
    if (names := ServerNames.of(gateway)) is not None:
        yield from map(names.host_of, nodes)
    for address in parse_node_map(gateway.node_map or "").values():
        if address.host is not None:
            yield address.host


async def _no_loopback_for_others(installation: Installation) -> Sequence[Finding]:
    listen = parse_host_port(installation.config.gateway.listen).host
    if is_loopback(listen):
        return NOTHING
    hosts = [host for host in await advertised_hosts(installation) if is_loopback(host)]
    return [
        Finding(f"the listener is at {listen}, but clients are given {host}", {"host": host})
        for host in hosts
    ]


# --- a proxy that runs ---


def _running_address(installation: Installation) -> HostPort:
    """Where it should take connections. Raises NotChecked."""
    if installation.before:
        raise DoesNotApply("--before: nothing runs yet")
    address = installation.clients_address()
    if not address.port:
        raise NotChecked(f"gateway.listen = {installation.config.gateway.listen}: any port")
    return address


async def _takes_connections(installation: Installation) -> Sequence[Finding]:
    faults = await dial_each([_running_address(installation)], _CONNECT_MAX_MS)
    return [Finding(reason, {"address": address}) for address, reason in faults.items()]


@asynccontextmanager
async def _cluster_through_proxy(installation: Installation) -> AsyncIterator[Cluster]:
    """The cluster as a client sees it through the proxy. Raises NotChecked."""
    address = _running_address(installation)
    config = installation.config
    gateway, tls = config.gateway, None
    if not config.archive_only.enabled and own_addresses(installation):
        raise NotChecked("`cluster.bootstrap` is the proxy's own address")
    if gateway.tls_client_auth == "required":
        raise NotChecked("clients need a certificate, but doctor has none")
    if config.archive_only.users_file is not None:
        raise NotChecked("clients need a password, but doctor has none")
    if gateway.tls_certificate_file is not None:
        certificate = gateway.tls_certificate_file
        tls = ReloadingContext("doctor", lambda: LoadedContext(trusting(certificate), None), ())
    async with Cluster(_client_config(config, address), tls=tls) as cluster:
        yield cluster


def _client_config(config: Config, address: HostPort) -> ClusterConfig:
    has_sasl = config.cluster.security_protocol.startswith("SASL_") and (
        not config.archive_only.enabled
    )
    has_tls = config.gateway.tls_certificate_file is not None
    protocol = "SSL" if has_tls else "PLAINTEXT"
    client_settings = {
        "bootstrap": str(address),
        "security_protocol": f"SASL_{protocol}" if has_sasl else protocol,
        "request_max_ms": _REQUEST_MAX_MS,
    }
    if not has_sasl:
        return ClusterConfig.model_validate(client_settings)
    return config.cluster.model_copy(update=client_settings)


def trusting(file: Path, *, last_only: bool = False) -> ssl.SSLContext:
    """A client that trusts the certificates in `file` and the system's authorities. `last_only`: of
    the file, only the last one, so that the others have to lead to it. Raises OSError, ValueError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if last_only:
        _, begin, last = file.read_text(encoding="utf-8").rpartition(_PEM_BEGIN)
        context.load_verify_locations(cadata=f"{begin}{last}")
    else:
        context.load_verify_locations(cafile=file)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


async def _responds_to_clients(installation: Installation) -> Passed | Sequence[Finding]:
    async with _cluster_through_proxy(installation) as proxy:
        try:
            nodes = await proxy.brokers(0)
        except ClusterError as error:
            await _unless_brokers_are_away(installation)
            return [Finding(str(error))]
    gateway = installation.config.gateway
    # With names of its own for each broker, the proxy may advertise the brokers' very names.
    may_be_same = gateway.sni_node_pattern is not None or gateway.node_map is not None
    if not installation.config.archive_only.enabled and not may_be_same:
        direct = await from_brokers((await installation.cluster()).brokers())
        if nodes and set(nodes.values()) == set(direct.values()):
            return [
                Finding(
                    f"a broker responds at {_running_address(installation)} instead of the proxy"
                )
            ]
    return Passed(", ".join(str(address) for _, address in sorted(nodes.items())))


async def _unless_brokers_are_away(installation: Installation) -> None:
    if not installation.config.archive_only.enabled:
        await from_brokers((await installation.cluster()).brokers(0))


async def _advertises_what_works(installation: Installation) -> Sequence[Finding]:
    findings: list[Finding] = []
    async with _cluster_through_proxy(installation) as proxy:
        addresses = (await from_brokers(proxy.brokers())).values()
        unreachable = await dial_each(list(dict.fromkeys(addresses)), _CONNECT_MAX_MS)
        for address in dict.fromkeys(addresses):
            reason = unreachable.get(address)
            if reason is None:
                reason = await _handshake_error(proxy, address)
            if reason is not None:
                findings.append(Finding(reason, {"address": address, "host": address.host}))
    return findings


async def _handshake_error(proxy: Cluster, address: HostPort) -> str | None:
    try:
        await proxy.greet(address)
    except ClusterError as error:
        return str(error)
    return None


async def _is_ready(installation: Installation) -> Sequence[Finding]:
    if installation.before:
        raise DoesNotApply("--before: nothing runs yet")
    if installation.config.console.listen is None:
        raise DoesNotApply("`console.listen` is not set")
    address = parse_host_port(installation.config.console.listen)
    host = "127.0.0.1" if is_any_address(address.host) else address.host
    try:
        status, text = await asyncio.to_thread(_readyz, host, address.port)
    except OSError as error:
        return [Finding(f"{address}: {system_error_in_words(error)}")]
    except http.client.HTTPException as error:
        return [Finding(f"{address}: {str(error) or type(error).__name__}")]
    return NOTHING if status == http.HTTPStatus.OK else [Finding(f"{status}: {text}")]


def _readyz(host: str, port: int) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=_READYZ_MAX_S)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        return response.status, response.read(_READYZ_BYTES_MAX).decode(errors="replace")
    finally:
        connection.close()


LISTENER_CHECKS: Mapping[str, CheckFunction] = {
    "FP0301": _ports_are_free,
    "FP0302": _names_resolve,
    "FP0303": _no_loopback_for_others,
    "FP0304": _takes_connections,
    "FP0305": _responds_to_clients,
    "FP0306": _advertises_what_works,
    "FP0307": _is_ready,
}
