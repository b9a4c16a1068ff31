"""Which `tls_*` and `sni_*` keys belong together, and who may use the proxy's own certificate.

Pure: reads no file and looks into none.
"""

from __future__ import annotations

from fetchproxy.config.addresses import is_loopback, parse_host_port
from fetchproxy.config.sections import ClusterConfig, GatewayConfig

_KEY = ("tls_key_file", "tls_key_password", "tls_key_password_file")
_CLIENTS = ("tls_client_ca_file", "sni_bootstrap_host", "sni_node_pattern")


def tls_fault(gateway: GatewayConfig, cluster: ClusterConfig) -> str | None:
    """What is wrong, by key and without any secret; None: nothing."""
    return _gateway_fault(gateway) or _cluster_fault(cluster) or _principal_fault(gateway, cluster)


def _gateway_fault(gateway: GatewayConfig) -> str | None:
    if gateway.tls_certificate_file is None:
        found = _set("gateway", gateway, (*_KEY, *_CLIENTS))
        if gateway.tls_client_auth != "none":
            found.append("gateway.tls_client_auth")
        if found:
            return f"{', '.join(found)}: needs gateway.tls_certificate_file"
    if (gateway.tls_client_auth == "none") != (gateway.tls_client_ca_file is None):
        return (
            f"gateway.tls_client_auth = {gateway.tls_client_auth}: "
            "it and gateway.tls_client_ca_file go together"
        )
    if (gateway.sni_bootstrap_host is None) != (gateway.sni_node_pattern is None):
        return "gateway.sni_bootstrap_host and gateway.sni_node_pattern: one needs the other"
    if gateway.sni_node_pattern is not None:
        found = _set("gateway", gateway, ("node_map",))
        found += ["gateway.node_port_base"] if gateway.node_port_base else []
        if found:
            return f"{', '.join(found)}: gateway.sni_node_pattern gives all brokers one port"
    return _two_passwords("gateway", gateway)


def _cluster_fault(cluster: ClusterConfig) -> str | None:
    if not cluster.security_protocol.endswith("SSL"):
        found = _set("cluster", cluster, ("tls_ca_file", "tls_certificate_file", *_KEY))
        if found:
            protocol = cluster.security_protocol
            return f"{', '.join(found)}: cluster.security_protocol = {protocol} has no TLS"
    if cluster.tls_certificate_file is None:
        found = _set("cluster", cluster, _KEY)
        if found:
            return f"{', '.join(found)}: needs cluster.tls_certificate_file"
    return _two_passwords("cluster", cluster)


def _principal_fault(gateway: GatewayConfig, cluster: ClusterConfig) -> str | None:
    """The relay shows the proxy's certificate for each client, so that the brokers take each for
    the proxy. With SASL_SSL each client says itself who it is."""
    if cluster.tls_certificate_file is None or cluster.security_protocol != "SSL":
        return None
    if gateway.tls_client_auth == "required" or is_loopback(parse_host_port(gateway.listen).host):
        return None
    return (
        f"cluster.tls_certificate_file with gateway.listen = {gateway.listen}: brokers would take "
        "whoever reaches it for the certificate's principal; expected gateway.tls_client_auth = "
        "required, a gateway.listen on loopback, or cluster.security_protocol = SASL_SSL"
    )


def _two_passwords(section: str, config: GatewayConfig | ClusterConfig) -> str | None:
    found = _set(section, config, ("tls_key_password", "tls_key_password_file"))
    return f"{' and '.join(found)}: only one of them may be set" if len(found) > 1 else None


def _set(section: str, config: object, names: tuple[str, ...]) -> list[str]:
    return [f"{section}.{name}" for name in names if getattr(config, name) is not None]
