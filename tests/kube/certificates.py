"""An authority whose certificates fake API servers present."""

from __future__ import annotations

import ssl
from pathlib import Path

from tests import certificates


class Authority:
    """A certificate authority.

    Args:
        directory: where its files go.
        name: tells it from others.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.crt"
        self._directory = directory
        self._signer = certificates.Authority(name)
        self.path.write_bytes(self._signer.certificate)

    def server(self) -> ssl.SSLContext:
        """Return what a server at 127.0.0.1 needs to be trusted by those who trust the authority."""
        pair = self._signer.issue("fake")
        both = self._directory / f"{self.path.stem}-server.pem"
        both.write_bytes(pair.key + pair.certificate)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(both)
        return context
