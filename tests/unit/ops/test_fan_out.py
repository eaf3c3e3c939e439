"""Several observers at once."""

from typing import Any

from ext_proc.core.observer import Observer
from ext_proc.ops.fan_out import FanOut

CALLS: dict[str, tuple[Any, ...]] = {
    "decided": (1, 2),
    "refused": (1, 2, 3),
    "passed": (1,),
    "waited": (1, 2, 3),
    "failed": (1, 2),
    "first_token": (1, 2),
    "finished": (1, 2),
    "strategy_failed": (1, 2),
    "health_changed": (1, 2, 3, 4),
}


class Recorder:
    """Remembers every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, arguments))


def test_every_call_reaches_every_observer() -> None:
    """Each call of the protocol is forwarded with its arguments."""
    first, second = Recorder(), Recorder()
    both = FanOut(first, second)
    for name, arguments in CALLS.items():
        getattr(both, name)(*arguments)
    assert first.calls == second.calls == list(CALLS.items())


def test_no_call_of_the_protocol_is_left_out() -> None:
    """The list of calls above is that of the protocol."""
    assert CALLS.keys() == {name for name in vars(Observer) if not name.startswith("_")}
