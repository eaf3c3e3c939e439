"""Requests that come to the queue of one endpoint, as the tests of it need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ext_proc.core.load import Load, Place
from ext_proc.core.prefill import Prefill

RATE = 1000.0

Step = tuple[str, int, float]


def prefill(tokens: float, wait: float = 0.0) -> Prefill:
    """Predict the prefill of so many tokens."""
    return Prefill(tokens, tokens, tokens, tokens / RATE, wait)


def add(load: Load, tokens: float, now: float, *, tells: bool = True) -> Place:
    """Dispatch a request."""
    return load.add(prefill(tokens), int(tokens), now, tells=tells)


def steps(kinds: str) -> SearchStrategy[list[Step]]:
    """Draw what happens: an initial of a kind, a number to choose by, and the seconds until then."""
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 20), st.floats(0, 5)), max_size=60)


def play(load: Load, drawn: Sequence[Step]) -> Iterator[tuple[float, int]]:
    """Let it happen: adds, first tokens, cancellations, waiting requests told, prefills, ends.

    Yields:
        After each step the time, and how many requests came so far.
    """
    now, places = 0.0, list[Place]()
    for kind, number, seconds in drawn:
        now += seconds
        place = places[number % len(places)] if places else None
        if kind == "a" or place is None:
            places.append(add(load, 100.0 * number, now, tells=number % 3 > 0))
        elif kind == "d":
            service = load.answer(place, prefill(50.0), now - seconds, now)
            assert service.seconds >= 0 <= service.work
        elif kind == "c":
            load.cancel(place, 0.1, now)
        elif kind == "w":
            load.correct(number, 3, now)
        elif kind == "p":
            load.prefilled(place, now)
        elif load.in_flight:
            load.release(0, now, untold=place)
        yield now, len(places)
