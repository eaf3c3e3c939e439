"""Lines of one kind beyond so many a second."""

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.ops.log_limit import MOST_KINDS, LineLimit


def test_each_second_has_its_own_lines() -> None:
    """The rest of a second is held back, and the first line of the next one tells how many those were."""
    limit = LineLimit(2)
    assert [limit.admit("a", 0.1 * step) for step in range(5)] == [0, 0, None, None, None]
    assert limit.admit("a", 1.0) == 3
    assert limit.admit("a", 1.1) == 0


def test_kinds_do_not_take_from_each_other() -> None:
    """A flood of one kind hides no line of another."""
    limit = LineLimit(1)
    assert [limit.admit("a", 0.0) for _ in range(9)].count(None) == 8
    assert limit.admit("b", 0.0) == 0


def test_the_end_of_a_flood_is_told() -> None:
    """Two quiet seconds after a kind's last window its count is due, once; a flood that goes on tells it itself."""
    limit = LineLimit(1)
    for kind in ("over", "over", "on", "on"):
        limit.admit(kind, 0.0)
    assert limit.ended(1.9) == {}
    assert limit.admit("on", 1.95) == 1
    assert limit.admit("on", 1.95) is None
    assert limit.ended(2.0) == {"over": 1}
    assert limit.ended(2.0) == {}
    assert limit.drain() == {"on": 1}


def test_kinds_without_end_share_a_limit() -> None:
    """Whoever finds a way to make kinds up makes the limit neither grow nor leak."""
    limit = LineLimit(3)
    admitted = [limit.admit(f"kind-{number}", 0.0) is not None for number in range(100_000)]
    assert sum(admitted) == MOST_KINDS + 3
    assert len(limit._windows) <= MOST_KINDS + 1
    assert sum(limit.ended(2.0).values()) == 100_000 - MOST_KINDS - 3
    assert limit._windows == {}


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 0.7), st.booleans()), max_size=200),
)
def test_no_line_is_lost_count_of(per_second: int, asked: list[tuple[str, float, bool]]) -> None:
    """Lines admitted and lines told of as held back are all that were asked for, whoever tells it and when."""
    limit, now, written, told = LineLimit(per_second), 0.0, 0, 0
    for kind, pause, look in asked:
        now += pause
        suppressed = limit.admit(kind, now)
        written += suppressed is not None
        told += suppressed or 0
        if look:
            told += sum(limit.ended(now).values())
    assert written + told + sum(limit.drain().values()) == len(asked)


class Meanwhile(float):
    """A moment in which another thread asks for a line of a new kind."""

    limit: LineLimit

    def __sub__(self, other: float) -> float:
        self.limit.admit(f"kind {other}", float(self))
        return float(self) - other


def test_lines_may_come_from_other_threads_while_floods_are_counted() -> None:
    """What libraries log does not come from the event loop alone."""
    limit = LineLimit(1)
    for number in range(3):
        limit.admit(str(number), float(number))
        limit.admit(str(number), float(number))
    now = Meanwhile(100.0)
    now.limit = limit
    assert limit.ended(now) == {"0": 1, "1": 1, "2": 1}
