"""What the decision alone costs: `EndpointPicker.pick` on 4 KB prompts with a warm index."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import deque

from benchmarks.parts import fleet, requests
from ext_proc.core.model import Decision

FLEETS = (8, 100, 1000)
IN_FLIGHT = 4
"""Requests per endpoint that are running at any time."""

RATE = 2000.0
"""Decisions per second of the simulated clock."""


def measure(endpoints: int, decisions: int) -> list[float]:
    """Make decisions on a warm fleet; returns what each took, in microseconds."""
    core, prompts = fleet(endpoints), requests()
    generator = random.Random(0)  # noqa: S311  breaks ties
    running: deque[str] = deque()
    times = []
    for number in range(len(prompts) + decisions):
        request, now = prompts[number % len(prompts)], number / RATE
        began = time.perf_counter_ns()
        decision = core.picker.pick(request, now, generator)
        ended = time.perf_counter_ns()
        assert isinstance(decision, Decision)  # noqa: S101  nothing removes candidates here
        if number >= len(prompts):
            times.append((ended - began) / 1e3)
        running.append(decision.id)
        if len(running) > endpoints * IN_FLIGHT:
            core.ledger.end(running.popleft(), now)
    return times


def medians(decisions: int = 3000) -> dict[str, float]:
    """Measure each fleet size and name the medians, in microseconds."""
    return {_name(size): statistics.median(measure(size, decisions)) for size in FLEETS}


def _name(size: int) -> str:
    return f"decision_us_{size}"


def main() -> None:
    """Run the command; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=3000)
    arguments = parser.parse_args()
    result = {}
    for size in FLEETS:
        times = sorted(measure(size, arguments.decisions))
        median, p99 = statistics.median(times), times[int(len(times) * 0.99)]
        print(f"{size:5} endpoints: median {median:6.1f} us, p99 {p99:6.1f} us, fastest {times[0]:6.1f} us")
        result[_name(size)] = round(median, 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
