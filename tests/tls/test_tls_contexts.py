"""What the configuration must not say, and files that are wrong: each is named at the start."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog
from certificates import Authority
from cryptography import x509
from pydantic import SecretStr

from fetchproxy.config.load import all_keys, load_config, parse_assignment
from fetchproxy.config.schema import ClusterConfig, Config, GatewayConfig, TlsConfig
from fetchproxy.config.values import SecretFile, is_loopback
from fetchproxy.errors import ConfigError
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.serving.gateway.addresses import ServerNames
from fetchproxy.tls.certificate_dates import first_certificate, not_after
from fetchproxy.tls.contexts import client_context, server_context
from fetchproxy.tls.dial import server_name
from fetchproxy.tls.handshake_errors import handshake_error_in_words, other_protocol, reason_of
from fetchproxy.tls.reloading import listener_context, upstream_context

PASSWORD = "open-sesame-18"


def gateway(**keys: object) -> GatewayConfig:
    return GatewayConfig.model_validate(keys)


def fault_of(**keys: object) -> str:
    with pytest.raises(ConfigError) as error:
        server_context(gateway(**keys), TlsConfig())
    assert PASSWORD not in str(error.value)
    return str(error.value)


def test_defaults_speak_tls_nowhere_and_listen_on_loopback() -> None:
    config = Config()
    assert listener_context(config.gateway, config.tls) is None
    assert upstream_context(config.cluster, config.tls) is None
    assert is_loopback(config.gateway.listen.rpartition(":")[0])
    assert config.console.listen is None


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("LocalHost", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False),
     ("proxy.example", False), ("", False)],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# -- rules between keys ----------------------------------------------------------------------------
CERTIFICATE = "gateway.tls_certificate_file=/c.pem"
SNI = [CERTIFICATE, "gateway.sni_bootstrap_host=b.x", "gateway.sni_node_pattern=b-{node_id}.x"]


@pytest.mark.parametrize(
    ("assignments", "named"),
    [
        (["gateway.tls_key_file=/k"], "gateway.tls_certificate_file"),
        (["gateway.tls_client_auth=required"], "gateway.tls_certificate_file"),
        (["gateway.sni_node_pattern=b-{node_id}.x"], "gateway.tls_certificate_file"),
        ([CERTIFICATE, "gateway.tls_client_auth=required"], "gateway.tls_client_ca_file"),
        ([CERTIFICATE, "gateway.tls_client_ca_file=/ca"], "gateway.tls_client_auth = none"),
        ([CERTIFICATE, "gateway.sni_node_pattern=b-{node_id}.x"], "gateway.sni_bootstrap_host"),
        ([CERTIFICATE, "gateway.sni_bootstrap_host=b.x"], "gateway.sni_node_pattern"),
        ([*SNI, "gateway.node_map=1=9301"], "gives all brokers one port"),
        ([*SNI, "gateway.node_port_base=9000"], "gives all brokers one port"),
        (["gateway.tls_key_password.file=/p"], "gateway.tls_certificate_file"),
        (["cluster.tls_ca_file=/ca"], "cluster.security_protocol = PLAINTEXT"),
        (["cluster.security_protocol=SSL", "cluster.tls_key_file=/k"],
         "cluster.tls_certificate_file"),
        (["cluster.security_protocol=TLS"], "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (["gateway.sni_bootstrap_host=10.0.0.1"], "a host name, not an address"),
        (["gateway.sni_node_pattern=broker.example"], "{node_id} once"),
        (["gateway.sni_node_pattern={node_id}.{node_id}.example"], "{node_id} once"),
        (["gateway.sni_node_pattern=b-{node_id}.example:65536"], "{node_id} once"),
        (["gateway.sni_node_pattern=b-{node_id}.example:"], "{node_id} once"),
        (["tls.protocol_min=TLSv1.1"], "one of TLSv1.2, TLSv1.3"),
    ],
)  # fmt: skip
def test_keys_that_do_not_go_together(assignments: list[str], named: str) -> None:
    with pytest.raises(
        ConfigError, match=r"expected|needs|together|no TLS|only one|one port"
    ) as error:
        load_config(None, {}, [parse_assignment(text) for text in assignments])
    assert named in str(error.value)
    assert PASSWORD not in str(error.value)


OWN_CERTIFICATE = ["cluster.security_protocol=SSL", "cluster.tls_certificate_file=/own.pem"]
PUBLIC = "gateway.listen=0.0.0.0:9192"
CLIENTS = [CERTIFICATE, "gateway.tls_client_ca_file=/ca"]


@pytest.mark.parametrize("more", [[], [*CLIENTS, "gateway.tls_client_auth=requested"]])
def test_strangers_do_not_get_the_principal_of_the_proxys_certificate(more: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(
            None, {}, [parse_assignment(text) for text in [*OWN_CERTIFICATE, PUBLIC, *more]]
        )
    for word in ("cluster.tls_certificate_file", "gateway.tls_client_auth = required", "loopback"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    "assignments",
    [
        OWN_CERTIFICATE,
        [*OWN_CERTIFICATE, "gateway.listen=[::1]:9192"],
        [*OWN_CERTIFICATE, PUBLIC, *CLIENTS, "gateway.tls_client_auth=required"],
        [OWN_CERTIFICATE[0], PUBLIC],
        # Each client says who it is, and the certificate is none of it.
        ["cluster.security_protocol=SASL_SSL", OWN_CERTIFICATE[1], PUBLIC,
         "cluster.sasl_mechanism=PLAIN", "cluster.sasl_username=u", "cluster.sasl_password=p"],
    ],
)  # fmt: skip
def test_who_may_use_the_proxys_certificate(assignments: list[str]) -> None:
    load_config(None, {}, [parse_assignment(text) for text in assignments])


def test_every_key_can_be_set_by_its_variable() -> None:
    values = {
        "gateway.tls_client_auth": "required",
        "gateway.sni_bootstrap_host": "kafka.example",
        "gateway.sni_node_pattern": "b-{node_id}.example:443",
        "cluster.tls_verify_hostname": "False",
    }
    keys = [key for key in all_keys().values() if key.name.startswith(("tls_", "sni_"))]
    assert len(keys) > 11
    texts = {key: values.get(key.dotted, "/x") for key in keys}
    for of_file in ("", "_FILE"):  # one of the two variables of a secret
        environ = {k.variable + (of_file if k.is_secret else ""): t for k, t in texts.items()}
        config = load_config(None, environ | {"FETCHPROXY_CLUSTER_SECURITY_PROTOCOL": "SSL"})
        for key, text in texts.items():
            value = getattr(getattr(config, key.section), key.name)
            if key.is_secret:
                assert isinstance(value, SecretFile if of_file else SecretStr)
            text_shown = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            assert (str(value.file) if isinstance(value, SecretFile) else text_shown) == text, (
                key.dotted
            )


def test_a_password_is_not_in_what_the_configuration_prints() -> None:
    environ = {
        "FETCHPROXY_GATEWAY_TLS_KEY_PASSWORD": PASSWORD,
        "FETCHPROXY_GATEWAY_TLS_CERTIFICATE_FILE": "/c.pem",
    }
    config = load_config(None, environ)
    assert isinstance(config.gateway.tls_key_password, SecretStr)
    assert config.gateway.tls_key_password.get_secret_value() == PASSWORD
    assert PASSWORD not in repr(config) + str(config.model_dump()) + config.model_dump_json()


# -- files -----------------------------------------------------------------------------------------
def test_a_pair_in_one_file_and_in_two(authority: Authority) -> None:
    for key_file in (False, True):
        file = authority.issue("pair", key_file=key_file)
        key = authority.key_of(file) if key_file else None
        loaded = server_context(gateway(tls_certificate_file=file, tls_key_file=key), TlsConfig())
        assert loaded.context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert loaded.context.verify_mode == ssl.CERT_NONE
        certificate = x509.load_pem_x509_certificates(file.read_bytes())[0]
        assert loaded.not_after == certificate.not_valid_after_utc.timestamp()


def test_the_password_of_a_key(authority: Authority, tmp_path: Path) -> None:
    file = authority.issue("locked", password=PASSWORD)
    server_context(gateway(tls_certificate_file=file, tls_key_password=PASSWORD), TlsConfig())
    word = tmp_path / "password"
    word.write_text(PASSWORD + "\n")
    password = SecretFile(file=word)
    server_context(gateway(tls_certificate_file=file, tls_key_password=password), TlsConfig())
    assert "gateway.tls_key_password is not set" in fault_of(tls_certificate_file=file)
    wrong = fault_of(tls_certificate_file=file, tls_key_password=PASSWORD + "x")
    assert "cannot be decrypted" in wrong
    missing = fault_of(
        tls_certificate_file=file, tls_key_password=SecretFile(file=tmp_path / "none")
    )
    assert "the file of gateway.tls_key_password cannot be read" in missing


def test_wrong_files_are_named(authority: Authority, tmp_path: Path) -> None:
    one, other = authority.issue("one", key_file=True), authority.issue("other", key_file=True)
    garbage, binary = tmp_path / "garbage.pem", tmp_path / "binary.pem"
    garbage.write_text("no PEM")
    binary.write_bytes(b"\xff\xfe\x00")
    unfit = fault_of(tls_certificate_file=one, tls_key_file=authority.key_of(other))
    assert f"tls_key_file = {authority.key_of(other)}: does not belong to" in unfit
    assert f"tls_certificate_file = {one}" in unfit
    gone = tmp_path / "gone.pem"
    assert f"gateway.tls_certificate_file = {gone}: cannot be read: No such file" in fault_of(
        tls_certificate_file=gone
    )
    assert f"gateway.tls_key_file = {gone}: cannot be read" in fault_of(
        tls_certificate_file=one, tls_key_file=gone
    )
    assert "holds no certificate" in fault_of(tls_certificate_file=garbage)
    assert "is not PEM" in fault_of(tls_certificate_file=binary)
    assert "no private key that fits" in fault_of(tls_certificate_file=one)
    assert f"gateway.tls_key_file = {garbage}: no private key" in fault_of(
        tls_certificate_file=one, tls_key_file=garbage
    )
    assert f"gateway.tls_client_ca_file = {garbage}: holds no certificates" in fault_of(
        tls_certificate_file=authority.issue("good"),
        tls_client_ca_file=garbage,
        tls_client_auth="required",
    )


def test_towards_brokers(authority: Authority, tmp_path: Path) -> None:
    config = ClusterConfig(security_protocol="SASL_SSL", tls_ca_file=authority.file)
    loaded = client_context(config, TlsConfig(protocol_min="TLSv1.3"))
    assert loaded.context.verify_mode == ssl.CERT_REQUIRED
    assert loaded.context.check_hostname
    assert loaded.context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert loaded.not_after is None
    lax = ClusterConfig(
        security_protocol="SSL", tls_ca_file=authority.file, tls_verify_hostname=False
    )
    context = client_context(lax, TlsConfig()).context
    assert not context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED, "the chain is checked all the same"
    assert server_name("broker-1.example.") == "broker-1.example"
    with pytest.raises(ConfigError, match=r"cluster\.tls_ca_file"):
        client_context(
            ClusterConfig(security_protocol="SSL", tls_ca_file=tmp_path / "x"), TlsConfig()
        )


@pytest.mark.parametrize("year", [1999, 2049, 2050, 2150])
def test_when_a_certificate_ends(authority: Authority, year: int) -> None:
    """UTCTime until 2049, GeneralizedTime from 2050 on."""
    ends = datetime(year, 12, 31, 23, 59, 58, tzinfo=UTC)
    pem = authority.issue("dated", ends=ends).read_text()
    assert not_after(first_certificate(pem)) == ends.timestamp()


@pytest.mark.parametrize("label", ["X509 CERTIFICATE", "TRUSTED CERTIFICATE"])
def test_every_label_that_openssl_loads(authority: Authority, label: str) -> None:
    file = authority.issue("labelled")
    ends = not_after(first_certificate(file.read_text()))
    file.write_text(file.read_text().replace("CERTIFICATE", label))
    assert server_context(gateway(tls_certificate_file=file), TlsConfig()).not_after == ends


@pytest.mark.parametrize("name", [b"*.abc.de", b"a@b.de.x", b"A & B Co", b"my_host_"])
def test_a_name_that_strict_parsers_refuse_has_a_date(authority: Authority, name: bytes) -> None:
    """Authorities put characters into PrintableString that it has not. OpenSSL loads them."""
    file = authority.issue("Abcdefgh")
    der = first_certificate(file.read_text())
    # UTF8String (0x0c) to PrintableString (0x13); the signature no longer fits, and is not checked.
    odd = der.replace(b"\x0c\x08Abcdefgh", b"\x13\x08" + name)
    assert odd != der
    with pytest.raises(ValueError, match="PrintableString"):
        x509.load_der_x509_certificate(odd)
    secret = file.read_text().partition("-----BEGIN CERTIFICATE")[0]
    file.write_text(secret + ssl.DER_cert_to_PEM_cert(odd))
    loaded = server_context(gateway(tls_certificate_file=file), TlsConfig())
    assert loaded.not_after == not_after(der)


def test_a_damaged_certificate_is_named(authority: Authority) -> None:
    file = authority.issue("damaged")
    lines = file.read_text().splitlines()
    at = lines.index("-----BEGIN CERTIFICATE-----") + 2
    for damaged in ([*lines[:at], *lines[at + 1 :]], [*lines[:at], "!", *lines[at + 1 :]],
                    [*lines[:at], "ü", *lines[at + 1 :]]):  # fmt: skip
        file.write_text("\n".join(damaged) + "\n", encoding="utf-8")
        assert f"tls_certificate_file = {file}: is not a certificate" in fault_of(
            tls_certificate_file=file
        )


@pytest.mark.parametrize("der", [b"", b"\x30", b"\x02\x01\x01", b"\x30\x03\x30\x01\x02"])
def test_what_is_no_certificate(der: bytes) -> None:
    with pytest.raises(ValueError, match="is not a certificate"):
        not_after(der)


# -- reloading -------------------------------------------------------------------------------------
async def test_expiry_is_warned_of_once_a_day(authority: Authority) -> None:
    ends = datetime.now(UTC) + timedelta(hours=49.5)
    file = authority.issue("short", ends=ends)
    source = listener_context(gateway(tls_certificate_file=file), TlsConfig())
    assert source is not None
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    day_ms = 86_400_000
    with structlog.testing.capture_logs() as logged:
        source.warn_of_expiry(now_ms, day_ms)
        assert not logged
        for _ in range(3):
            source.warn_of_expiry(now_ms, 3 * day_ms)
    assert [(entry["event"], entry["hours_left"]) for entry in logged] == [
        ("tls_certificate_expires", 49)
    ]
    name = "fetchproxy_tls_certificate_expiry_timestamp_seconds"
    assert REGISTRY.get_sample_value(name, {"place": "listener"}) == int(ends.timestamp())
    expired = listener_context(gateway(tls_certificate_file=file), TlsConfig())
    assert expired is not None
    with structlog.testing.capture_logs() as logged:
        expired.warn_of_expiry(now_ms + 3 * day_ms, day_ms)
    assert logged[0]["event"] == "tls_certificate_expired"


@pytest.mark.remedy("tls_certificate_expires")
async def test_a_certificate_that_is_replaced_in_its_file_ends_the_warning(
    authority: Authority,
) -> None:
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    file = authority.issue("replaced", ends=datetime.now(UTC) + timedelta(hours=5))
    source = listener_context(gateway(tls_certificate_file=file), TlsConfig())
    assert source is not None
    source.warn_of_expiry(now_ms, 86_400_000)
    assert [one.kind for one in source.health.all(0.0)] == ["tls_certificate_expires"]
    authority.issue("replaced", ends=datetime.now(UTC) + timedelta(days=90))
    await source.reload_if_changed()
    source.warn_of_expiry(now_ms, 86_400_000)
    assert not list(source.health.all(0.0))


@pytest.mark.remedy("tls_files_unusable")
async def test_a_file_that_goes_and_comes_back(authority: Authority, tmp_path: Path) -> None:
    """As a secret does that is swapped by hand: same content, so nothing to load, and no fault."""
    file = authority.issue("moved")
    source = listener_context(gateway(tls_certificate_file=file), TlsConfig())
    assert source is not None
    before = source.context
    away = file.rename(tmp_path / "away.pem")
    with structlog.testing.capture_logs() as logged:
        await source.reload_if_changed()
        await source.reload_if_changed()
        assert [entry["event"] for entry in logged] == ["tls_files_unusable"]
        assert source.context is before
        away.rename(file)
        await source.reload_if_changed()
    assert REGISTRY.get_sample_value("fetchproxy_tls_files_unusable", {"place": "listener"}) == 0


async def test_each_file_is_watched(authority: Authority, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.file.read_bytes())
    config = ClusterConfig(
        security_protocol="SSL", tls_ca_file=ca, tls_certificate_file=authority.issue("own")
    )
    source = upstream_context(config, TlsConfig())
    assert source is not None
    before = source.context
    await source.reload_if_changed()
    assert source.context is before, "nothing has changed"
    ca.write_bytes(authority.file.read_bytes() + Authority(tmp_path, "second").file.read_bytes())
    await source.reload_if_changed()
    assert source.context is not before
    assert len(source.context.get_ca_certs()) == 2
    before = source.context
    authority.issue("own")
    await source.reload_if_changed()
    assert source.context is not before


# -- names and words -------------------------------------------------------------------------------
def test_server_names() -> None:
    names = ServerNames("Kafka.example.com", "Broker-{node_id}.example.com")
    assert names.port == 0
    assert names.host_of(12) == "Broker-12.example.com"
    assert names.node_of("broker-12.EXAMPLE.com") == 12
    for bootstrap in (None, "kafka.example.com", "KAFKA.example.com"):
        assert names.knows(bootstrap)
        assert names.node_of(bootstrap) is None
    assert names.knows("broker-0.example.com")
    for unknown in (
        "broker-.example.com", "broker-01.example.com", "broker-1.example.com.evil",
        "broker-1xexample.com", "xbroker-1.example.com", "broker--1.example.com", "", "other",
        "broker-12345678901.example.com",
    ):  # fmt: skip
        assert not names.knows(unknown), unknown
        assert names.node_of(unknown) is None


def test_other_protocols_are_known_by_their_first_bytes() -> None:
    def spoken(first: bytes) -> str | None:
        return other_protocol(int.from_bytes(first[:4], signed=True))

    for hello in (b"\x16\x03\x01\x02", b"\x15\x03\x03\x00"):
        assert spoken(hello) == "TLS"
    for header in (b"PROXY TCP4 10.0.0.1", b"\r\n\r\n\0\r\nQUIT\n"):
        assert "PROXY protocol" in str(spoken(header))
    for method in (b"GET /", b"POST /", b"PUT /", b"HEAD /", b"OPTIONS *", b"CONNECT a:1"):
        assert spoken(method) == "HTTP"
    assert spoken(b"PRI * HTTP/2.0") == "HTTP/2"
    assert spoken(b"HTTP/1.1 200 OK") == "HTTP"
    assert spoken(b"SSH-2.0-OpenSSH") == "SSH"
    for plain in (0, 100, 100 << 20, int.from_bytes(b"\x16\x04\x00\x00"), 0x7FFFFFFF, -1):
        assert other_protocol(plain) is None


def test_failures_in_words() -> None:
    assert reason_of(ConnectionResetError()) == "closed"
    assert handshake_error_in_words(ConnectionResetError()) == "closed within the handshake"
    assert reason_of(ConnectionAbortedError("too long")) == "timeout"
    assert handshake_error_in_words(ConnectionRefusedError(111, "Connection refused")).endswith(
        "refused"
    )
    assert reason_of(OSError("?")) == "other"
