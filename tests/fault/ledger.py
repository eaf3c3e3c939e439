"""Every request that the clients sent, what came back, and what the engines got: who is right is decided here."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec


class Verdict(enum.StrEnum):
    """What became of one request, as its client saw it."""

    OPEN = "open"
    RIGHT = "right"
    FAILED = "failed"
    CUT = "cut"
    ALTERED = "altered"
    HUNG = "hung"
    LEFT = "left"


class Sent(msgspec.Struct, kw_only=True):
    """One request of a client.

    Attributes:
        id: its x-request-id, used once.
        path: where it went.
        digest: SHA-256 of its body, in hexadecimal.
        repeatable: whether several engines may do it.
        sent_at: monotonic seconds.
        ended_at: monotonic seconds; 0 while it runs.
        verdict: what became of it.
        why: status or error, where it did not end well.
        engine: the engine that said it answered; empty if none did.
    """

    id: str
    path: str
    digest: str
    repeatable: bool
    sent_at: float
    ended_at: float = 0.0
    verdict: Verdict = Verdict.OPEN
    why: str = ""
    engine: str = ""

    def end(self, verdict: Verdict, now: float, why: str = "") -> None:
        """Note the end, once."""
        assert self.verdict is Verdict.OPEN, f"{self.id} ended twice"
        self.verdict, self.ended_at, self.why = verdict, now, why


class Received(msgspec.Struct, frozen=True):
    """One request as an engine wrote it down."""

    request_id: str | None
    path: str
    body_sha256: str


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of a run.

    Attributes:
        requests: how many were sent.
        answered: with the right answer, whole.
        failed: with an error or a broken answer instead.
        cut: streams that began and broke off.
        cut_elsewhere: those of them that another engine than the culprit served.
        hung: without an end in time.
        left: by clients that did not wait for the end.
        altered: whose body an engine got otherwise than it was sent, or whose answer belongs to something else.
        repeated: generations that engines got more than once.
        again: other requests that engines got more than once, which is allowed.
        reasons: why requests failed or were cut, and how many.
    """

    requests: int
    answered: int
    failed: int
    cut: int
    cut_elsewhere: int
    hung: int
    left: int
    altered: int
    repeated: int
    again: int
    reasons: Mapping[str, int]


class ClientLedger:
    """All requests of a run by id."""

    def __init__(self) -> None:
        self._sent: dict[str, Sent] = {}

    def add(self, sent: Sent) -> Sent:
        """Note a request before it is sent."""
        assert sent.id not in self._sent
        self._sent[sent.id] = sent
        return sent

    def first_failure(self, since: float) -> float | None:
        """When the first request ended badly after a moment; None if none did."""
        bad = {Verdict.FAILED, Verdict.CUT, Verdict.HUNG}
        return min((s.ended_at for s in self._sent.values() if s.verdict in bad and s.ended_at >= since), default=None)

    def settle(self, received: Iterable[Received], culprit: str) -> Account:
        """Compare with what engines wrote down.

        Args:
            received: what all engines got, their own questions and kvpicker's included.
            culprit: the engine on which streams may be cut; empty for none.
        """
        copies: dict[str, list[Received]] = {}
        for one in received:
            if one.request_id in self._sent:
                copies.setdefault(one.request_id, []).append(one)
        ends = Counter(sent.verdict for sent in self._sent.values())
        changed = {id_ for id_, got in copies.items() if any(one.body_sha256 != self._sent[id_].digest for one in got)}
        ghosts = {s.id for s in self._sent.values() if s.verdict is Verdict.RIGHT and s.id not in copies}
        wrong = {sent.id for sent in self._sent.values() if sent.verdict is Verdict.ALTERED}
        twice = [self._sent[id_] for id_, got in copies.items() if len(got) > 1]
        cuts = [sent for sent in self._sent.values() if sent.verdict is Verdict.CUT]
        return Account(
            requests=len(self._sent),
            answered=ends[Verdict.RIGHT],
            failed=ends[Verdict.FAILED],
            cut=len(cuts),
            cut_elsewhere=sum(sent.engine != culprit for sent in cuts),
            hung=ends[Verdict.HUNG] + ends[Verdict.OPEN],
            left=ends[Verdict.LEFT],
            altered=len(changed | ghosts | wrong),
            repeated=sum(not sent.repeatable for sent in twice),
            again=sum(sent.repeatable for sent in twice),
            reasons=Counter(sent.why for sent in self._sent.values() if sent.why),
        )


def read_records(lines: Sequence[bytes]) -> list[Received]:
    """Read what an engine wrote down; a last line that it could not finish is left out."""
    found = []
    for place, line in enumerate(lines):
        try:
            found.append(msgspec.json.decode(line, type=Received))
        except msgspec.DecodeError:
            assert place == len(lines) - 1, f"an engine's record is broken: {line[:80]!r}"
    return found
