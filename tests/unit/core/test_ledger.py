"""Leases and the virtual prefill queue."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ext_proc.core.learnt import NOTHING_LEARNT, Learnt
from ext_proc.core.ledger import Lease, Ledger
from ext_proc.core.load import Load
from ext_proc.core.model import Decision, Endpoint
from ext_proc.core.prefill import Prefill
from tests.unit.core.builders import endpoints, request

A, B = endpoints(2)
SMALLER = endpoints(2, kv_tokens=60)


def _decision(name: str, endpoint: Endpoint, tokens: int = 100) -> Decision:
    return Decision(
        id=name,
        endpoints=(endpoint,),
        request=request(prompt_tokens=tokens),
        chain_length=0,
        hit_tokens=0,
        reason="",
        strategy="",
        terms=(),
        filters=(),
        decided_at=0.0,
    )


def _take(ledger: Ledger, name: str, endpoint: Endpoint = A, *, now: float = 0.0, counted: bool = True) -> Lease:
    decision = _decision(name, endpoint)
    return ledger.take(decision, NOTHING_LEARNT, Prefill(seconds=2.0), output=50.0, now=now, counted=counted)


def _stream(ledger: Ledger, name: str, now: float) -> None:
    decision = _decision(name, A)
    asked = msgspec.structs.replace(decision.request, stream=True)
    decision = msgspec.structs.replace(decision, request=asked, decided_at=now)
    ledger.take(decision, NOTHING_LEARNT, Prefill(work=100.0, seconds=2.0), output=50.0, now=now)


def _seen(load: Load) -> tuple[int, int, float]:
    return load.in_flight, load.tokens, load.busy_until


@pytest.fixture
def ledger() -> Ledger:
    """A ledger that knows A and B."""
    made = Ledger()
    made.add(A.slot)
    made.add(B.slot)
    return made


def test_a_lease_books_requests_tokens_and_queue(ledger: Ledger) -> None:
    """A dispatch counts at once: one request, its prompt and expected answer, and its prefill behind the others'."""
    _take(ledger, "1", now=10.0)
    _take(ledger, "2", now=11.0)
    assert _seen(ledger.load(A.slot)) == (2, 300, 14.0)
    assert list(map(_seen, ledger.loads_of([A.slot, B.slot]))) == [(2, 300, 14.0), (0, 0, 0.0)]


def test_an_idle_queue_begins_at_the_present(ledger: Ledger) -> None:
    """Time in which an endpoint had nothing to do is not credited to it."""
    ledger.end(_take(ledger, "1", now=0.0).decision.id, 1.0)
    assert ledger.load(A.slot).busy_until == 1.0
    _take(ledger, "2", now=100.0)
    assert ledger.load(A.slot).busy_until == 102.0


@pytest.mark.parametrize("known", [True, False])
def test_the_rate_of_a_rank_does_not_depend_on_when_ranks_become_known(ledger: Ledger, *, known: bool) -> None:
    """An engine that is never idle again: what was in flight before is at its ranks just as what comes after."""
    if known:
        ledger.serve(A.slot, 4)
    ranks = [10.0] * 4
    running: deque[tuple[float, str]] = deque()
    work = seconds = 0.0
    for number in range(200):
        if number == 20:
            ledger.serve(A.slot, 4)
        if number >= 20:
            now, name = running.popleft()
            told = ledger.first_token(name, now)
            assert told is not None
            assert told[1] is not None
            work, seconds = work + told[1].work, seconds + told[1].seconds
            ledger.end(name, now, answered_by=A.address)
        else:
            now = 10.0
        _stream(ledger, str(number), now)
        ranks[number % 4] = max(ranks[number % 4], now) + 2.0
        running.append((ranks[number % 4], str(number)))
    assert work / seconds == pytest.approx(50.0, rel=0.1)


def test_a_lease_ends_once(ledger: Ledger) -> None:
    """The second end of a lease finds nothing and releases nothing."""
    _take(ledger, "1")
    _take(ledger, "2")
    assert ledger.end("1", 1.0) is not None
    assert ledger.end("1", 1.0) is None
    assert ledger.load(A.slot).in_flight == 1


def test_uncounted_requests_weigh_nothing(ledger: Ledger) -> None:
    """A request that costs an engine next to nothing has a lease but no load."""
    _take(ledger, "1", counted=False)
    assert (ledger.load(A.slot), len(ledger)) == (Load(), 1)
    ledger.end("1", 1.0)
    assert (ledger.load(A.slot), len(ledger)) == (Load(), 0)


def test_e04_a_slot_taken_over_starts_idle(ledger: Ledger) -> None:
    """Requests of an endpoint that is gone neither weigh on its successor in the slot nor are released from it."""
    _take(ledger, "1")
    ledger.remove(A.slot)
    ledger.add(A.slot)
    assert ledger.load(A.slot) == Load()
    ledger.end("1", 1.0)
    assert ledger.load(A.slot) == Load()


