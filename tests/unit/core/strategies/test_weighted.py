"""weighted, and the scorers it adds up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.knowledge import EngineView, Knowledge
from ext_proc.core.load import Load
from ext_proc.core.model import Ending
from ext_proc.core.signals import EngineSignals, Signals
from ext_proc.core.strategies import Context
from ext_proc.core.strategies.scorers import SCORERS
from ext_proc.core.strategies.weighted import Weighted, WeightedParameters, Weights
from tests.unit.core.builders import context, endpoints, request

UNKNOWN = st.one_of(st.none(), st.floats(0, 1e6))


class View(msgspec.Struct):
    """What a test's engine says of itself."""

    waiting: float | None = None
    running: float | None = None
    kv_usage: float | None = None


class Views:
    """The same for a row of engines."""

    def __init__(self, *views: View | None) -> None:
        self._views = views

    def of(self, slot: int, now: float) -> EngineView | None:
        """Return the view in that place."""
        return self._views[slot]

    def levels(
        self, slots: Sequence[int], read: Callable[[EngineView], float | None], now: float
    ) -> list[float] | None:
        """Fill the gaps with the mean."""
        said = [None if (view := self._views[slot]) is None else read(view) for slot in slots]
        known = [value for value in said if value is not None]
        return [fmean(known) if value is None else value for value in said] if known else None


def _seen(*views: View | None, **fields: Any) -> Context:
    return context([Load() for _ in views], knowledge=Knowledge(engines=Views(*views)), **fields)


def _score(name: str, seen: Context, **fields: Any) -> list[float]:
    return SCORERS[name](request(**fields), endpoints(len(seen.loads)), seen)


def test_prefix_scores_the_cached_share() -> None:
    """Half of the prompt cached is half a point."""
    seen = context([Load(), Load(), Load()], [0, 500, 1000])
    assert _score("prefix", seen, prompt_tokens=1000) == [0.0, 0.5, 1.0]
    assert _score("prefix", context([Load()], [0]), prompt_tokens=0) == [0.0]


@pytest.mark.parametrize(("name", "field"), [("queue", "waiting"), ("running", "running")])
def test_counts_are_scored_from_most_to_least(name: str, field: str) -> None:
    """The lowest is 1, the highest 0, between them in proportion; equal ones are all 1."""
    assert _score(name, _seen(*[View(**{field: n}) for n in (4, 0, 1)])) == [0.0, 1.0, 0.75]
    assert _score(name, _seen(*[View(**{field: 7}) for _ in range(2)])) == [1.0, 1.0]


def test_kv_usage_scores_what_is_free() -> None:
    """An engine with a fifth in use scores 0.8; what engines overstate is cut."""
    assert _score("kv_usage", _seen(View(kv_usage=0.2), View(kv_usage=1.3))) == [0.8, 0.0]


@pytest.mark.parametrize("name", ["queue", "running", "kv_usage"])
def test_a_missing_signal_is_neutral(name: str) -> None:
    """Who says nothing gets the mean of those who do, and if nobody does, all get the same."""
    known = [View(0.0, 0.0, 0.0), View(1.0, 1.0, 1.0)]
    assert _score(name, _seen(*known, None)) == [1.0, 0.0, 0.5]
    assert _score(name, _seen(*known, View())) == [1.0, 0.0, 0.5]
    assert len(set(_score(name, _seen(None, View())))) == 1
    assert len(set(_score(name, context([Load(), Load()])))) == 1


def test_own_counts_are_scored_without_any_signal() -> None:
    """What kvpicker has in flight itself is always known."""
    seen = context([Load(2, 10), Load(0, 30), Load(1, 20)])
    assert _score("in_flight", seen) == [0.0, 1.0, 0.5]
    assert _score("tokens", seen) == [1.0, 0.0, 0.5]


def test_latency_is_scored_in_proportion() -> None:
    """Twice the time of the fastest is half a point, and a hair's breadth is no more than that."""
    seen, fleet = context([Load() for _ in range(4)]), endpoints(4)
    for endpoint, seconds in zip(fleet, (1.0, 2.0, 1.01), strict=False):
        seen.knowledge.reputations.note(endpoint, Ending.OK, 0.0, seconds=seconds, tokens=100)
    scores = SCORERS["latency"](request(), fleet, seen)
    assert scores[:3] == pytest.approx([1.0, 0.5, 1 / 1.01])
    assert scores[3] == pytest.approx(sum(scores[:3]) / 3)


