"""Strategies: small objects that put a cost on each candidate; the lowest wins.

A strategy of one's own is a class with a `rank` method and an optional `Parameters` struct, registered in the entry
point group `kvpicker.strategies`:

    class Quiet:
        def rank(self, request, candidates, context):
            return Ranking([load.in_flight for load in context.loads])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import msgspec

from ext_proc.core.knowledge import Knowledge
from ext_proc.core.ledger import Load
from ext_proc.core.model import BlockHash, Endpoint, FilterReport, InferenceRequest

GROUP = "kvpicker.strategies"


class Generator(Protocol):
    """The part of `random.Random` that a decision may use."""

    def random(self) -> float:
        """Return a float in [0, 1)."""


class Ranking(msgspec.Struct, gc=False):
    """Costs in the order of the candidates; lower is better.

    Attributes:
        costs: one finite number per candidate.
        queues: for explanations, seconds each candidate is busy with the work in front; may be left out.
        prefills: for the ledger, the request's own prefill seconds at each candidate; may be left out.
        memories: for explanations, seconds of waiting for KV memory at each candidate; may be left out.
        filters: for explanations, what filters of the strategy's own left.
        reason: for explanations, the reason code if the lowest cost wins; empty leaves it to the picker.
    """

    costs: list[float]
    queues: Sequence[float] = ()
    prefills: Sequence[float] = ()
    memories: Sequence[float] = ()
    filters: tuple[FilterReport, ...] = ()
    reason: str = ""


class Context(msgspec.Struct, gc=False):
    """What a strategy may look at beside the request.

    Attributes:
        now: monotonic seconds.
        generator: the seeded source of randomness.
        loads: work in flight, one per candidate; not to be altered.
        hits: prompt tokens that the index believes to be cached, one per candidate.
        output: expected output tokens of the request.
        residence: expected seconds from dispatch to end.
        turn: a number that grows by one with each decision.
        chain: hash chain of the prompt; empty if there is nothing to hash.
        knowledge: all else that is known, for those who ask.
    """

    now: float
    generator: Generator
    loads: Sequence[Load]
    hits: Sequence[int]
    output: float
    residence: float
    turn: int
    chain: Sequence[BlockHash] = ()
    knowledge: Knowledge = msgspec.field(default_factory=Knowledge)

    def narrowed(self, places: Sequence[int]) -> Self:
        """Return the same for some of the candidates, named by their positions."""
        columns = {name: [getattr(self, name)[place] for place in places] for name in COLUMNS}
        return msgspec.structs.replace(self, **columns)


COLUMNS = ("loads", "hits")
"""The fields of Context that hold one value per candidate."""


class Strategy(Protocol):
    """Ranks candidates.

    A class that has parameters names their struct as its attribute `Parameters` and is made with one; any other class
    is made without arguments.
    """

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Return one cost per candidate."""
