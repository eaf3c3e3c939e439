"""The ledger of the fault suite finds what must never happen."""

from __future__ import annotations

import hashlib

import pytest

from tests.fault.ledger import Account, ClientLedger, Received, Sent, Verdict, read_records

DIGEST = hashlib.sha256(b"body").hexdigest()


def settle(*copies: str, verdict: Verdict = Verdict.RIGHT, repeatable: bool = False) -> Account:
    """Judge one request whose body reached engines with these digests."""
    ledger = ClientLedger()
    sent = ledger.add(Sent(id="r1", path="/x", digest=DIGEST, repeatable=repeatable, sent_at=0.0, engine="e1"))
    if verdict is not Verdict.OPEN:
        sent.end(verdict, 1.0)
    probes = [Received(None, "/health", ""), Received("another", "/x", "z")]
    return ledger.settle([*probes, *(Received("r1", "/x", digest) for digest in copies)], "e0")


def test_one_right_answer_is_all_there_should_be() -> None:
    """What was sent once, received once and answered right breaks nothing."""
    account = settle(DIGEST)
    assert (account.requests, account.answered) == (1, 1)
    assert not account.failed + account.cut + account.hung + account.altered + account.repeated + account.again


def test_a_generation_that_two_engines_got_is_repeated() -> None:
    """A second copy counts, unless the request may be repeated."""
    assert (settle(DIGEST, DIGEST).repeated, settle(DIGEST, DIGEST).again) == (1, 0)
    again = settle(DIGEST, DIGEST, repeatable=True)
    assert (again.repeated, again.again) == (0, 1)


def test_another_body_is_altered() -> None:
    """A body that an engine got otherwise than it was sent counts, and so does an answer that nobody was asked for."""
    assert settle("other").altered == 1
    assert settle().altered == 1
    assert settle(verdict=Verdict.FAILED).altered == 0


def test_a_request_without_an_end_hangs() -> None:
    """What is still open counts as hanging, and a stream cut on another engine than the culprit counts twice."""
    assert settle(DIGEST, verdict=Verdict.OPEN).hung == 1
    cut = settle(DIGEST, verdict=Verdict.CUT)
    assert (cut.cut, cut.cut_elsewhere) == (1, 1)


def test_only_the_last_line_of_a_record_may_be_broken() -> None:
    """An engine that is killed while it writes loses one line, and no other."""
    line = b'{"request_id":"r1","path":"/x","body_sha256":"d"}'
    assert read_records([line, line[:9]]) == [Received("r1", "/x", "d")]
    with pytest.raises(AssertionError):
        read_records([line[:9], line])
