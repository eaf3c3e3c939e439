"""The cost terms of all candidates of a decision, put into structs only when somebody asks for an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from ext_proc.core.model import NO_SCORES, CostTerms, Endpoint
from ext_proc.core.strategies import Ranking


class Terms(Sequence[CostTerms]):
    """A sequence of `CostTerms`, one per candidate, over the columns of a ranking."""

    __slots__ = ("_candidates", "_hits", "_in_flight", "_ranking")

    def __init__(
        self, candidates: Sequence[Endpoint], ranking: Ranking, hits: Sequence[int], in_flight: Sequence[int]
    ) -> None:
        self._candidates = candidates
        self._ranking = ranking
        self._hits = hits
        self._in_flight = in_flight

    def __len__(self) -> int:
        return len(self._candidates)

    @overload
    def __getitem__(self, position: int) -> CostTerms: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[CostTerms]: ...

    def __getitem__(self, position: int | slice) -> CostTerms | Sequence[CostTerms]:
        if isinstance(position, slice):
            return [self[place] for place in range(*position.indices(len(self)))]
        ranking, in_flight = self._ranking, self._in_flight[position]
        filtered = position % len(self) in ranking.out if ranking.out else False
        prefill = ranking.prefills[position] if ranking.prefills else 0.0
        return CostTerms(
            endpoint=self._candidates[position],
            cost=ranking.costs[position],
            hit_tokens=self._hits[position],
            queue=ranking.queues[position] if ranking.queues else 0.0,
            prefill=prefill,
            memory=ranking.memories[position] if ranking.memories else 0.0,
            in_flight=in_flight,
            interference=prefill * ranking.interference * min(in_flight, ranking.most_interfering),
            backlog=prefill * ranking.backlog,
            copying=ranking.copying[position] if ranking.copying else 0.0,
            filtered=filtered,
            scores={name: column[position] for name, column in ranking.scores.items()} if ranking.scores else NO_SCORES,
            in_seconds=ranking.in_seconds and not filtered,
        )
