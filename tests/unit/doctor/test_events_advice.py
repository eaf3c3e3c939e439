"""What the doctor says of KV events that a running kvpicker hears."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.core.kv_state import Disbelief, PublisherState
from ext_proc.doctor.events_advice import of_listening, seen
from ext_proc.doctor.examination import Examination
from ext_proc.doctor.finding import Level


def state(**changes: Any) -> PublisherState:
    """Make the state of a publisher that is heard well."""
    fields: dict[str, Any] = {
        "address": "tcp://10.0.0.1:5557", "connected": True, "disbelief": None, "complete": True, "blocks": 1200,
        "block_tokens": 16, "messages": 9, "age_s": 0.1, "lag_s": 0.01, "gaps": 0, "lost": 0, "restarts": 0,
    }  # fmt: skip
    return PublisherState(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "level", "word"),
    [
        ({"disbelief": Disbelief.NOT_CONNECTED}, Level.PROBLEM, "no connection"),
        ({"disbelief": Disbelief.NOTHING_HEARD}, Level.ADVICE, "replay"),
        ({"disbelief": Disbelief.MISSING_EVENTS}, Level.PROBLEM, "waits"),
        ({"disbelief": Disbelief.SILENT}, Level.PROBLEM, "topic"),
        ({"gaps": 4, "lost": 3, "complete": False}, Level.ADVICE, "3 gaps"),
        ({"complete": False}, Level.ADVICE, "too late"),
    ],
)
def test_each_trouble_has_its_remedy(changes: dict[str, Any], level: Level, word: str) -> None:
    """One finding per publisher, with its address."""
    one = Examination(endpoint="10.0.0.1:1", pool="p", publishers=(state(**changes), state()))
    (finding,) = of_listening(one)
    assert (finding.level, finding.where) == (level, "10.0.0.1:1, tcp://10.0.0.1:5557")
    assert word in f"{finding.what} {finding.do}"
    assert finding.brings


def test_the_table_tells_in_a_few_words() -> None:
    """How much is known, or why nothing is."""
    assert seen(state()) == "1,200 blocks heard"
    assert seen(state(complete=False)) == "1,200 blocks heard, perhaps not all"
    assert seen(state(disbelief=Disbelief.MISSING_EVENTS)) == "missing events"
