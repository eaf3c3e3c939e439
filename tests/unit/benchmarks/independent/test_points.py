"""What goes wrong in the independent simulation."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator

from benchmarks.independent.contenders import Case
from benchmarks.independent.fleet import Result
from benchmarks.independent.points import POINTS, lines


def test_each_point_is_a_line_of_cases_that_can_be_sent() -> None:
    """Every point comes to a ratio of what its own cases took, which another process can run."""

    def simulate(cases: Iterable[Case]) -> Iterator[Result]:
        for case in pickle.loads(pickle.dumps(list(cases))):  # noqa: S301  our own
            ttft = 0.5 if case.contender == "ttft-oracle" else 1.0
            yield Result(ttft, ttft, 0.01, 1.0, 0.0, 1.0, 0.0, 0, 1)

    table = list(lines(simulate, ["conv", "hot"], 2))
    assert len(table) == 2 + len(POINTS)
    for point, line in zip(POINTS, table[2:], strict=True):
        expected = 2.0 if point.lower.contender == "ttft-oracle" else 1.0
        assert line.startswith(f"| {point.name} | {expected:.3f} (")
        is_met = expected <= point.bar if point.is_most else expected >= point.bar
        assert line.endswith("**missed** |") is not is_met
