"""Tells clients that gave up on a silent engine from clients that just left.

An engine whose core hangs may answer every probe, and its requests fail for nobody but the clients, who leave at their
own time limit. What makes that the engine's fault is that others of its pool begin their answers much sooner.
"""

from __future__ import annotations

_MEMORY = 0.98
_LEAST_WAIT = 10.0
"""Seconds; who left sooner may have had any reason."""

_FACTOR = 5.0
"""Times the usual wait, lengthened by queues as it is."""


class Patience:
    """How long requests usually wait for the first byte of their answer, by pool."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}

    def began(self, pool: str, waited: float) -> None:
        """Note that an answer began, so many seconds after its request."""
        usual = self._usual.get(pool, waited)
        self._usual[pool] = usual + (1 - _MEMORY) * (waited - usual)

    def is_exhausted(self, pool: str, waited: float) -> bool:
        """Tell whether a client that left after so many seconds without an answer waited for longer than is usual."""
        usual = self._usual.get(pool)
        return usual is not None and waited > max(_LEAST_WAIT, _FACTOR * usual)