def test_lora_scores_where_the_adapter_is_likely_loaded() -> None:
    """Used there lately 1, room for it 0.8, four others in its place 0."""
    seen, fleet = context([Load() for _ in range(3)]), endpoints(3)
    seen.knowledge.served.note(fleet[0], "legal")
    for other in "abcd":
        seen.knowledge.served.note(fleet[2], other)
    assert SCORERS["lora"](request(model="legal"), fleet, seen) == [1.0, 0.8, 0.0]
    assert SCORERS["lora"](request(model=None), fleet, seen) == [1.0, 1.0, 1.0]


def test_weights_decide_between_scorers() -> None:
    """A cached prefix against a free endpoint: the heavier one wins."""
    seen = context([Load(3), Load()], [1000, 0])
    for weights, winner in (({"prefix": 3, "in_flight": 2}, 0), ({"prefix": 2, "in_flight": 3}, 1)):
        strategy = Weighted(msgspec.convert({"scorers": weights}, WeightedParameters))
        costs = strategy.rank(request(prompt_tokens=1000), endpoints(2), seen).costs
        assert costs.index(min(costs)) == winner
    assert costs == pytest.approx([0.6, 0.4])


def test_the_default_does_not_crowd_one_endpoint_when_engines_are_silent() -> None:
    """Without any signal of the engines, a half-cached prefix does not outweigh being the busiest of all."""
    costs = Weighted().rank(request(prompt_tokens=1000), endpoints(2), context([Load(9), Load()], [500, 0])).costs
    assert costs[1] < costs[0]


@given(st.lists(st.tuples(UNKNOWN, UNKNOWN, UNKNOWN, st.integers(0, 10**6)), min_size=1, max_size=6))
def test_every_scorer_stays_between_0_and_1(drawn: list[tuple[float | None, float | None, float | None, int]]) -> None:
    """Whatever engines say of themselves, a score is a score."""
    seen = _seen(*[View(*view) for *view, _ in drawn], turn=1)
    seen = msgspec.structs.replace(seen, loads=[Load(n, n) for *_, n in drawn])
    for scorer in SCORERS.values():
        scores = scorer(request(), endpoints(len(drawn)), seen)
        assert len(scores) == len(drawn)
        assert all(0 <= score <= 1 for score in scores)


def test_every_weight_has_its_scorer() -> None:
    """What can be configured exists, and what exists can be configured."""
    assert set(Weights.__struct_fields__) == set(SCORERS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prefx": 1}, "unknown field `prefx`"),
        ({"prefix": 0}, "at least one scorer must have a weight above 0"),
        ({}, "at least one scorer must have a weight above 0"),
        ({"prefix": -1}, "Expected `float` >= 0"),
    ],
    ids=["misspelt", "all zero", "empty", "negative"],
)
def test_weights_that_make_no_sense_are_refused(wrong: dict[str, float], message: str) -> None:
    """The error names what is wrong with the weights."""
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert({"scorers": wrong}, WeightedParameters)


@pytest.mark.parametrize("name", ["queue", "running", "kv_usage"])
def test_old_signals_fade_to_neutral(name: str) -> None:
    """An engine whose metrics stopped under load is avoided less and less, and in the end like any other."""
    signals = Signals(fresh=5.0)
    candidates = endpoints(2)
    seen = context([Load(), Load()], knowledge=Knowledge(engines=signals))
    gaps = []
    for now in (4.0, 10.0, 14.9, 15.1):
        signals.note(0, EngineSignals(at=0.0, waiting=50.0, running=50.0, kv_usage=0.9))
        signals.note(1, EngineSignals(at=now, waiting=0.0, running=0.0, kv_usage=0.1))
        busy, idle = SCORERS[name](request(), candidates, msgspec.structs.replace(seen, now=now))
        gaps.append(idle - busy)
    assert gaps[0] > gaps[1] > gaps[2] > gaps[3] == 0
    assert gaps[2] < 0.02
