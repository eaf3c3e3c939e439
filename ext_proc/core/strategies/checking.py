"""Whether what a strategy returned can be used; it may be a stranger's."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

from ext_proc.core.errors import StrategyError
from ext_proc.core.model import FilterReport
from ext_proc.core.strategies import Ranking

_CODE: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
"""What may stand in headers, labels and logs as it is."""


def checked(ranking: Ranking, candidates: int) -> Ranking:
    """Return a stranger's ranking, fit for use.

    Raises:
        StrategyError: it has not one finite number for each candidate, a prefill time below 0, a favourite that is
            none of them, or what it says beside is of the wrong kind.
    """
    if not isinstance(ranking, Ranking) or type(ranking.counts) is not str:  # type: ignore[redundant-expr]  # a stranger
        raise StrategyError("a strategy must return a Ranking, and say as text what its costs count, if it says it")
    costs = ranking.costs
    if type(costs) is not list:
        ranking.costs = costs = list(costs)
    prefills = ranking.prefills
    total = everything = sum(costs)
    is_complete = len(costs) == candidates
    for column in (ranking.queues, ranking.works, prefills, ranking.memories, ranking.copying):
        if column:
            everything += sum(column)
            is_complete &= len(column) == candidates
    if not is_complete:
        raise StrategyError(f"a strategy must give one number for each of {candidates} candidates")
    if not isfinite(everything):
        raise StrategyError("a strategy must give finite numbers")
    if type(total) is not float:  # numbers of another kind cannot be written as JSON
        ranking.costs = costs = [float(cost) for cost in costs]
    if prefills and min(prefills) < 0:
        raise StrategyError("a strategy must not give negative prefill times")
    if ranking.out or ranking.filters or ranking.favourite is not None or ranking.scores or ranking.inside:
        _check_rest(ranking)
    return ranking


def _check_rest(ranking: Ranking) -> None:
    ranking.out = frozenset(ranking.out)
    ranking.filters = tuple(ranking.filters)
    if not all(isinstance(report, FilterReport) for report in ranking.filters):
        raise StrategyError("a strategy must report on filters by FilterReport")
    if ranking.favourite is not None and ranking.favourite not in range(len(ranking.costs)):
        raise StrategyError("a strategy's favourite must be one of the candidates")
    if not all(isinstance(text, str) for text in (ranking.reason, ranking.inside)):
        raise StrategyError("a strategy must give its reason and the strategy inside as text")
    # Plain text: what only derives from it, such as numpy's, cannot be written as JSON.
    ranking.reason, ranking.inside = str.__str__(ranking.reason), str.__str__(ranking.inside)
    if ranking.favourite is not None and not _CODE.fullmatch(ranking.reason):
        raise StrategyError("a strategy's reason must be a code, as in sticky_tenant")
    if any(len(column) != len(ranking.costs) for column in ranking.scores.values()):
        raise StrategyError(f"a strategy must give one score for each of {len(ranking.costs)} candidates")
