"""Tables of results, and the bars that `least-wait` is held against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from benchmarks.independent.fleet import Result

Row: TypeAlias = Mapping[str, Sequence[Result]]
"""Results of all seeds, by contender."""


class Bars(NamedTuple):
    """Acceptance bars of a workload.

    Attributes:
        events: most of the mean TTFT of `oracle` that `events` may take.
        observed: the same of `observed`.
        gie: times as long as `observed` that `gie` takes at least.
        least_request: the same of `least-request`.
        round_robin: the same of `round-robin`.
        events_loss: goodput that `events` may lose against `oracle`.
        observed_loss: the same of `observed`.
    """

    events: float
    observed: float
    gie: float
    least_request: float
    round_robin: float
    events_loss: float
    observed_loss: float


BARS: Mapping[str, Bars] = MappingProxyType(
    {
        "conv": Bars(1.05, 1.06, 1.5, 1.7, 3.5, 0.01, 0.01),
        "convL": Bars(1.05, 1.08, 1.7, 2.3, 4.5, 0.02, 0.02),
        "synth": Bars(1.08, 1.11, 1.35, 2.1, 3.5, 0.02, 0.02),
        "chat": Bars(1.08, 1.12, 1.5, 4.2, 7.0, 0.01, 0.06),
        "hot": Bars(1.0, 1.05, 40.0, 0.92, 0.88, 0.0, 0.0),
        "uniq": Bars(1.12, 1.12, 4.8, 2.4, 1.45, 0.01, 0.01),
        "bursty": Bars(1.1, 1.13, 1.4, 1.8, 2.4, 0.03, 0.03),
    }
)
"""As the first simulation of the policy proposed them."""

BUSY_CHAT = Bars(1.2, 1.6, 1.4, 9.0, 12.0, 0.01, 0.06)
"""Those of `chat` at loads above 0.9."""

_RATIOS = (
    ("events / oracle", "events", "oracle"),
    ("observed / oracle", "observed", "oracle"),
    ("gie / observed", "gie", "observed"),
    ("least-request / observed", "least-request", "observed"),
    ("round-robin / observed", "round-robin", "observed"),
    ("cache-aware / observed", "cache-aware", "observed"),
    ("events / ttft-oracle", "events", "ttft-oracle"),
)
"""Heading, whose mean TTFT, and by whose it is divided; the first five have bars, the first two upper ones."""


def ratio(row: Row, upper: str, lower: str) -> list[float]:
    """Return how many times as long the mean TTFT of one contender is as another's, by seed."""
    return [one.ttft / other.ttft for one, other in zip(row[upper], row[lower], strict=True)]


def times(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield the lines of a table of what each contender came to."""
    contenders = list(next(iter(rows.values())))
    yield f"| workload | {' | '.join(contenders)} |"
    yield "|---|" + "---|" * len(contenders)
    for name, row in rows.items():
        cells = (f"{1000 * _mean(row[each], 'ttft'):.3g} / {_mean(row[each], 'goodput'):.3f}" for each in contenders)
        yield f"| {name} | {' | '.join(cells)} |"


def ratios(rows: Mapping[str, Row], load: float) -> Iterator[str]:
    """Yield the lines of a table of ratios and losses: mean, lowest and highest seed, and the bar."""
    known = set(next(iter(rows.values())))
    columns = [column for column in enumerate(_RATIOS) if {column[1][1], column[1][2]} <= known]
    losses = [each for each in ("events", "observed") if {each, "oracle"} <= known]
    headings = [heading for _, (heading, _, _) in columns] + [f"goodput lost, {each}" for each in losses]
    yield f"| workload | {' | '.join(headings)} |"
    yield "|---|" + "---|" * len(headings)
    for name, row in rows.items():
        bars = BUSY_CHAT if name == "chat" and load > 0.9 else BARS[name]
        cells = []
        for place, (_, upper, lower) in columns:
            found = ratio(row, upper, lower)
            cell = f"{fmean(found):.2f} [{min(found):.2f}-{max(found):.2f}]"
            cells.append(cell + (_bar(fmean(found), bars[place], is_most=place < 2) if place < 5 else ""))
        for each in losses:
            lost = _mean(row["oracle"], "goodput") - _mean(row[each], "goodput")
            bar = bars.events_loss if each == "events" else bars.observed_loss
            cells.append(f"{lost:.3f}{_bar(round(lost, 3), bar, is_most=True)}")
        yield f"| {name} | {' | '.join(cells)} |"


def _bar(found: float, bar: float, *, is_most: bool) -> str:
    is_met = found <= bar if is_most else found >= bar
    return f" ({'≤' if is_most else '≥'} {bar:g}){'' if is_met else ' **missed**'}"


def _mean(results: Sequence[Result], field: str) -> float:
    return fmean(getattr(result, field) for result in results)
