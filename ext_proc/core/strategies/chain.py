"""chain: endpoints that pass filters, ranked by another strategy.

A filter that would leave nobody is skipped, and the explanation of the decision says so: an answer from the wrong
endpoint is better than none. What must not happen at all belongs into models and pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from ext_proc.core.candidates import Candidates
from ext_proc.core.model import Endpoint, FilterReport, InferenceRequest
from ext_proc.core.strategies import Context, Ranking, Strategy, inside
from ext_proc.core.strategies.conditions import Condition
from ext_proc.core.strategies.least_wait import LeastWait
from ext_proc.core.strategies.nested import StrategyChoice


class ChainParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of chain.

    Attributes:
        filters: conditions, applied one after the other, each a mapping of one key. An engine that says nothing of the
            value in question passes; a label must be there.
        then: the strategy that ranks who is left.
    """

    filters: tuple[Condition, ...] = ()
    then: StrategyChoice = StrategyChoice()


class Chain:
    """Filters, then one strategy; those that were filtered out come last."""

    Parameters: ClassVar[type[ChainParameters]] = ChainParameters

    def __init__(self, parameters: ChainParameters | None = None, *, then: Strategy | None = None) -> None:
        parameters = parameters or ChainParameters()
        self._filters = parameters.filters
        self._name = parameters.then.name
        self._then = then or LeastWait()

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Rank who passes, and cost all others more than the dearest of them."""
        left, reports = list(range(len(candidates))), []
        kept, seen = candidates, context
        for condition in self._filters:
            met = condition.met(kept, seen)
            passed = [place for place, is_met in zip(left, met, strict=True) if is_met]
            reports.append(FilterReport(condition.name, len(left), len(passed), skipped=not passed))
            if passed and len(passed) < len(left):
                left = passed
                kept = Candidates([candidates[place] for place in left])
                seen = context.narrowed(left)
        ranking = self._then.rank(request, kept, seen)
        if len(left) < len(candidates):
            ranking = _widened(ranking, left, len(candidates))
        return msgspec.structs.replace(
            ranking, filters=(*reports, *ranking.filters), inside=inside(self._name, ranking)
        )


def _widened(ranking: Ranking, places: Sequence[int], count: int) -> Ranking:
    """Spread the columns over all candidates; who was filtered out has the highest values, and costs more still."""
    dearest = max(ranking.costs)
    return msgspec.structs.replace(
        ranking,
        costs=_spread(ranking.costs, places, count, dearest + max(1.0, abs(dearest))),
        queues=ranking.queues and _spread(ranking.queues, places, count, max(ranking.queues)),
        works=ranking.works and _spread(ranking.works, places, count, max(ranking.works)),
        prefills=ranking.prefills and _spread(ranking.prefills, places, count, max(ranking.prefills)),
        memories=ranking.memories and _spread(ranking.memories, places, count, max(ranking.memories)),
        copying=ranking.copying and _spread(ranking.copying, places, count, 0.0),
        scores={name: _spread(column, places, count, 0.0) for name, column in ranking.scores.items()},
        favourite=None if ranking.favourite is None else places[ranking.favourite],
        out=frozenset(range(count)) - {place for row, place in enumerate(places) if row not in ranking.out},
    )


def _spread(column: Sequence[float], places: Sequence[int], count: int, missing: float) -> list[float]:
    wide = [missing] * count
    for place, value in zip(places, column, strict=True):
        wide[place] = value
    return wide
