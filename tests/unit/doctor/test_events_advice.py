"""What the doctor says of KV events that a running kvpicker hears."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.config import KvEventsConfig
from ext_proc.core.kv_state import Disbelief, PublisherState
from ext_proc.doctor.events_advice import of_listening, of_ranks, seen
from ext_proc.doctor.examination import Examination
from ext_proc.doctor.finding import Level
from ext_proc.doctor.pages import KvEvents


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


@pytest.mark.parametrize(
    ("published", "configured", "what", "do"),
    [
        (2, KvEventsConfig(port=1), "2 data-parallel ranks, and `kv_events.ranks` says 1", "ranks: 2`"),
        (2, KvEventsConfig(port=1, ranks=4, pin_rank=True), "2 data-parallel ranks", "ranks: 2`"),
        (1, KvEventsConfig(port=1, ranks=2), "one data-parallel rank", "remove `kv_events.ranks`"),
    ],
)
def test_ranks_that_nobody_hears_or_that_do_not_exist(
    published: int, configured: KvEventsConfig, what: str, do: str
) -> None:
    """What an engine holds is half known, or no rank can be named."""
    one = Examination(endpoint="10.0.0.1:1", pool="p", kv_events=KvEvents(True, ranks=published))
    (finding,) = of_ranks(one, configured)
    assert finding.level is Level.PROBLEM
    assert what in finding.what
    assert do in finding.do
    assert ("named" in finding.brings) is configured.pin_rank


def test_ranks_that_are_all_heard_or_need_not_be() -> None:
    """Nothing is said either of an engine that publishes nothing, or of a pool that listens to none."""
    for events, settings in (
        (KvEvents(True, ranks=2), KvEventsConfig(port=1, ranks=2)),
        (KvEvents(False), KvEventsConfig(port=1, ranks=2)),
        (KvEvents(True, ranks=2), None),
        (None, KvEventsConfig(port=1, ranks=2)),
    ):
        assert list(of_ranks(Examination(endpoint="10.0.0.1:1", pool="p", kv_events=events), settings)) == []


def test_the_table_tells_in_a_few_words() -> None:
    """How much is known, or why nothing is."""
    assert seen(state()) == "1,200 blocks heard"
    assert seen(state(complete=False)) == "1,200 blocks heard, perhaps not all"
    assert seen(state(disbelief=Disbelief.MISSING_EVENTS)) == "missing events"