def test_an_unknown_slot_is_idle(ledger: Ledger) -> None:
    """A lease at an endpoint that is gone is kept and ends like any other."""
    ledger.remove(A.slot)
    _take(ledger, "1")
    assert (ledger.load(A.slot), len(ledger)) == (Load(), 1)
    assert ledger.end("1", 1.0) is not None


def test_a_first_token_sets_the_queue_right(ledger: Ledger) -> None:
    """Once a request answers, what was sent up to it is done, and the queue is what was sent after it, from now."""
    for name in "123":
        _take(ledger, name, now=0.0)
    assert ledger.load(A.slot).busy_until == 6.0
    noted = ledger.first_token("2", 1.0)
    assert noted is not None
    assert noted[0].decision.id == "2"
    assert ledger.load(A.slot).busy_until == 3.0
    ledger.first_token("1", 1.5)
    assert ledger.load(A.slot).busy_until == 3.5
    ledger.first_token("3", 10.0)
    assert ledger.load(A.slot).busy_until == 10.0


def test_a_first_token_counts_once(ledger: Ledger) -> None:
    """A second one, one of an unknown request and one of a request that weighs nothing say nothing."""
    _take(ledger, "1")
    _take(ledger, "2", counted=False)
    assert ledger.first_token("1", 1.0) is not None
    assert [ledger.first_token(name, 2.0) for name in ("1", "2", "3")] == [None, None, None]


@pytest.mark.parametrize(("answered_by", "left"), [(A.address, 2.0), (B.address, 4.0), (None, 4.0)])
def test_who_was_not_prefilled_leaves_the_queue(ledger: Ledger, answered_by: str | None, left: float) -> None:
    """An answer of the chosen endpoint says that all before is done; any other end takes only the request out."""
    for name in "123":
        _take(ledger, name, now=0.0)
    ledger.end("2", 0.0, answered_by=answered_by)
    assert ledger.load(A.slot).busy_until == left


def test_a_request_that_answered_is_not_taken_out_again(ledger: Ledger) -> None:
    """A stream that is cut after its first token was prefilled; the queue behind it stays."""
    for name in "123":
        _take(ledger, name, now=0.0)
    ledger.first_token("2", 1.0)
    ledger.end("2", 1.5)
    assert ledger.load(A.slot).busy_until == 3.0


def test_without_reports_a_lost_end_weighs_for_a_while_only(ledger: Ledger) -> None:
    """A request that stays five times the usual is counted no more, but its outcome is still waited for."""
    _take(ledger, "1", now=0.0)
    assert not ledger.expire(149.0, 30.0)
    assert ledger.load(A.slot).in_flight == 1
    assert not ledger.expire(151.0, 30.0)
    assert (ledger.load(A.slot).in_flight, len(ledger)) == (0, 1)
    assert ledger.end("1", 160.0) is not None
    assert ledger.load(A.slot).in_flight == 0


def test_the_usual_stay_is_never_taken_for_shorter_than_a_minute_allows(ledger: Ledger) -> None:
    """Where answers take milliseconds, a request may still take a minute."""
    _take(ledger, "1", now=0.0)
    ledger.expire(59.0, 0.001)
    assert ledger.load(A.slot).in_flight == 1


def test_leases_without_an_outcome_expire(ledger: Ledger) -> None:
    """After the time-out a lease is given up and counted, and one that is younger is not."""
    _take(ledger, "1", now=0.0)
    _take(ledger, "2", now=500.0)
    assert [lease.decision.id for lease in ledger.expire(901.0)] == ["1"]
    assert (len(ledger), ledger.load(A.slot).in_flight) == (1, 1)


def test_leases_are_bounded() -> None:
    """Of more than there may be, those not heard of for longest are given up, and their places are free."""
    ledger = Ledger(limit=3)
    ledger.add(A.slot)
    for number in range(5):
        _take(ledger, str(number), now=float(number))
    ledger.renew("0", 5.0)
    assert ledger.fill > 1
    assert [lease.decision.id for lease in ledger.expire(6.0)] == ["1", "2"]
    assert ledger.load(A.slot).in_flight == len(ledger) == 3
    assert ledger.fill == 1.0


def test_f09_a_long_silent_request_keeps_counting(ledger: Ledger) -> None:
    """A request that Envoy reports as running is never given up, however long it takes, and is released once."""
    _take(ledger, "1", now=0.0)
    for now in range(10, 720, 10):
        assert ledger.renew("1", float(now))
        assert not ledger.expire(float(now))
    assert ledger.load(A.slot).in_flight == 1
    ledger.end("1", 720.0)
    assert _seen(ledger.load(A.slot)) == (0, 0, 2.0)


