"""Certificates made when a test runs: an authority and what it signs. None is checked in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)
Key = ec.EllipticCurvePrivateKey


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - 4000 * DAY)
        .not_valid_after(ends)
    )


def private_pem(key: Key, password: str | None = None) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode())
        if password
        else serialization.NoEncryption(),
    )


class Authority:
    """`file`: its certificate. `issue(...)` → certificate and key in one PEM file, or in two."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        self.certificate = (
            _builder(self._name, self._name, self._key, datetime.now(UTC) + 100 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        hosts: tuple[str, ...] = ("127.0.0.1", "localhost"),
        *,
        password: str | None = None,
        ends: datetime | None = None,
        key_file: bool = False,
    ) -> Path:
        """With `key_file` the key is in NAME-key.pem beside it."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_name(name), self._name, key, ends or datetime.now(UTC) + 90 * DAY)
            .add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        file = self.folder / f"{name}.pem"
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        secret = private_pem(key, password)
        if key_file:
            self.key_of(file).write_bytes(secret)
            file.write_bytes(pem)
        else:
            file.write_bytes(secret + pem)
        return file

    @staticmethod
    def key_of(file: Path) -> Path:
        return file.with_name(f"{file.stem}-key.pem")


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
