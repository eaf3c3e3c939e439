"""Shapes arrivals: windows of a trace laid over each other, time scaled to a rate, bursts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from random import Random

import msgspec

from ext_proc.sim.workload import SimRequest

BURST_SECONDS = 8.0
BURST_FACTOR = 2.6
CALM_SECONDS = 22.0
CALM_FACTOR = 0.42
"""With these the mean rate over a period stays what it was, to a tenth of a percent."""

_COARSE_SHARE = 0.5


def moved(request: SimRequest, at: float) -> SimRequest:
    """Return a request at another time."""
    return msgspec.structs.replace(request, at=at)


def duration(requests: Sequence[SimRequest]) -> float:
    """Return the seconds that ordered arrivals take, with a mean gap after the last; 0 if all come at once."""
    count = len(requests)
    return requests[-1].at * count / (count - 1) if count > 1 else 0.0


def spread(requests: Sequence[SimRequest], generator: Random) -> list[SimRequest]:
    """Undo a coarse clock: requests with one time stamp come at random times until the next one.

    Mooncake's conversation trace has ticks of three seconds; played as they are, every tick is a burst that never was.
    A trace in which few requests share a time is left as it is.
    """
    groups = [list(group) for _, group in groupby(requests, key=lambda request: request.at)]
    if len(groups) <= 1 or len(groups) > _COARSE_SHARE * len(requests):
        return list(requests)
    ends = [group[0].at for group in groups[1:]]
    ends.append(2 * groups[-1][0].at - groups[-2][0].at)
    result: list[SimRequest] = []
    for group, end in zip(groups, ends, strict=True):
        times = sorted(generator.uniform(group[0].at, end) for _ in group)
        result += map(moved, group, times)
    return result


def overlaid(requests: Sequence[SimRequest], windows: int, count: int, generator: Random) -> list[SimRequest]:
    """Lay windows of a trace over each other: more load without squeezing the pauses within conversations.

    Args:
        requests: ordered arrivals.
        windows: how many; their starts divide the trace evenly, the first stands anywhere. What would reach beyond
            the end of the trace goes on at its beginning.
        count: about how many requests to take in all; never one of them twice.
        generator: chooses the start.
    """
    whole = duration(requests)
    length = whole / windows * min(count / len(requests), 1.0)
    start = generator.random() * whole
    offsets = [(start + whole * window / windows) % whole for window in range(windows)]
    found = [
        moved(request, at)
        for request in requests
        for offset in offsets
        if (at := (request.at - offset) % whole) < length
    ]
    return sorted(found, key=lambda request: request.at)


def at_rate(requests: Sequence[SimRequest], rate: float) -> list[SimRequest]:
    """Scale the times of ordered arrivals so that `rate` requests come in a second on the average."""
    length = duration(requests)
    factor = len(requests) / rate / length if length else 0.0
    return [moved(request, request.at * factor) for request in requests]


def faster(requests: Iterable[SimRequest], factor: float) -> list[SimRequest]:
    """Let arrivals come `factor` times as fast."""
    return [moved(request, request.at / factor) for request in requests]


def poisson(requests: Iterable[SimRequest], rate: float, generator: Random) -> list[SimRequest]:
    """Give requests the times of a Poisson process of `rate` a second."""
    at = 0.0
    result = []
    for request in requests:
        result.append(moved(request, at))
        at += generator.expovariate(rate)
    return result


def bursty(requests: Iterable[SimRequest], generator: Random) -> list[SimRequest]:
    """Bend time so that 8 s at 2.6 times the rate and 22 s at 0.42 times the rate take turns."""
    phase = generator.random() * (BURST_SECONDS + CALM_SECONDS)
    return [moved(request, _bent(request.at, phase)) for request in requests]


def _bent(at: float, phase: float) -> float:
    """Return when the modulated process has produced what the steady one has at `at`."""
    return _steady_to_bent(at + _bent_to_steady(phase)) - phase


def _bent_to_steady(time: float) -> float:
    periods, rest = divmod(time, BURST_SECONDS + CALM_SECONDS)
    burst, calm = min(rest, BURST_SECONDS), max(rest - BURST_SECONDS, 0.0)
    return periods * _per_period() + burst * BURST_FACTOR + calm * CALM_FACTOR


def _steady_to_bent(produced: float) -> float:
    periods, rest = divmod(produced, _per_period())
    in_burst = BURST_SECONDS * BURST_FACTOR
    within = rest / BURST_FACTOR if rest < in_burst else BURST_SECONDS + (rest - in_burst) / CALM_FACTOR
    return periods * (BURST_SECONDS + CALM_SECONDS) + within


def _per_period() -> float:
    return BURST_SECONDS * BURST_FACTOR + CALM_SECONDS * CALM_FACTOR
