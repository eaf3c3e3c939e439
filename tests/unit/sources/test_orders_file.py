"""The file in which orders outlive a restart."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.errors import ConfigError
from ext_proc.core.lifecycle import Order, Stage
from ext_proc.sources.orders_file import LONGEST_S, MOST_BYTES, MOST_MODELS, MOST_ORDERS, OrdersFile

A = "10.0.0.11:8000"


class Clocks:
    """A wall clock and a monotonic one that are set by hand."""

    def __init__(self, wall: float = 1_700_000_000.0, monotonic: float = 100.0) -> None:
        self.wall = wall
        self.monotonic = monotonic

    def file(self, path: Path) -> OrdersFile:
        """Make a file that goes by these."""
        return OrdersFile(path, lambda: self.wall, lambda: self.monotonic)


def orders() -> st.SearchStrategy[Order]:
    """Return any orders, with deadlines up to a day away."""
    names = st.text(min_size=1, max_size=20)
    models = st.frozensets(st.text(max_size=10), max_size=MOST_MODELS + 2)
    for_good = st.sampled_from([Stage.CORDONED, Stage.DRAINED])
    given_for_good = st.builds(Order, names, names, for_good, st.none(), models)
    drains = st.builds(Order, names, names, st.just(Stage.DRAINING), st.floats(100.0, 86_500.0), models)
    return st.one_of(given_for_good, drains)


@given(st.lists(orders(), max_size=20))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, given_orders: list[Order]) -> None:
    """By a process whose monotonic clock began elsewhere; deadlines are as far away as they were."""
    path = tmp_path_factory.mktemp("orders") / "orders.json"
    Clocks(monotonic=100.0).file(path).write(given_orders)
    found = Clocks(monotonic=7.0).file(path).read()
    assert found is not None
    assert [(o.address, o.pool, o.stage) for o in found] == [(o.address, o.pool, o.stage) for o in given_orders]
    for before, after in zip(given_orders, found, strict=True):
        assert after.models == (before.models if len(before.models) <= MOST_MODELS else frozenset())
        assert (before.deadline is None) is (after.deadline is None)
        if before.deadline is not None and after.deadline is not None:
            assert after.deadline - 7.0 == pytest.approx(before.deadline - 100.0, abs=0.01)


def test_time_passes_while_nobody_runs(tmp_path: Path) -> None:
    """A deadline that passed meanwhile is over, and one is never further away than a year."""
    path = tmp_path / "orders.json"
    Clocks().file(path).write([Order(A, "main", Stage.DRAINING, 160.0)])
    (late,) = Clocks(wall=1_700_000_100.0).file(path).read() or ()
    assert late.deadline == 100.0
    (odd,) = Clocks(wall=0.0).file(path).read() or ()
    assert odd.deadline == 100.0 + LONGEST_S


def test_there_may_be_no_file(tmp_path: Path) -> None:
    """Which is another thing than a file without orders."""
    file = Clocks().file(tmp_path / "orders.json")
    assert file.read() is None
    file.write([])
    assert file.read() == []


def test_the_file_is_its_owners(tmp_path: Path) -> None:
    """Nobody else needs it, and nothing is left beside it."""
    Clocks().file(tmp_path / "orders.json").write([Order(A, "main", Stage.CORDONED)])
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_orders_are_bounded(tmp_path: Path) -> None:
    """The latest are kept."""
    file = Clocks().file(tmp_path / "orders.json")
    file.write([Order(str(number), "main", Stage.CORDONED) for number in range(MOST_ORDERS + 5)])
    found = file.read() or []
    assert (len(found), found[0].address, found[-1].address) == (MOST_ORDERS, "5", str(MOST_ORDERS + 4))


ENTRY = {"address": A, "pool": "main", "stage": "cordoned"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no file of orders"),
        (b'{"version": 1, "orders": [', "no file of orders"),
        (b"\xff\xfe", "no file of orders"),
        ({"orders": []}, "`version`"),
        ({"version": 2, "orders": []}, "has version 2, and this kvpicker knows 1"),
        ({"version": 1}, "`orders`"),
        ({"version": 1, "orders": [{**ENTRY, "stage": "resting"}]}, "resting"),
        ({"version": 1, "orders": [{**ENTRY, "until": "soon"}]}, r"until"),
        ({"version": 1, "orders": [{**ENTRY, "who": "me"}]}, "who"),
        ({"version": 1, "orders": [{**ENTRY, "address": ""}]}, "length"),
        ({"version": 1, "orders": [ENTRY] * (MOST_ORDERS + 1)}, "length"),
        (b" " * (MOST_BYTES + 1), "has more than"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_file_is_told(tmp_path: Path, content: Any, reason: str) -> None:
    """With the reason and its path."""
    path = tmp_path / "orders.json"
    path.write_bytes(content if isinstance(content, bytes) else msgspec.json.encode(content))
    with pytest.raises(ConfigError, match=reason) as raised:
        Clocks().file(path).read()
    assert str(path) in str(raised.value)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """With the system's reason; so is one that cannot be read."""
    file = Clocks().file(tmp_path / "nowhere" / "orders.json")
    with pytest.raises(ConfigError, match=r"cannot be written: No such file"):
        file.write([])
    (tmp_path / "orders.json").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        Clocks().file(tmp_path / "orders.json").read()
