"""What is to be known of KV events that a running kvpicker hears, or should hear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from ext_proc.config import KvEventsConfig
from ext_proc.core.kv_state import Disbelief, PublisherState
from ext_proc.doctor.examination import Examination
from ext_proc.doctor.finding import Finding, Level

_BRINGS: Final = "its prompts are judged by what it holds, not by text"

_DISBELIEF: Final[Mapping[Disbelief, tuple[str, str]]] = MappingProxyType(
    {
        Disbelief.NOT_CONNECTED: (
            "the running kvpicker has no connection to its KV events",
            "correct `kv_events` of the pool, or let kvpicker through to this port",
        ),
        Disbelief.NOTHING_HEARD: (
            "the running kvpicker has heard no KV event of it yet",
            "give its events a replay endpoint, and the pool `replay_port`: then it is known from the start",
        ),
        Disbelief.MISSING_EVENTS: (
            "the running kvpicker waits for KV events that it missed",
            "ask again in a few seconds; if this stays, correct `replay_port` of the pool",
        ),
        Disbelief.SILENT: (
            "it is at work, and the running kvpicker hears no KV event of it",
            "correct `topic` and `port` of the pool, or switch events on at the engine",
        ),
    }
)


def of_ranks(one: Examination, settings: KvEventsConfig | None) -> Iterator[Finding]:
    """Say whether as many data-parallel ranks are listened to as publish."""
    if one.kv_events is None or not one.kv_events.enabled or settings is None:
        return
    ranks = one.kv_events.ranks
    if ranks != settings.ranks:
        what = f"it publishes KV events of {_ranks(ranks)}, and `kv_events.ranks` says {settings.ranks}"
        do = f"set `kv_events.ranks: {ranks}` of the pool" if ranks > 1 else "remove `kv_events.ranks` of the pool"
        brings = f"{_BRINGS}{'; no rank is named before' if settings.pin_rank else ''}"
        yield Finding(Level.PROBLEM, one.endpoint, what, do, brings)


def of_listening(one: Examination) -> Iterator[Finding]:
    """Say what is wrong with listening to an engine's publishers."""
    for state in one.publishers:
        where = f"{one.endpoint}, {state.address}"
        if state.disbelief is not None:
            what, do = _DISBELIEF[state.disbelief]
            level = Level.ADVICE if state.disbelief is Disbelief.NOTHING_HEARD else Level.PROBLEM
            yield Finding(level, where, what, do, _BRINGS)
        elif state.lost:
            yield Finding(Level.ADVICE, where, f"{state.lost} gaps in its KV events could not be filled", *_MEMORY)
        elif not state.complete:
            what = "not all that it holds is known: listening began too late, or blocks were told that cannot be used"
            yield Finding(Level.ADVICE, where, what, *_MEMORY)


_MEMORY: Final = (
    "raise `buffer_steps` in its --kv-events-config, and set `replay_port` of the pool",
    "nothing that it holds goes unseen after a hiccup or a restart of kvpicker",
)


def _ranks(count: int) -> str:
    return f"{count} data-parallel ranks" if count > 1 else "one data-parallel rank"


def seen(state: PublisherState) -> str:
    """Return in a few words how listening goes."""
    if state.disbelief is not None:
        return state.disbelief.value.replace("_", " ")
    return f"{state.blocks:,} blocks heard{'' if state.complete else ', perhaps not all'}"
