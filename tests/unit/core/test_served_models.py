"""Which models endpoints answered for."""

from __future__ import annotations

import msgspec

from ext_proc.core.served_models import ServedModels
from tests.unit.core.builders import endpoints


def test_the_latest_models_are_remembered() -> None:
    """A model that is used again counts as new."""
    served, (endpoint, other) = ServedModels(), endpoints(2)
    for model in ("a", "b", "a", "c"):
        served.note(endpoint, model)
    assert set(served.lately(endpoint, 2)) == {"a", "c"}
    assert set(served.lately(endpoint, 9)) == {"a", "b", "c"}
    assert not served.lately(other, 9)


def test_memory_is_bounded() -> None:
    """An endpoint with more adapters than anybody needs keeps the latest."""
    served, (endpoint,) = ServedModels(limit=3), endpoints(1)
    for number in range(10):
        served.note(endpoint, str(number))
    assert set(served.lately(endpoint, 99)) == {"7", "8", "9"}


def test_a_successor_in_the_slot_inherits_nothing() -> None:
    """An engine that is started anew has no adapter loaded."""
    served, (endpoint,) = ServedModels(), endpoints(1)
    served.note(endpoint, "a")
    successor = msgspec.structs.replace(endpoint, generation=1)
    assert not served.lately(successor, 4)
    served.note(successor, "b")
    assert set(served.lately(successor, 4)) == {"b"}
