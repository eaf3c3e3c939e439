"""Which engines sleep, by their own word; a gate that leaves them out.

A sleeping vLLM (`/sleep`) keeps its process and its page of health, has given up its KV cache and perhaps its weights,
and answers no request until it is woken. That is no illness. Its word holds until it says something else, or until
nobody has heard it for so long that it says nothing any more.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence, Sized
from collections.abc import Set as AbstractSet

import msgspec

from ext_proc.core.generator import Generator
from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.remainders import Remainders

SLEEP = "sleep"
"""Name of the gate: whom it removes last was asleep, and no other was left."""


class SleepLevel(enum.StrEnum):
    """How deep an engine sleeps, in vLLM's words; what it needs to answer again grows from line to line.

    A paused one has only stopped its scheduler, and keeps its KV cache. One of level 1 has its weights in main memory.
    One of level 2 has none at all: they must be loaded before it is woken.
    """

    UNKNOWN = "unknown"
    PAUSED = "paused"
    WEIGHTS_OFFLOADED = "weights_offloaded"
    DISCARD_ALL = "discard_all"


class Witness(enum.StrEnum):
    """Where an engine's word comes from."""

    METRICS = "metrics"
    PROBE = "is_sleeping"
    WAKE_CALL = "wake_up"


class Sleep(msgspec.Struct, eq=False):
    """One engine's sleep.

    Attributes:
        endpoint: whose.
        since: when it was heard of first, monotonic seconds.
        level: how deep it is.
        heard: when each witness said so last.
    """

    endpoint: Endpoint
    since: float
    level: SleepLevel = SleepLevel.UNKNOWN
    heard: dict[Witness, float] = {}

    @property
    def keeps_cache(self) -> bool | None:
        """Whether what it held in its KV cache is still there when it wakes; None while nobody says how deep it is."""
        return None if self.level is SleepLevel.UNKNOWN else self.level is SleepLevel.PAUSED

    @property
    def evidence(self) -> str:
        """Who says so, for people."""
        return ", ".join(sorted(self.heard))


def nobody() -> AbstractSet[int]:
    """Bar no slot."""
    return frozenset()


class Sleepers:
    """The endpoints whose engines sleep, by slot.

    Args:
        stale: seconds after which a word that was not repeated is not believed any more.

    Attributes:
        name: of the gate.
        barred: names the slots that take no request anyway, and are not worth waking.
    """

    name = SLEEP

    def __init__(self, stale: float = 20.0) -> None:
        self.stale = stale
        self.barred: Callable[[], AbstractSet[int]] = nobody
        self._asleep: dict[int, Sleep] = {}
        self._rows = Remainders()

    def __contains__(self, slot: object) -> bool:
        """Tell whether the engine in a slot sleeps."""
        return slot in self._asleep

    @property
    def special(self) -> Sequence[Sized]:
        """What is kept of engines that sleep."""
        return (self._asleep,)

    @property
    def slots(self) -> AbstractSet[int]:
        """The slots whose engines sleep."""
        return self._asleep.keys()

    def admit(
        self,
        candidates: Sequence[Endpoint],
        request: InferenceRequest,  # noqa: ARG002  who sleeps serves nobody
        now: float,  # noqa: ARG002  words grow old by `expire`
        generator: Generator,  # noqa: ARG002  and for certain
    ) -> Sequence[Endpoint]:
        """Return the candidates that are awake; the same object if all are."""
        if not self._asleep:
            return candidates
        return self._rows.of(candidates, self._asleep.keys)

    def of(self, slot: int) -> Sleep | None:
        """Return the sleep of a slot; None if it is awake."""
        return self._asleep.get(slot)

    def asleep(self, endpoint: Endpoint, level: SleepLevel, witness: Witness, now: float) -> bool:
        """Note that an engine says it sleeps; tell whether that is news, or that it sleeps deeper than was known."""
        sleep = self._asleep.get(endpoint.slot)
        is_news = sleep is None
        if sleep is None:
            sleep = self._asleep[endpoint.slot] = Sleep(endpoint, now, level)
            self._rows.forget()
        elif level is not SleepLevel.UNKNOWN and level is not sleep.level:
            is_news = sleep.keeps_cache is not False
            sleep.level = level
        sleep.heard[witness] = now
        return is_news

    def awake(self, endpoint: Endpoint, witness: Witness) -> bool:
        """Note that an engine says it is awake; tell whether that ends its sleep.

        vLLM's metrics say so already when only a part of it was woken, its weights say. So they do not outweigh its own
        answer that it sleeps, which is asked for again and again while it does.
        """
        sleep = self._asleep.get(endpoint.slot)
        if sleep is None:
            return False
        if witness is Witness.METRICS:
            sleep.heard.pop(witness, None)
            if sleep.heard:
                return False
        self.remove(endpoint.slot)
        return True

    def expire(self, now: float) -> list[Sleep]:
        """Forget what nobody has repeated for too long, and return the sleeps that count as over by that."""
        if not self._asleep:
            return []
        for sleep in self._asleep.values():
            for witness in [witness for witness, at in sleep.heard.items() if now - at > self.stale]:
                del sleep.heard[witness]
        forgotten = [sleep for sleep in self._asleep.values() if not sleep.heard]
        for sleep in forgotten:
            self.remove(sleep.endpoint.slot)
        return forgotten

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        if self._asleep.pop(slot, None) is not None:
            self._rows.forget()

    def wakeable(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """Return those that a wake call would make answer: not who has no weights, nor who takes no request anyway."""
        if not self._asleep:
            return []
        barred, get = self.barred(), self._asleep.get
        return [
            endpoint
            for endpoint in endpoints
            if (sleep := get(endpoint.slot)) is not None
            and sleep.level is not SleepLevel.DISCARD_ALL
            and endpoint.slot not in barred
        ]
