"""The seam between the simulation and the parts of the decision, which are made elsewhere, as for serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from ext_proc.core.feedback import Feedback
from ext_proc.core.model import BlockHash
from ext_proc.core.picker import EndpointPicker
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.sim.fleet.conditions import Conditions
from ext_proc.sim.fleet.engine import Engine
from ext_proc.sim.fleet.hasher import TraceHasher

POOL = "sim"
"""The pool that all simulated engines belong to."""

MODEL = "sim"
"""The model that all simulated engines serve."""


class Clock(msgspec.Struct):
    """Virtual time.

    Attributes:
        now: seconds since the start.
    """

    now: float = 0.0


class Scrape(msgspec.Struct, frozen=True, gc=False):
    """What a scrape of an engine's metrics says.

    Attributes:
        waiting: requests not admitted yet.
        running: requests admitted.
        kv_usage: share of the KV cache in use, 0 to 1.
        ttft_sum: seconds to the first token, summed over all requests so far.
        ttft_count: how many these are.
    """

    waiting: int
    running: int
    kv_usage: float
    ttft_sum: float
    ttft_count: int


class Resident(Protocol):
    """Hears of KV events."""

    def stored(self, slot: int, blocks: Sequence[BlockHash]) -> None:
        """Blocks became visible at an engine."""

    def removed(self, slot: int, blocks: Sequence[BlockHash]) -> None:
        """Blocks were evicted at an engine."""

    def cleared(self, slot: int) -> None:
        """An engine lost its cache."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What one kvpicker of a simulation is made from.

    Attributes:
        instance: its name, which no other kvpicker has.
        specs: the engines, in the order of the fleet; they are to be put into the pool `POOL`.
        hasher: reads the chain of a request.
        conditions: tell the view that is wanted.
        engines: the engines themselves, in the same order, for views that know the truth.
        clock: virtual time.
    """

    instance: str
    specs: tuple[EndpointSpec, ...]
    hasher: TraceHasher
    conditions: Conditions
    engines: tuple[Engine, ...]
    clock: Clock


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """One kvpicker of a simulation.

    Attributes:
        registry: its endpoints, which must be those of the site.
        picker: makes the decisions.
        feedback: hears of first tokens and outcomes.
        resident: hears of KV events; None if it wants none.
        scraped: hears of scrapes: slot, what was read, seconds since the start; None if it wants none.
    """

    registry: Registry
    picker: EndpointPicker
    feedback: Feedback
    resident: Resident | None = None
    scraped: Callable[[int, Scrape, float], None] | None = None


Wiring: TypeAlias = Callable[[Site], Parts]
"""Makes the parts of one kvpicker, in the same way as for serving."""
