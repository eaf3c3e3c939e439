"""What an operator may choose about the local stack."""

from __future__ import annotations

from pathlib import Path

import msgspec


class StackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may choose about the stack.

    Attributes:
        port: where Envoy listens; 0 takes a free one.
        engines: URLs of the user's engines; empty starts simulated ones.
        strategy: name of the strategy.
        envoy: path or name of the Envoy binary; None looks for one.
        parent: where the private folder is made; None takes the system's place for temporary files.
    """

    port: int = 8080
    engines: tuple[str, ...] = ()
    strategy: str = "least-wait"
    envoy: str | None = None
    parent: Path | None = None
