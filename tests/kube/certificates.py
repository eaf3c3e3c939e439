"""An authority and the certificates it gives to fake API servers."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


class Authority:
    """A certificate authority.

    Args:
        directory: where its files go.
        name: tells it from others.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.crt"
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(self._name, self._name, self._key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        self._certificate = made.sign(self._key, hashes.SHA256())
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def server(self) -> ssl.SSLContext:
        """Return what a server at 127.0.0.1 needs to be trusted by those who trust the authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake")])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = _builder(subject, self._name, key).add_extension(names, critical=False)
        certificate = made.sign(self._key, hashes.SHA256())
        both = self._directory / f"{self.path.stem}-server.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        both.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(both)
        return context


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
