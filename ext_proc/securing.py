"""Carries certificates from where they come to the server that proves itself with them, and says what goes wrong."""

from __future__ import annotations

from collections.abc import Callable

from ext_proc.config import Config, TlsConfig
from ext_proc.core.errors import ConfigError
from ext_proc.ops.events import Event
from ext_proc.sources.certificates import CertificateFiles, Certificates, obtain
from ext_proc.wire.server import Doors
from ext_proc.wire.tls import ServerTls


class Securing:
    """TLS of the gRPC server, if it is configured.

    Args:
        config: where certificates come from; None encrypts nothing.
        say: writes a log event with its fields.

    Attributes:
        tls: what the server encrypts with; None if it does not.

    Raises:
        ConfigError: the certificates cannot be used.
    """

    def __init__(self, config: TlsConfig | None, say: Callable[..., None]) -> None:
        self.tls: ServerTls | None = None
        self._say = say
        self._files: CertificateFiles | None = None
        if config is not None:
            current = obtain(config)
            self.tls = ServerTls(*current)
            self._files = CertificateFiles(config, current, self._changed, self._failed)

    def doors(self, config: Config) -> Doors:
        """Tell where the server is to be reached."""
        plain = () if config.tls is None else config.tls.plaintext
        return Doors(config.listen, self.tls, plain, config.health_listen)

    async def run(self) -> None:
        """Watch the files until cancelled."""
        if self._files is not None:
            await self._files.run()

    @property
    def is_degraded(self) -> bool:
        """Whether the files hold something that cannot be used, so that former certificates are in force."""
        return self._files is not None and self._files.error is not None

    def _changed(self, found: Certificates) -> None:
        if self.tls is not None:
            self.tls.replace(*found)
        self._say(Event.CERTIFICATES_CHANGED)

    def _failed(self, error: ConfigError) -> None:
        self._say(Event.CERTIFICATES_REJECTED, error=str(error))
