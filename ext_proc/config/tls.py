"""The settings of encryption between Envoy and kvpicker."""

from __future__ import annotations

from ext_proc.config.section import Section, Text


class TlsConfig(Section, frozen=True, kw_only=True):
    """How the gRPC server is encrypted. `{}` makes a self-signed certificate at the start.

    Attributes:
        certificate: Path of a PEM file with the certificate and, behind it, those that it is signed by. Like `key` and
            `client_ca` it is watched: new connections get what it holds now, running ones go on. Unset makes a
            self-signed certificate at each start, for gateways that do not verify; that needs `kvpicker[tls]`.
        key: Path of a PEM file with the private key of `certificate`, not encrypted.
        client_ca: Path of a PEM file with authorities. Only clients with a certificate of theirs are let in (mutual
            TLS). Unset lets all in.
        plaintext: Further addresses, like those of `listen`, which are not encrypted: for a data plane that speaks
            plain HTTP/2.
    """

    certificate: Text | None = None
    key: Text | None = None
    client_ca: Text | None = None
    plaintext: tuple[str, ...] = ()

    def problem(self) -> tuple[str, str] | None:
        """Return a field and what is wrong with it; None if all is well."""
        if self.certificate is not None and self.key is None:
            return "key", "missing; a certificate needs the path of its private key"
        if self.key is not None and self.certificate is None:
            return (
                "certificate",
                "missing; a private key needs the path of its certificate",
            )
        return None