def test_f09_without_reports_twelve_minutes_are_not_too_long(ledger: Ledger) -> None:
    """Where the access log does not report running requests, they count for a quarter of an hour."""
    _take(ledger, "1", now=0.0)
    assert not ledger.expire(720.0)


def test_reports_shorten_the_patience(ledger: Ledger) -> None:
    """Once running requests are known to be reported, one that is not reported ends soon."""
    _take(ledger, "1", now=0.0)
    _take(ledger, "2", now=0.0)
    ledger.renew("1", 40.0)
    assert [lease.decision.id for lease in ledger.expire(50.0)] == ["2"]
    assert not ledger.renew("2", 50.0)


def _crowd(ledger: Ledger, name: str, endpoint: Endpoint, chain: tuple[int, ...], tokens: int = 100) -> Lease:
    learnt = Learnt(chain, estimated=tokens)
    return ledger.take(_decision(name, endpoint, tokens), learnt, Prefill(seconds=1.0), output=50.0, now=0.0)


SMALL = Endpoint(address="10.0.0.9:8000", pool="p", slot=9, kv_tokens=600)


def _crowded() -> Ledger:
    """Make a ledger that counts blocks of 20 tokens, half of the memory of whose endpoint is spoken for."""
    ledger = Ledger(lambda blocks: 20 * blocks)
    ledger.add(SMALL.slot)
    for name in ("1", "2"):
        _crowd(ledger, name, SMALL, (1, 2, 3))
    return ledger


def test_what_requests_share_is_pinned_once() -> None:
    """Once half of the memory is spoken for, a request adds what no other one that came since has brought already.

    Of its answer half is there on average.
    """
    ledger = _crowded()
    load = ledger.load(SMALL.slot)
    assert (load.tokens, load.pinned, load.sharing) == (300, 250, None)
    _crowd(ledger, "3", SMALL, (1, 2, 3))
    assert (load.tokens, load.pinned) == (450, 375)
    _crowd(ledger, "4", SMALL, (1, 2, 4))
    assert (load.tokens, load.pinned) == (600, 460)
    ledger.end("1", 1.0)
    assert (load.tokens, load.pinned) == (450, 335)
    ledger.end("3", 1.0)
    assert (load.tokens, load.pinned) == (300, 250)


def test_a_prompt_without_a_block_shares_nothing() -> None:
    """It is not asked how many tokens there are to each that was estimated: in so short a text there are too many."""
    ledger = _crowded()
    load = ledger.load(SMALL.slot)
    _crowd(ledger, "3", SMALL, (), tokens=1)
    assert (load.in_flight, load.sharing) == (3, None)


def test_where_the_size_is_unknown_all_counts() -> None:
    """An endpoint that does not tell its memory is never short of it, so nobody asks what is shared."""
    ledger = Ledger()
    ledger.add(A.slot)
    for name in ("1", "2", "3"):
        _crowd(ledger, name, A, (1, 2, 3))
    assert ledger.load(A.slot).sharing is None


def test_a_request_that_moves_shares_no_more() -> None:
    """Where it went it counts in full, and where it was it leaves nothing behind."""
    ledger = _crowded()
    for name in ("3", "4"):
        _crowd(ledger, name, SMALL, (1, 2, 3))
    ledger.add(7)
    ledger.move("4", "10.9.9.9:1", 7, 0.0)
    loads = ledger.loads_of([SMALL.slot, 7])
    assert [(load.tokens, load.pinned) for load in loads] == [(450, 375), (150, 125)]
    _crowd(ledger, "5", SMALL, (1, 2, 3))
    ledger.end("4", 1.0)
    assert [(load.tokens, load.pinned) for load in loads] == [(600, 440), (0, 0)]
    for name in ("1", "2", "3", "5"):
        ledger.end(name, 1.0)
    assert [(load.tokens, load.pinned) for load in loads] == [(0, 0), (0, 0)]


def test_one_whose_end_is_lost_shares_no_longer_than_it_counts() -> None:
    """A request that overstays is released with what it shares, once, and its late end changes nothing."""
    ledger = _crowded()
    for name in ("3", "4", "5"):
        _crowd(ledger, name, SMALL, (1, 2, 3))
    load = ledger.load(SMALL.slot)
    ledger.expire(61.0, 1.0)
    assert (load.in_flight, load.tokens, load.pinned) == (0, 0, 0)
    assert load.sharing is not None
    assert len(load.sharing) == 0
    _crowd(ledger, "6", SMALL, (1, 2, 3))
    for name in ("3", "4", "5"):
        ledger.end(name, 62.0)
    assert (load.in_flight, load.tokens, load.pinned) == (1, 150, 125)


