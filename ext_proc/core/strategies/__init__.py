"""Strategies: small objects that put a cost on each candidate; the lowest wins.

A strategy of one's own is a class with a `rank` method and an optional `Parameters` struct, registered in the entry
point group `kvpicker.strategies`:

    class Quiet:
        def rank(self, request, candidates, context):
            return Ranking([load.in_flight for load in context.loads])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import msgspec

from ext_proc.core.generator import Generator
from ext_proc.core.knowledge import Knowledge
from ext_proc.core.load import Load
from ext_proc.core.model import BlockHash, Endpoint, FilterReport, InferenceRequest

GROUP = "kvpicker.strategies"


NO_SCORES: Mapping[str, Sequence[float]] = {}


class Ranking(msgspec.Struct, gc=False):
    """Costs in the order of the candidates; lower is better.

    Attributes:
        costs: one finite number per candidate.
        queues: for explanations, seconds each candidate is busy with the work in front; may be left out.
        works: for the ledger, the request's own prefill in effective tokens at each candidate; may be left out.
        prefills: for the ledger, the seconds that takes; may be left out.
        memories: for explanations, seconds of waiting for KV memory at each candidate; may be left out.
        copying: for explanations, seconds on top of each candidate's cost for computing what another one holds: more
            than 0 where one request alone would use that copy, less where many will; may be left out.
        backlog: for explanations, the share of its prefill that every candidate's cost has on top.
        interference: for explanations, the same per request in flight there.
        most_interfering: requests in flight beyond so many add nothing more.
        attention: for what is learnt, the attention length that the work was counted with, tokens.
        in_seconds: True if each cost is the sum of the seconds above.
        out: for explanations, positions of candidates that the strategy itself filtered out; their costs mean no more
            than that they come last.
        filters: for explanations, what filters of the strategy's own left.
        favourite: position of the candidate that wins whatever it costs; None lets the lowest cost win.
        reason: for explanations and metrics, why the favourite is one, as a code of a few, such as `session`.
        inside: for explanations, the strategy that ranked, where this one left it the choice.
        scores: for explanations, by name, what the costs are made of where that is no time, one number per candidate.
    """

    costs: list[float]
    queues: Sequence[float] = ()
    works: Sequence[float] = ()
    prefills: Sequence[float] = ()
    memories: Sequence[float] = ()
    copying: Sequence[float] = ()
    backlog: float = 0.0
    interference: float = 0.0
    most_interfering: int = 0
    in_seconds: bool = False
    attention: float = 0.0
    out: frozenset[int] = frozenset()
    filters: tuple[FilterReport, ...] = ()
    favourite: int | None = None
    reason: str = "rank"
    inside: str = ""
    scores: Mapping[str, Sequence[float]] = NO_SCORES


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
        rates: prefill rates in tokens/s, one per candidate, 0 where unknown; empty if none is known.
        attention: context length at which attention costs as much as all else, in tokens; 0 while not learnt.
        chain: hash chain of the prompt; empty if there is nothing to hash.
        siblings: requests in flight that begin with as much of the prompt as any candidate holds.
        lasting: the same, but no more than have ended while others were in flight.
        knowledge: all else that is known, for those who ask.
    """

    now: float
    generator: Generator
    loads: Sequence[Load]
    hits: Sequence[int]
    output: float
    residence: float
    turn: int
    rates: Sequence[float] = ()
    attention: float = 0.0
    chain: Sequence[BlockHash] = ()
    siblings: int = 0
    lasting: int = 0
    knowledge: Knowledge = msgspec.field(default_factory=Knowledge)

    def narrowed(self, places: Sequence[int]) -> Self:
        """Return the same for some of the candidates, named by their positions."""
        columns = {name: [column[place] for place in places] for name in COLUMNS if (column := getattr(self, name))}
        return msgspec.structs.replace(self, **columns)


COLUMNS = ("loads", "hits", "rates")
"""The fields of Context that hold one value per candidate, or none at all."""


class Strategy(Protocol):
    """Ranks candidates. The request comes without its prompt; what is known of that is the context's `chain`.

    A class that has parameters names their struct as its attribute `Parameters` and is made with one; any other class
    is made without arguments.
    """

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Return one cost per candidate."""


def inside(name: str, ranking: Ranking) -> str:
    """Name the strategy that a ranking came from, and what that left the choice to in turn."""
    return f"{name}, {ranking.inside}" if ranking.inside else name
