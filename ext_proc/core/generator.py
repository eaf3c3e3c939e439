"""The randomness that a decision may use."""

from __future__ import annotations

from typing import Protocol


class Generator(Protocol):
    """The part of `random.Random` that a decision may use."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
