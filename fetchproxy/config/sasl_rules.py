"""Which `cluster.sasl_*` keys belong together. Pure: reads no file, knows no mechanism's bytes."""

from __future__ import annotations

from fetchproxy.config.sections import ClusterConfig

_PASSWORD = ("sasl_password", "sasl_password_file")
_TOKEN = ("sasl_oauthbearer_token_file", "sasl_oauthbearer_token_endpoint_url")
_SECRET = ("sasl_oauthbearer_client_secret", "sasl_oauthbearer_client_secret_file")
_ENDPOINT_ONLY = ("sasl_oauthbearer_client_id", *_SECRET, "sasl_oauthbearer_scope")
_BY_PASSWORD = ("sasl_username", *_PASSWORD)
_BY_TOKEN = (*_TOKEN, *_ENDPOINT_ONLY)


def sasl_fault(cluster: ClusterConfig) -> str | None:
    """What is wrong, by key and without any value but the mechanism's; None: nothing.

    No colon follows a key: what stands behind `password:` is masked wherever it is shown.
    """
    protocol, mechanism = cluster.security_protocol, cluster.sasl_mechanism
    if not protocol.startswith("SASL_"):
        because = f"cluster.security_protocol = {protocol} has no SASL"
        return _must_not(cluster, ("sasl_mechanism", *_BY_PASSWORD, *_BY_TOKEN), because)
    if mechanism is None:
        return f"cluster.sasl_mechanism has to be set for cluster.security_protocol = {protocol}"
    because = f"cluster.sasl_mechanism = {mechanism}"
    if mechanism != "OAUTHBEARER":
        return (
            _must_not(cluster, _BY_TOKEN, because)
            or _one_of(cluster, ("sasl_username",), because)
            or _one_of(cluster, _PASSWORD, because)
        )
    fault = _must_not(cluster, _BY_PASSWORD, because) or _one_of(cluster, _TOKEN, because)
    if fault is not None:
        return fault
    if cluster.sasl_oauthbearer_token_endpoint_url is None:
        return _must_not(cluster, _ENDPOINT_ONLY, "a token file")
    because = "cluster.sasl_oauthbearer_token_endpoint_url"
    return _one_of(cluster, ("sasl_oauthbearer_client_id",), because) or _one_of(
        cluster, _SECRET, because
    )


def _set(cluster: ClusterConfig, names: tuple[str, ...]) -> list[str]:
    return [f"cluster.{name}" for name in names if getattr(cluster, name) is not None]


def _must_not(cluster: ClusterConfig, names: tuple[str, ...], because: str) -> str | None:
    found = _set(cluster, names)
    return f"{', '.join(found)} must not be set with {because}" if found else None


def _one_of(cluster: ClusterConfig, names: tuple[str, ...], because: str) -> str | None:
    found = _set(cluster, names)
    if len(found) > 1:
        return f"only one of {' and '.join(found)} may be set"
    wanted = " or ".join(f"cluster.{name}" for name in names)
    return None if found else f"{wanted} has to be set for {because}"
