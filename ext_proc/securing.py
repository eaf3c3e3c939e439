"""Carries certificates from where they come to the server that proves itself with them, and says what goes wrong."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Final

from ext_proc.config import Config, TlsConfig
from ext_proc.core.errors import ConfigError
from ext_proc.ops.events import Event
from ext_proc.sources.certificate_dates import Validity, validity
from ext_proc.sources.certificates import CertificateFiles, Certificates, obtain
from ext_proc.wire.server import Doors
from ext_proc.wire.tls import ServerTls

LOOK_S: Final = 600.0
AGAIN: Final = dt.timedelta(days=1)
"""Time between two reminders."""

LEAST_LEFT: Final = 0.2
"""Share of its time that a certificate has left when it should have been renewed; what renews them by itself does so
when a third is left or more."""

_NEVER: Final = dt.datetime.min.replace(tzinfo=dt.UTC)


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
        self._valid: Validity | None = None
        self._reminded = _NEVER
        if config is not None:
            current = obtain(config)
            self._valid = validity(current.chain)
            self.tls = ServerTls(*current)
            self._files = CertificateFiles(config, current, self._changed, self._failed)

    def doors(self, config: Config) -> Doors:
        """Tell where the server is to be reached."""
        plain = () if config.tls is None else config.tls.plaintext
        return Doors(config.listen, self.tls, plain, config.health_listen)

    async def run(self) -> None:
        """Watch the files until cancelled."""
        if self._files is not None:
            await asyncio.gather(self._files.run(), self._remind())

    async def _remind(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        now = dt.datetime.now(dt.UTC)
        if self._valid is None or self._valid.share_left(now) >= LEAST_LEFT or now - self._reminded < AGAIN:
            return
        self._reminded = now
        self._say(Event.CERTIFICATE_EXPIRES, end=f"{self._valid.end:%Y-%m-%dT%H:%M:%SZ}", expired=self._is_expired)

    @property
    def _is_expired(self) -> bool:
        return self._valid is not None and not self._valid.share_left(dt.datetime.now(dt.UTC))

    @property
    def is_degraded(self) -> bool:
        """Whether the files hold something that cannot be used, or the certificate in force is not valid any more."""
        return self._is_expired or (self._files is not None and self._files.error is not None)

    def _changed(self, found: Certificates) -> None:
        if self.tls is not None:
            self.tls.replace(*found)
        self._say(Event.CERTIFICATES_CHANGED)
        self._valid, self._reminded = validity(found.chain), _NEVER
        self._look()

    def _failed(self, error: ConfigError) -> None:
        self._say(Event.CERTIFICATES_REJECTED, error=str(error))
