"""How full an endpoint and the waiting room of its pool are, as the admin server's pages show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ext_proc.core.caps import Caps
from ext_proc.core.waiting_room import Fill
from ext_proc.ops.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable


class Rooms:
    """What bounds there are, and how far they are reached.

    Args:
        caps: the caps that hold at a slot.
        fills: how full the waiting room of each pool is.
    """

    def __init__(self, caps: Callable[[int], Caps], fills: Callable[[], Mapping[str, Fill]]) -> None:
        self.caps = caps
        self._fills = fills

    def queue(self, pool: str) -> dict[str, int] | None:
        """Show who waits for a place in a pool, and how many may; None for a pool that is not known."""
        fill = self._fills().get(pool)
        return None if fill is None else _queue(fill)

    def queues(self) -> dict[str, dict[str, int]]:
        """Show the same of all pools."""
        return {printable(pool): _queue(fill) for pool, fill in self._fills().items()}


NO_ROOMS = Rooms(lambda _slot: Caps(), dict)


def held(caps: Caps, requests: int, tokens: float) -> dict[str, Any]:
    """Show what an endpoint holds of what it may; null where there is no cap."""
    return {"requests": _part(requests, caps.requests), "tokens": _part(tokens, caps.tokens)}


def _part(used: float, limit: int | None) -> dict[str, float] | None:
    return None if limit is None else {"used": used, "limit": limit, "share": round(used / limit, 3)}


def _queue(fill: Fill) -> dict[str, int]:
    limits = fill.limits
    return {
        "requests": fill.requests,
        "max_requests": limits.requests,
        "bytes": fill.bytes,
        "max_bytes": limits.bytes,
        "promises": fill.promises,
        "max_promises": limits.promises,
    }
