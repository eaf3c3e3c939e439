"""Durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("10m", 600), ("1h", 3600), ("250ms", 0.25), ("7d", 604_800), (" 0 ", 0)],
)
def test_units_are_understood(text: str, seconds: float) -> None:
    """A number alone is seconds."""
    assert durations.seconds(text) == seconds


@pytest.mark.parametrize(("text", "advice"), [("8d", "seven days"), ("9" * 30, "not a duration"), ("soon", "10m")])
def test_what_is_none_is_refused_with_advice(text: str, advice: str) -> None:
    """Also what is too long."""
    with pytest.raises(ValueError, match=advice):
        durations.seconds(text)


@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    """A duration is never negative, endless or no number."""
    try:
        found = durations.seconds(text)
    except ValueError:
        return
    assert 0 <= found <= durations.LONGEST_S
