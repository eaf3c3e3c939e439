"""What is remembered of decisions that their own streams settled."""

from __future__ import annotations

from ext_proc.core.stream_outcomes import REMEMBERED, StreamOutcomes


def test_the_oldest_is_forgotten_when_there_are_too_many() -> None:
    """So the memory is bounded."""
    streams = StreamOutcomes()
    for number in range(REMEMBERED + 1):
        streams.note(f"a-{number}")
    assert "a-0" not in streams
    assert "a-1" in streams
    assert f"a-{REMEMBERED}" in streams
