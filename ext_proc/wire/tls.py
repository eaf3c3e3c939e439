"""TLS of a gRPC server whose certificates may change: a handshake takes those in force, connections go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc


class ServerTls:
    """The certificates in force.

    Args:
        key: PEM of the private key.
        chain: PEM of the certificate and those it is signed by.
        client_ca: PEM of the authorities whose clients are let in; None lets all in. Whether there is one is settled
            here for good.
    """

    def __init__(self, key: bytes, chain: bytes, client_ca: bytes | None = None) -> None:
        self._verifies = client_ca is not None
        self._configuration = grpc.ssl_server_certificate_configuration([(key, chain)], client_ca)

    def replace(self, key: bytes, chain: bytes, client_ca: bytes | None = None) -> None:
        """Give new connections other certificates."""
        self._configuration = grpc.ssl_server_certificate_configuration([(key, chain)], client_ca)

    def credentials(self) -> grpc.ServerCredentials:
        """Make the credentials of one address: the library remembers per address what it was given last."""
        fetcher: Any = self._fetcher()  # whose type stubs do not know that it may return None
        return grpc.dynamic_ssl_server_credentials(self._configuration, fetcher, self._verifies)

    def _fetcher(self) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
        given = self._configuration

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            # Called before each handshake, on a thread of the library, one at a time per address.
            nonlocal given
            wanted = self._configuration
            if wanted is given:
                return None
            given = wanted
            return wanted

        return fetch
