"""Tells from what Envoy sends, and what it does not, how it is set that kvpicker cannot do its part."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple


class Misfit(enum.StrEnum):
    """A setting of Envoy's that keeps kvpicker from its part."""

    HEADERS_NOT_SENT = "headers_not_sent"
    BODY_NOT_SENT = "body_not_sent"
    PICK_NOT_OBEYED = "pick_not_obeyed"
    DECISION_NOT_LOGGED = "decision_not_logged"
    NO_ACCESS_LOG = "no_access_log"


class Mend(NamedTuple):
    """What a misfit does, and how it is mended."""

    meaning: str
    mend: str


MENDS: Final[Mapping[Misfit, Mend]] = {
    Misfit.HEADERS_NOT_SENT: Mend(
        meaning="exchanges begin with a body, so nothing is picked",
        mend="set request_header_mode: SEND in the ext_proc filter",
    ),
    Misfit.BODY_NOT_SENT: Mend(
        meaning="picks must be made before the body is seen, by load alone: neither model nor prompt is known",
        mend="set request_body_mode: BUFFERED_PARTIAL in the ext_proc filter",
    ),
    Misfit.PICK_NOT_OBEYED: Mend(
        meaning="engines answer that were not picked, though nothing was tried in vain",
        mend="give the engines' cluster the override_host policy and the engines that kvpicker has; list envoy.lb in"
        " metadata_options.receiving_namespaces of the ext_proc filter",
    ),
    Misfit.DECISION_NOT_LOGGED: Mend(
        meaning="the access log tells of requests without their decisions, so no end of one is known",
        mend="list kvpicker in metadata_options.receiving_namespaces of the ext_proc filter",
    ),
    Misfit.NO_ACCESS_LOG: Mend(
        meaning="requests run, and the access log tells of none, so no end of one is known",
        mend="give the connection manager an access_log of type http_grpc that leads to kvpicker",
    ),
}


def degraded_reason(misfit: Misfit) -> str:
    """Return how metrics call it."""
    return f"envoy_{misfit}"


WINDOW_S: Final = 10.0
"""Seconds that are judged at a time; as long as Envoy takes to report a request that runs."""

_ENOUGH: Final = 5
_SHARE: Final = 0.2
_PATIENCE: Final = 3
"""Windows after which an access log without decisions is no chance: until then, what was decided may be running."""


class Counts(NamedTuple):
    """What was seen since the start.

    Attributes:
        decided: decisions.
        unread: those of them on requests whose bodies were held back from kvpicker, and requests left to Envoy for it.
        headless: exchanges that began with a body.
        joined: entries of the access log that speak of a decision of kvpicker's, or of another one's.
        unjoined: entries that speak of none.
        finished: requests whose outcome is known.
        attempts: at engines, for these.
        elsewhere: of these, those that another engine than the chosen one served.
    """

    decided: int = 0
    unread: int = 0
    headless: int = 0
    joined: int = 0
    unjoined: int = 0
    finished: int = 0
    attempts: int = 0
    elsewhere: int = 0


class MisfitWatch:
    """Judges what was seen, a window at a time.

    Attributes:
        present: the misfits of the window before; what a window without traffic cannot tell stays.
    """

    def __init__(self, counts: Counts, now: float) -> None:
        self.present: frozenset[Misfit] = frozenset()
        self._counts = counts
        self._judged_at = now
        self._mute = 0

    def is_due(self, now: float) -> bool:
        """Tell whether a window is over; until then nothing need be counted."""
        return now - self._judged_at >= WINDOW_S

    def look(self, counts: Counts, now: float, *, log_silent: bool) -> list[Misfit]:
        """Judge, if it is time; returns the misfits that were not there before.

        Args:
            counts: what was seen since the start.
            now: monotonic seconds.
            log_silent: whether nothing is heard of requests that run.
        """
        if not self.is_due(now):
            return []
        seen = Counts(*(new - old for new, old in zip(counts, self._counts, strict=True)))
        before, self._counts, self._judged_at = self.present, counts, now
        found = {Misfit.NO_ACCESS_LOG} if log_silent else set()
        found |= self._of_requests(seen, before) | self._of_outcomes(seen, before)
        self.present = frozenset(found)
        return sorted(self.present - before)

    def _of_requests(self, seen: Counts, before: frozenset[Misfit]) -> set[Misfit]:
        if seen.decided + seen.unread + seen.headless < _ENOUGH:
            return set(before & {Misfit.HEADERS_NOT_SENT, Misfit.BODY_NOT_SENT})
        shares = {Misfit.HEADERS_NOT_SENT: seen.headless, Misfit.BODY_NOT_SENT: seen.unread}
        return {misfit for misfit, count in shares.items() if count >= _ENOUGH and 2 * count > seen.decided}

    def _of_outcomes(self, seen: Counts, before: frozenset[Misfit]) -> set[Misfit]:
        found: set[Misfit] = set()
        if seen.decided >= _ENOUGH and seen.unjoined >= _ENOUGH and not seen.joined:
            self._mute += 1
        elif seen.joined:
            self._mute = 0
        if self._mute >= _PATIENCE:
            found.add(Misfit.DECISION_NOT_LOGGED)
        if seen.finished < 2 * _ENOUGH:
            return found | (before & {Misfit.PICK_NOT_OBEYED})
        retried = seen.attempts - seen.finished
        if seen.elsewhere - retried >= max(_ENOUGH, _SHARE * seen.finished):
            found.add(Misfit.PICK_NOT_OBEYED)
        return found
