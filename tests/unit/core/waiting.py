"""Requests that wait, without anything behind them."""

from __future__ import annotations

from typing import Any

from ext_proc.core.errors import Refusal
from ext_proc.core.turn import Turn
from tests.unit.core.builders import request


class Asker:
    """Owns turns, and finds a place whenever there is one."""

    def __init__(self, places: int = 0) -> None:
        self.places = places
        self.served: list[Turn] = []
        self.refused: list[tuple[Turn, Refusal]] = []

    def take_turn(self, turn: Turn, now: float) -> Any:
        """Use a place up."""
        if not self.places:
            return None
        self.places -= 1
        self.served.append(turn)
        turn.placed = True
        return turn

    def turn_away(self, turn: Turn, refusal: Refusal) -> Any:
        """Note it."""
        self.refused.append((turn, refusal))
        return refusal


def turn(
    owner: Asker | None = None,
    *,
    tenant: str = "",
    priority: int = 0,
    cost: float = 1.0,
    since: float = 0.0,
    returned: bool = False,
    **asked: Any,
) -> Turn:
    """Make one that waits."""
    made = Turn(owner or Asker(), 4, request(**asked), since, tenant=tenant, priority=priority)
    made.cost, made.returned = cost, returned
    return made
