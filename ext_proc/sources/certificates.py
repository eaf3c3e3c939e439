"""The certificates of the gRPC server: read from files and read again when those change, or made for the occasion."""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib
import ipaddress
import ssl
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from ext_proc.config import TlsConfig
from ext_proc.core.errors import ConfigError

LOOK_S: Final = 1.0
"""Seconds between two looks at the files."""

VALID_DAYS: Final = 3650
"""Days for which a self-signed certificate is valid; one is made at each start."""

MAX_BYTES: Final = 1024 * 1024
"""Bytes of a file of certificates, at most."""

NEEDED: Final = "a self-signed certificate needs the package cryptography: pip install 'kvpicker[tls]'"


class Certificates(NamedTuple):
    """What a server proves itself with, all PEM: private key, certificate chain, and whose clients it lets in."""

    key: bytes
    chain: bytes
    client_ca: bytes | None


def check(config: TlsConfig | None) -> None:
    """Tell whether certificates can be had as configured.

    Raises:
        ConfigError: a file cannot be used, or a package is missing.
    """
    if config is None:
        return
    if config.certificate is None and find_spec("cryptography") is None:
        raise ConfigError(NEEDED, path="tls.certificate")
    if config.certificate is not None or config.client_ca is not None:
        _read_files(config)


def obtain(config: TlsConfig) -> Certificates:
    """Read the certificates, or make one that signs itself.

    Raises:
        ConfigError: a file cannot be used, or the package that makes certificates is missing.
    """
    found = _read_files(config)
    if config.certificate is None:
        key, chain = self_signed()
        found = found._replace(key=key, chain=chain)
    return found


class CertificateFiles:
    """Watches the files of a configuration.

    Args:
        config: names the files.
        current: what they held when the server started.
        on_change: takes other certificates.
        on_error: takes what is wrong with the files, once as long as it stays the same. What the next look no longer
            finds was a replacement under way.

    Attributes:
        error: why what the files hold now is not in force; None if it is.
    """

    def __init__(
        self,
        config: TlsConfig,
        current: Certificates,
        on_change: Callable[[Certificates], None],
        on_error: Callable[[ConfigError], None],
    ) -> None:
        self.error: ConfigError | None = None
        self._suspected = ""
        self._config = config
        self._current = current
        self._on_change = on_change
        self._on_error = on_error

    async def run(self) -> None:
        """Look at the files until cancelled."""
        if self._config.certificate is None and self._config.client_ca is None:
            return
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                found = await asyncio.to_thread(_read_files, self._config)
            except ConfigError as error:
                self._failed(error)
            else:
                self._found(found)

    def _found(self, found: Certificates) -> None:
        self.error, self._suspected = None, ""
        if self._config.certificate is None:  # what we made ourselves stays
            found = found._replace(key=self._current.key, chain=self._current.chain)
        if found != self._current:
            self._current = found
            self._on_change(found)

    def _failed(self, error: ConfigError) -> None:
        last, self._suspected = self._suspected, str(error)
        if last == str(error) and (self.error is None or str(self.error) != last):
            self.error = error
            self._on_error(error)


def _read_files(config: TlsConfig) -> Certificates:
    """Read what the configuration names and check that key and certificate belong together.

    The check reads the files anew, so they are read before and after it: files that are being replaced may be of two
    minds.
    """
    before = _contents(config)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if config.certificate is not None:
        _check_pair(context, config.certificate, config.key or "")
    if config.client_ca is not None:
        try:
            context.load_verify_locations(config.client_ca)
        except (OSError, ValueError):
            raise ConfigError(f"{config.client_ca} holds no certificate in PEM form", path="tls.client_ca") from None
    if _contents(config) != before:
        raise ConfigError("the files are being replaced", path="tls")
    return before


def _check_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    def no_password() -> bytes:
        raise ConfigError(f"{key} is encrypted; store the private key without a password", path="tls.key")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            raise ConfigError(f"{key} is not the private key of {certificate}", path="tls.key") from None
        raise ConfigError(
            f"{certificate} and {key} are no certificate and private key in PEM form", path="tls.certificate"
        ) from None
    except OSError as error:
        raise ConfigError(f"{certificate} or {key} cannot be read: {error.strerror}", path="tls.certificate") from None


def _contents(config: TlsConfig) -> Certificates:
    chain = b"" if config.certificate is None else _content(config.certificate, "certificate")
    key = b"" if config.key is None else _content(config.key, "key")
    return Certificates(key, chain, None if config.client_ca is None else _content(config.client_ca, "client_ca"))


def _content(path: str, field: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path=f"tls.{field}") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES} bytes", path=f"tls.{field}")
    return content


def self_signed() -> tuple[bytes, bytes]:
    """Make a private key and a certificate that it signs itself, both PEM; who connects cannot verify it.

    Raises:
        ConfigError: the package that makes certificates is missing.
    """
    try:
        x509, hashes, serialization, ec = _cryptography()
    except ImportError:
        raise ConfigError(NEEDED, path="tls.certificate") from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kvpicker")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))  # clocks differ
        .not_valid_after(now + dt.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), certificate.public_bytes(pem)


def _cryptography() -> tuple[Any, Any, Any, Any]:
    """Import the parts of an optional package."""
    hazmat = "cryptography.hazmat.primitives"
    names = ("cryptography.x509", f"{hazmat}.hashes", f"{hazmat}.serialization", f"{hazmat}.asymmetric.ec")
    x509, hashes, serialization, ec = map(importlib.import_module, names)
    return x509, hashes, serialization, ec
