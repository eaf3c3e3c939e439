"""The sleep mode of vLLM: which parts of an engine sleep, and the wait of requests until all of it is awake."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from ext_proc.sim.errors import bad_request

AWAKE: Final = "awake"
STATES: Final = (AWAKE, "weights_offloaded", "discard_all")
"""Values of the label `sleep_state`, by level."""

TAGS: Final = frozenset({"weights", "kv_cache", "scheduling"})
"""Parts that can be woken one by one."""


class Slumber:
    """Whether an engine sleeps, and how deep.

    Attributes:
        level: of the latest sleep, as the metrics have it; None while they say that it is awake, which in vLLM is from
            the first wake call on, whatever that woke.
        wakes_in: seconds that a wake call takes.
    """

    def __init__(self) -> None:
        self.level: int | None = None
        self.wakes_in = 0.0
        self._asleep: frozenset[str] = frozenset()
        self._awake = asyncio.Event()
        self._awake.set()

    @property
    def is_sleeping(self) -> bool:
        """Whether some part of it sleeps, so that no request is answered."""
        return bool(self._asleep)

    def sleep(self, level: str) -> int:
        """Fall asleep; level 0 only pauses, level 1 keeps the weights, level 2 nothing.

        Raises:
            ApiError: there is no such level (400).
        """
        if level not in {"0", "1", "2"}:
            raise bad_request("level must be 0, 1 or 2", "level")
        self.level = int(level)
        self._asleep = TAGS if self.level else frozenset({"scheduling"})
        self._awake.clear()
        return self.level

    def wake(self, tags: Collection[str]) -> None:
        """Wake these parts; all of them if none is named."""
        self.level = None
        left = self._asleep - (set(tags) or TAGS)
        # Whoever wakes the last part by hand has the scheduler run again too.
        self._asleep = frozenset() if left <= {"scheduling"} else left
        if not self._asleep:
            self._awake.set()

    async def over(self) -> None:
        """Wait until it is awake."""
        await self._awake.wait()

    def states(self) -> dict[str, int]:
        """The value of `vllm:engine_sleep_state` for each state; level 0 has a 0 for all of them."""
        if self.level is None:
            return {state: int(state == AWAKE) for state in STATES}
        return {state: int(state != AWAKE and state == STATES[self.level]) for state in STATES}