class LedgerMachine(RuleBasedStateMachine):
    """Loads are always what the open leases add up to."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(lambda blocks: 4 * blocks, timeout=100.0)
        self.now = 0.0
        self.count = 0
        self.generations = [0, 0]
        self.open: dict[str, tuple[Lease, int, int]] = {}
        for slot in (0, 1):
            self.ledger.add(slot)

    def _hold(self, lease: Lease, slot: int) -> None:
        self.open[lease.decision.id] = (lease, slot, self.generations[slot])

    @rule(slot=st.integers(0, 1), tokens=st.integers(8, 20), depth=st.integers(0, 2), counted=st.booleans())
    def take(self, slot: int, tokens: int, depth: int, *, counted: bool) -> None:
        """Dispatch a request."""
        self.count += 1
        decision = _decision(f"d{self.count}", SMALLER[slot], tokens)
        prefill, learnt = Prefill(seconds=1.0), Learnt((1, 2)[:depth])
        lease = self.ledger.take(decision, learnt, prefill, output=5.0, now=self.now, counted=counted)
        self._hold(lease, slot)

    @rule(number=st.integers(0, 50))
    def end(self, number: int) -> None:
        """End a lease, whether it exists, ended already or never was."""
        name = f"d{number}"
        assert (self.ledger.end(name, self.now) is not None) == (self.open.pop(name, None) is not None)

    @rule(slot=st.integers(0, 1))
    def replace(self, slot: int) -> None:
        """Give a slot to another endpoint."""
        self.ledger.remove(slot)
        self.ledger.add(slot)
        self.generations[slot] += 1

    @rule(number=st.integers(0, 50))
    def first_token(self, number: int) -> None:
        """Let a request begin to answer, whatever became of it."""
        self.ledger.first_token(f"d{number}", self.now)

    @rule(seconds=st.sampled_from([0.5, 10.0, 31.0]), residence=st.sampled_from([0.1, 13.0]))
    def expire(self, seconds: float, residence: float) -> None:
        """Let time pass and give up what is overdue."""
        self.now += seconds
        for lease in self.ledger.expire(self.now, residence):
            assert lease.seen_at + 100.0 <= self.now
            del self.open[lease.decision.id]

    @invariant()
    def loads_add_up(self) -> None:
        """Loads are never negative, and zero when all has ended."""
        assert len(self.ledger) == len(self.open)
        for slot in (0, 1):
            here = [lease for lease, at, age in self.open.values() if (at, age) == (slot, self.generations[slot])]
            counted = [lease for lease in here if lease.counted]
            load = self.ledger.load(slot)
            assert (load.in_flight, load.tokens) == (len(counted), sum(lease.tokens for lease in counted))
            assert load.in_flight or load.busy_until <= self.now
            sharing = [len(lease.learnt.chain) for lease in counted if lease.sharing is not None]
            again = sum(max(sum(depth > place for depth in sharing) - 1, 0) for place in (0, 1))
            assert load.pinned == load.tokens - sum(lease.later for lease in counted) - 4 * again
            assert load.sharing is None or len(load.sharing) == max(sharing, default=0)
            assert 0 <= load.begun <= load.dispatched


TestLedgerMachine = LedgerMachine.TestCase


def test_a_lease_moves_once_and_ends_where_it_went(ledger: Ledger) -> None:
    """What another endpoint answers leaves the chosen one's count and queue, and weighs on the other until its end."""
    _take(ledger, "1", now=0.0)
    _take(ledger, "2", now=0.0)
    before = ledger.load(A.slot).busy_until
    ledger.add(7)
    assert ledger.move("1", A.address, A.slot, 0.0) is None
    assert ledger.move("nobody", "10.9.9.9:1", 7, 0.0) is None
    moved = ledger.move("1", "10.9.9.9:1", 7, 0.0)
    assert moved is not None
    assert ledger.move("1", "10.9.9.9:1", 7, 0.0) is None
    assert (ledger.load(A.slot).in_flight, ledger.load(7).in_flight) == (1, 1)
    assert ledger.load(A.slot).busy_until == before / 2
    assert ledger.load(7).left == moved.prefill.seconds
    ledger.end("1", 1.0, answered_by="10.9.9.9:1")
    ledger.end("2", 1.0)
    assert (ledger.load(A.slot).in_flight, ledger.load(7).in_flight, ledger.load(7).left) == (0, 0, 0.0)


def test_a_lease_that_weighs_nothing_moves_without_weight(ledger: Ledger) -> None:
    """It is known where it went, and that is all."""
    _take(ledger, "1", counted=False)
    ledger.add(7)
    assert ledger.move("1", "10.9.9.9:1", 7, 0.0) is not None
    assert ledger.load(7) == ledger.load(A.slot) == Load()
