"""The names of events."""

import re

import pytest

from ext_proc.ops.events import Event, reference


def test_names_are_words_joined_by_underscores() -> None:
    """No name stands twice, and each can be searched for as it is."""
    names = [event.name_ for event in Event]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)+", name) for name in names)


@pytest.mark.parametrize("event", Event, ids=lambda event: event.name_)
def test_every_event_is_documented(event: Event) -> None:
    """The table holds each event with level, the field whose values are limited each by itself, and meaning."""
    limited = "never" if event.kind is None else f"`{event.kind}`" if event.kind else "event"
    assert f"| `{event.name_}` | {event.level} | {limited} | {event.meaning} |" in reference()
    assert event.level in {"debug", "info", "warning", "error"}
    assert event.meaning.endswith(".")
