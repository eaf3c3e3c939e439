"""Whether requests may be sent here: once there is something to choose from, and until the end."""

from __future__ import annotations

from ext_proc.watching import Watching
from ext_proc.wire.server import GrpcServer


class Readiness:
    """Tells gRPC health, and whoever asks.

    Args:
        server: whose health it is.
        watching: knows whether there is something to choose from.

    Attributes:
        is_ready: whether requests may be sent here.
    """

    def __init__(self, server: GrpcServer, watching: Watching) -> None:
        self.is_ready = False
        self._ended = False
        self._server = server
        self._watching = watching

    @property
    def waits(self) -> bool:
        """Whether `begin` would have to wait."""
        return self._watching.is_blind

    async def begin(self) -> None:
        """Become ready as soon as possible, unless the end comes before that."""
        await self._watching.sighted()
        if not self._ended:
            self.is_ready = True
            await self._server.set_ready(ready=True)

    async def end(self) -> None:
        """Be ready no more, for good."""
        self.is_ready, self._ended = False, True
        await self._server.set_ready(ready=False)

    @property
    def obstacle(self) -> str | None:
        """Why requests may not be sent here; None if they may."""
        if self.is_ready:
            return None
        return "the endpoints of no pool are known yet" if self.waits and not self._ended else "starting or stopping"
