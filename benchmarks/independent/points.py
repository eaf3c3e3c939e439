"""What goes wrong: ratios of mean TTFT between a fleet or view with a fault and one without, or an oracle's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from benchmarks.independent.contenders import ENGINES, Case
from benchmarks.independent.fleet import Outage, Result
from benchmarks.independent.hardware import Hardware
from benchmarks.independent.router import View

WORKLOADS = ("conv", "synth", "hot", "uniq", "bursty")
LOAD = 0.8
"""As a share of what the fleet can serve, slow engines counted for what they can do."""

_ONE_SLOW = (3.0,) + (1.0,) * (ENGINES - 1)
_HALF_SLOW = (3.0,) * (ENGINES // 2) + (1.0,) * (ENGINES // 2)
_RATE = 1 / Hardware().linear


class _Side(NamedTuple):
    """Whose mean TTFT it is: a contender, the view in place of its own, how slow the engines are, and an outage."""

    contender: str
    view: View | None = None
    slow: tuple[float, ...] = ()
    outage: Outage | None = None


class Point(NamedTuple):
    """One thing that goes wrong.

    Attributes:
        name: letter of the acceptance points, and what it is.
        upper: what is divided.
        lower: by what.
        bar: what the geometric mean may be.
        is_most: whether that is the most or the least.
    """

    name: str
    upper: _Side
    lower: _Side
    bar: float
    is_most: bool = True


_DOWN = Outage(place=0, at=10.0, seconds=30.0)
"""After the warm-up, and over before the shortest run is."""


def _starting_at(rate: float) -> _Side:
    return _Side("observed", View(parameters={"prefill_rate": rate}))


POINTS = (
    Point("(b) starting rate x 0.25, observed", _starting_at(_RATE / 4), _starting_at(_RATE), 1.03),
    Point("(b) starting rate x 4, observed", _starting_at(_RATE * 4), _starting_at(_RATE), 1.03),
    Point(
        "(c) one engine 3 x slower, events / ttft-oracle",
        _Side("events", slow=_ONE_SLOW),
        _Side("ttft-oracle", slow=_ONE_SLOW),
        1.05,
    ),
    Point(
        "(c) the same, observed / ttft-oracle",
        _Side("observed", slow=_ONE_SLOW),
        _Side("ttft-oracle", slow=_ONE_SLOW),
        1.1,
    ),
    Point(
        "(c) the same, least-request / observed",
        _Side("least-request", slow=_ONE_SLOW),
        _Side("observed", slow=_ONE_SLOW),
        2.2,
        is_most=False,
    ),
    Point(
        "(d) half 3 x slower, rates unknown / true, observed",
        _Side("observed", slow=_HALF_SLOW),
        _Side("observed", View(knows_rates=True), slow=_HALF_SLOW),
        1.0,
    ),
    Point("(g) index started x 0.3, observed", _Side("observed", View(believed=0.3)), _Side("observed"), 1.06),
    Point("(g) index started x 3, observed", _Side("observed", View(believed=3.0)), _Side("observed"), 1.06),
    Point("(g) KV memory misstated x 0.3, observed", _Side("observed", View(stated=0.3)), _Side("observed"), 1.06),
    Point("(g) KV memory misstated x 3, observed", _Side("observed", View(stated=3.0)), _Side("observed"), 1.06),
    Point(
        "(h) an engine away for 30 s, then cold, events / ttft-oracle",
        _Side("events", outage=_DOWN),
        _Side("ttft-oracle", outage=_DOWN),
        1.0,
    ),
    Point(
        "(h) the same, observed / ttft-oracle",
        _Side("observed", outage=_DOWN),
        _Side("ttft-oracle", outage=_DOWN),
        1.0,
    ),
)


def lines(
    simulate: Callable[[Iterable[Case]], Iterable[Result]], workloads: Sequence[str], seeds: int
) -> Iterator[str]:
    """Yield the lines of a table of geometric means over workloads and seeds; `simulate` runs cases."""
    yield "| what goes wrong | ratio |"
    yield "|---|---|"
    sides = list({repr(side): side for point in POINTS for side in (point.upper, point.lower)}.values())
    for_each = [(workload, seed) for workload in workloads for seed in range(1, seeds + 1)]
    cases = [_case(side, workload, seed) for side in sides for workload, seed in for_each]
    results = iter(simulate(cases))
    times = {repr(side): [next(results).ttft for _ in for_each] for side in sides}
    for point in POINTS:
        pairs = zip(times[repr(point.upper)], times[repr(point.lower)], strict=True)
        ratios = [upper / lower for upper, lower in pairs]
        mean = prod(ratios) ** (1 / len(ratios))
        is_met = mean <= point.bar if point.is_most else mean >= point.bar
        bar = f"({'≤' if point.is_most else '≥'} {point.bar:g})"
        yield f"| {point.name} | {mean:.3f} {bar}{'' if is_met else ' **missed**'} |"


def _case(side: _Side, workload: str, seed: int) -> Case:
    able = sum(1 / factor for factor in side.slow) / len(side.slow) if side.slow else 1.0
    return Case(workload, side.contender, LOAD * able, seed, side.view, side.slow, side.outage)
