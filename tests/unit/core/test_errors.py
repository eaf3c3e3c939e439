"""The error tree."""

from __future__ import annotations

import pytest

from ext_proc.core import errors
from ext_proc.core.errors import ConfigError, KvpickerError, Refusal

OVERLOADS = errors.Overload.__subclasses__()
REFUSALS = [kind for kind in Refusal.__subclasses__() if kind is not errors.Overload] + OVERLOADS


@pytest.mark.parametrize("kind", REFUSALS)
def test_every_refusal_says_what_clients_and_metrics_need(kind: type[Refusal]) -> None:
    """Each has an error status, a reason code and a type in both APIs."""
    assert 400 <= kind.status < 600
    assert kind.reason
    assert kind.reason == kind.reason.lower()
    assert kind.openai_type.endswith("_error")
    assert kind.anthropic_type.endswith("_error")


def test_reasons_are_distinct() -> None:
    """A reason code leads to one class."""
    assert len({kind.reason for kind in REFUSALS}) == len(REFUSALS)


@pytest.mark.parametrize("kind", REFUSALS)
def test_what_may_pass_soon_asks_for_a_retry(kind: type[Refusal]) -> None:
    """A 503 carries Retry-After; an error of the client does not, since a retry would not help."""
    assert (kind.retry_after is not None) == (kind.status in {429, 503})


def test_a_config_error_leads_to_the_place() -> None:
    """Its text names file, field and fault, and leaves out what is not known."""
    error = ConfigError("is no number", path="pools.a.weight", where="config.yaml:3")
    assert str(error) == "config.yaml:3: pools.a.weight: is no number"
    assert str(ConfigError("is no number")) == "is no number"


def test_the_docstring_lists_the_whole_tree() -> None:
    """The drawing of the tree names every class with its status."""
    assert errors.__doc__ is not None
    lines = [line.split() for line in errors.__doc__.splitlines() if "──" in line]
    drawn = {words[-2]: words[-1] for words in lines if words[-1].isdigit()}
    assert drawn == {kind.__name__: str(kind.status) for kind in REFUSALS}
    assert all(issubclass(kind, KvpickerError) for kind in (*REFUSALS, ConfigError))
