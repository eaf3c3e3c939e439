"""Strategies: small objects that put a cost on each candidate; the lowest wins.

A strategy of one's own is a class with a `rank` method and an optional `Parameters` struct, registered in the entry
point group `kvpicker.strategies`:

    class Quiet:
        def rank(self, request, candidates, context):
            return Ranking([context.load(endpoint).in_flight for endpoint in candidates])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from ext_proc.core.ledger import Load
from ext_proc.core.model import Endpoint, InferenceRequest

GROUP = "kvpicker.strategies"
_IDLE = Load()


class Generator(Protocol):
    """The part of `random.Random` that a decision may use."""

    def random(self) -> float:
        """Return a float in [0, 1)."""


class Ranking(msgspec.Struct):
    """Costs in the order of the candidates; lower is better.

    Attributes:
        costs: one finite number per candidate.
        queues: for explanations, seconds each candidate is busy with the work in front; may be left out.
        prefills: for the ledger, the request's own prefill seconds at each candidate; may be left out.
        memories: for explanations, seconds of waiting for KV memory at each candidate; may be left out.
    """

    costs: list[float]
    queues: Sequence[float] = ()
    prefills: Sequence[float] = ()
    memories: Sequence[float] = ()


class Context(msgspec.Struct):
    """What a strategy may look at beside the request.

    Attributes:
        now: monotonic seconds.
        generator: the seeded source of randomness.
        loads: work in flight by slot.
        hits: prompt tokens that the index believes each slot holds; slots that hold none are left out.
        output: expected output tokens of the request.
        residence: expected seconds from dispatch to end.
        turn: a number that grows by one with each decision.
    """

    now: float
    generator: Generator
    loads: Mapping[int, Load]
    hits: Mapping[int, int]
    output: float
    residence: float
    turn: int

    def load(self, endpoint: Endpoint) -> Load:
        """Return the work in flight at an endpoint."""
        return self.loads.get(endpoint.slot, _IDLE)

    def loads_of(self, candidates: Sequence[Endpoint]) -> list[Load]:
        """Return the work in flight at each candidate."""
        get = self.loads.get
        return [get(endpoint.slot, _IDLE) for endpoint in candidates]


class Strategy(Protocol):
    """Ranks candidates.

    A class that has parameters names their struct as its attribute `Parameters` and is made with one; any other class
    is made without arguments.
    """

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Return one cost per candidate."""
