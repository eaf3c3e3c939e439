"""Authorities and the certificates they give, for tests of encryption."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)
_PEM = serialization.Encoding.PEM


class Pair(NamedTuple):
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write them as a mounted secret has them, each file replaced as a whole."""
        folder.mkdir(exist_ok=True)
        paths = folder / "tls.crt", folder / "tls.key"
        for path, content in zip(paths, self, strict=True):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(content)
            fresh.replace(path)
        return paths


class Authority:
    """Signs certificates for one name, `picker.test`, and the loopback address."""

    def __init__(self, name: str = "authority") -> None:
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(self._name, self._name, self._key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        self.certificate = made.sign(self._key, hashes.SHA256()).public_bytes(_PEM)

    def issue(self, name: str, password: bytes | None = None, left: dt.timedelta = _DAY) -> Pair:
        """Make a certificate, valid since a day ago and for as long as `left`; with a password its key is encrypted."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("picker.test"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        made = _builder(_named(name), self._name, key, left).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        return Pair(
            made.sign(self._key, hashes.SHA256()).public_bytes(_PEM),
            key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, locked),
        )


async def presented(address: str) -> str:
    """Shake hands with a gRPC server and return the name in the certificate that it presents."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    _reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown = x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    writer.transport.abort()
    (name,) = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, left: dt.timedelta = _DAY
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + left)
    )
