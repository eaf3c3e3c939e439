"""Health: evidence in, states out; a gate that leaves the ill alone and lets the recovered back in with care.

A client's error is not illness, and neither is a busy engine. A refused connection ejects at once, other illness after
a few in a row or when it befalls too large a share of the requests. Each ejection lasts longer than the one before;
then one request at a time is sent for a trial. Only so many of a pool are ejected: who comes after that is throttled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from collections.abc import Set as AbstractSet
from math import inf

from ext_proc.core.generator import Generator
from ext_proc.core.health_book import HealthBook
from ext_proc.core.health_records import HealthRecord
from ext_proc.core.health_states import OUT, SERVING, HealthPolicy, HealthState, HealthStatus, Verdict
from ext_proc.core.model import ILLNESS, Ending, Endpoint, InferenceRequest
from ext_proc.core.observer import NoObserver, Observer
from ext_proc.core.probe_trust import ProbeTrust

_PROLONGED = 6.0
"""Times the longest ejection that failing probes may prolong one to: then a request is tried all the same."""


def nobody(_endpoint: Endpoint) -> None:
    """Do nothing about an endpoint in doubt."""


class HealthMonitor:
    """The state of every endpoint, by slot; a gate for those that may be chosen.

    Attributes:
        name: of the gate.
        doubts: called with an endpoint that has something new against it, which a probe may confirm.
        trust: whether probes say anything.
    """

    name = "health"

    def __init__(self, policy: HealthPolicy | None = None, observer: Observer | None = None) -> None:
        self.doubts: Callable[[Endpoint], None] = nobody
        self.trust = ProbeTrust()
        self._deaf: dict[int, float] = {}
        self._book = HealthBook(policy or HealthPolicy(), observer or NoObserver())
        # Looked up once, since every decision and every outcome does.
        self._records, self._special, self._gate = self._book.records, self._book.special, self._book.gate
        self.configure(self._book.policy, probing=False)

    def configure(self, policy: HealthPolicy, *, probing: bool) -> None:
        """Go by another policy from now on; where active probes run, newcomers are to warm up first."""
        self._book.policy = policy
        self._gate.slow_start = policy.slow_start
        self._gate.forget()
        self._book.probing = probing

    def joined(self, endpoints: Iterable[Endpoint]) -> None:
        """Take note of endpoints that came.

        Those that come to an empty pool are believed to be ready, since nobody else could serve meanwhile. Later ones
        warm up first where probes run, and come to their share slowly.
        """
        book = self._book
        for endpoint, is_first in book.members.add(endpoints):
            if is_first and not book.probing:
                continue
            record = book.record(endpoint)
            record.evidence.proven = not book.probing
            if not is_first:
                record.state = HealthState.WARMING if book.probing else HealthState.READY
                record.slow_from = inf if not book.probing and book.policy.slow_start > 0 else None
                book.sort(record)

    def remove(self, slot: int) -> None:
        """Forget what is known of a slot."""
        self._deaf.pop(slot, None)
        self._book.remove(slot)

    def slept(self, endpoint: Endpoint) -> None:
        """Forget what is known of an endpoint, whose engine sleeps, and listen to nothing until it wakes.

        What a sleeping engine does to requests and probes is no illness, and what was against it before may have been
        the sleep that nobody had heard of yet.
        """
        self._deaf[endpoint.slot] = inf
        self._book.forget(endpoint.slot)

    def woke(self, endpoint: Endpoint, now: float, *, says_so: bool = True) -> None:
        """Let an endpoint serve again, with a small share at first; what was sent to it before has no say.

        Args:
            endpoint: whose engine slept.
            now: monotonic seconds.
            says_so: whether the engine said that it is awake; if nothing was heard of it, probes have to pass first.
        """
        self._deaf[endpoint.slot] = now
        record = self._book.record(endpoint)
        if says_so or not self._book.probing:
            self._book.start(record, now, "its engine woke up")
        else:
            self._book.warm(record, now, "its engine slept, and nothing is heard of it any more")

    def excuses(self, slot: int, sent: float | None) -> bool:
        """Tell whether what becomes of a request says nothing of an endpoint, since its engine slept meanwhile.

        Args:
            slot: of the endpoint.
            sent: when the request was sent; None if that is not known.
        """
        if not self._deaf:
            return False
        heard_from = self._deaf.get(slot, -inf)
        return heard_from == inf or (sent is not None and sent < heard_from)

    @property
    def special(self) -> Sequence[Sized]:
        """What is kept of endpoints that are not simply ready."""
        return (self._special,)

    @property
    def all_ready(self) -> bool:
        """Whether nothing is known against any endpoint."""
        return not self._records

    def state(self, slot: int) -> HealthState:
        """Return the state of a slot; one without history is ready."""
        record = self._records.get(slot)
        return record.state if record else HealthState.READY

    def is_proven(self, slot: int) -> bool:
        """Tell whether an endpoint serves and has shown that it can, as far as that is asked of it."""
        record = self._records.get(slot)
        return record is None or (record.state in SERVING and record.evidence.proven)

    def status(self, slot: int, now: float) -> HealthStatus:
        """Return what people want to know of a slot."""
        return self._book.status(slot, now)

    def miss(self, absent: Callable[[], AbstractSet[int]]) -> None:
        """Have slots that get no new request anyway count neither for nor against the number that may be ejected."""
        self._book.absent = absent

    def panics(self) -> dict[str, bool]:
        """Tell of each pool whether ill endpoints of it are used, because there would be too few without them."""
        return self._book.panics()

    def admit(
        self,
        candidates: Sequence[Endpoint],
        request: InferenceRequest,  # noqa: ARG002  health is the same for all
        now: float,
        generator: Generator,
    ) -> Sequence[Endpoint]:
        """Return the candidates that may be chosen; all of them if all are ejected."""
        if not self._special:
            return candidates
        return self._gate.admit(candidates, now, generator)

    def may_serve(self, slot: int, now: float) -> bool:
        """Tell whether a slot may be chosen, for a trial or a small share at least."""
        record = self._special.get(slot)
        if record is None or record.state in SERVING:
            return True
        return record.state in OUT and record.until <= now

    def dispatched(self, endpoint: Endpoint, now: float) -> None:
        """Note that a request was sent; for an endpoint whose ejection is over, this is the trial."""
        record = self._special.get(endpoint.slot)
        if record is None:
            return
        if record.slow_from == inf:
            self._book.advance(record, now)
        if record.state in OUT and record.until <= now:
            record.until = now + self._book.policy.trial
            self._gate.forget()
            self._book.change(record, HealthState.PROBING, now, "the ejection is over")

    def note(self, endpoint: Endpoint, ending: Ending, now: float, sent: float | None = None) -> None:
        """Learn from how an attempt at the endpoint ended.

        Args:
            endpoint: who was tried.
            ending: how it ended.
            now: monotonic seconds.
            sent: when the request was sent; None if that is not known. What was sent before the latest ejection
                has no say any more: the ejection answered it.
        """
        if self.excuses(endpoint.slot, sent):
            return
        record = self._records.get(endpoint.slot)
        if record is None:
            if ending not in ILLNESS:
                return
            record = self._book.record(endpoint)
        elif sent is not None and sent < record.ejected_at:
            return
        if ending in ILLNESS:
            self._failed(record, ending, now)
        elif ending is Ending.OK or ending is Ending.CLIENT_ERROR:
            if record.state is not HealthState.EJECTED or sent is not None:
                self._answered(record, now)
        elif record.state is HealthState.PROBING:
            # It said nothing, so that another one may be tried.
            record.until = min(record.until, now)
            self._gate.forget()

    def probed(self, endpoint: Endpoint, verdict: Verdict, found: str, now: float) -> None:
        """Learn from an active probe.

        Args:
            endpoint: who was probed.
            verdict: what the answer means.
            found: the answer in a word, such as `http_503`.
            now: monotonic seconds.
        """
        if self.excuses(endpoint.slot, None):
            return
        if verdict is Verdict.GOOD:
            self.trust.confirmed(endpoint.pool, now)
        record = self._records.get(endpoint.slot)
        if record is None:
            if verdict is not Verdict.FAILED and verdict is not Verdict.LOADING:
                return
            record = self._book.record(endpoint)
        record.loading = verdict is Verdict.LOADING
        if verdict is Verdict.GOOD:
            record.evidence.probe(failed=False, now=now)
            self._probe_passed(record, now)
        elif verdict is Verdict.LOADING:
            record.evidence.good_probes = 0
            self._book.warm(record, now, f"says that it loads ({found})")
        elif verdict is Verdict.FAILED and self.trust.holds(endpoint.pool):
            self._probe_failed(record, found, now)
        else:
            self._is_alive(record, verdict, found, now)
        self._book.weigh(record, now)

    def scraped(self, endpoint: Endpoint, now: float, *, answered: bool) -> None:
        """Learn whether an endpoint's metrics can be read."""
        if self.excuses(endpoint.slot, None):
            return
        record = self._records.get(endpoint.slot)
        if record is None:
            if answered:
                return
            record = self._book.record(endpoint)
        is_news = not answered and record.evidence.silent_since is None
        self._book.hear(record, now, answered=answered)
        if is_news:
            self.doubts(endpoint)
        self._book.weigh(record, now)

    def compared(self, endpoint: Endpoint, slowness: float, now: float) -> None:
        """Learn how slow an endpoint is: its latency over that of its peers."""
        if self.excuses(endpoint.slot, None):
            return
        record = self._records.get(endpoint.slot)
        if record is None:
            if slowness < self._book.policy.slow:
                return
            record = self._book.record(endpoint)
        record.evidence.slowness = slowness
        self._book.weigh(record, now)

    def tick(self, now: float) -> None:
        """Let time count against and for endpoints; about once a second."""
        for record in list(self._records.values()):
            self._book.advance(record, now)
        self.trust.keep(self._book.members.pools.keys())

    def _failed(self, record: HealthRecord, ending: Ending, now: float) -> None:
        evidence, policy = record.evidence, self._book.policy
        evidence.outcome(ill=True, now=now)
        if record.state is HealthState.EJECTED or record.state is HealthState.WARMING:
            return
        reason = ""
        if ending is Ending.CONNECT_FAILURE or record.state is HealthState.PROBING or evidence.row >= policy.failures:
            reason = ending.value
        elif evidence.ratio >= policy.failure_ratio and evidence.samples >= policy.least_samples:
            reason = "failure_ratio"
        if reason:
            found = f"{evidence.row} ill in a row, last: {ending}; {evidence.ratio:.0%} failed lately"
            self._book.eject(record, reason, found, now)
        self._book.weigh(record, now)
        self.doubts(record.endpoint)

    def _answered(self, record: HealthRecord, now: float) -> None:
        evidence, pool = record.evidence, record.endpoint.pool
        if evidence.failed_probes >= self._book.policy.failed_probes and self.trust.contradicted(pool, now):
            self._distrust_probes(pool, now)
        evidence.outcome(ill=False, now=now)
        if record.state is HealthState.EJECTED:
            self._book.change(record, HealthState.PROBING, now, "a request was answered that was sent all the same")
        if record.state is HealthState.PROBING:
            self._book.start(record, now, "the trial request was answered")
        elif record.state is HealthState.WARMING:
            self._book.start(record, now, "it answered a request")
        self._book.weigh(record, now)

    def _distrust_probes(self, pool: str, now: float) -> None:
        for slot in self._book.members.pools.get(pool, ()):
            record = self._records.get(slot)
            if record is not None:
                record.evidence.believe_in_life()
                if record.state is HealthState.WARMING and not record.loading:
                    self._book.start(record, now, "probes fail although requests are answered")

    def _probe_failed(self, record: HealthRecord, found: str, now: float) -> None:
        evidence, policy = record.evidence, self._book.policy
        evidence.probe(failed=True, now=now)
        record.confirmed = True
        if record.state is HealthState.EJECTED:
            latest = record.ejected_at + _PROLONGED * policy.max_ejection
            record.until = max(record.until, min(now + policy.ejection, latest))
            self._gate.forget()
        elif record.state is HealthState.PROBING:
            self._book.eject(record, "probe", f"a probe failed: {found}", now)
        elif record.state is not HealthState.WARMING:
            if not evidence.proven:
                self._book.warm(record, now, f"it never answered, and a probe failed: {found}")
            self.doubts(record.endpoint)

    def _is_alive(self, record: HealthRecord, verdict: Verdict, found: str, now: float) -> None:
        """Take an answer that says no more than that somebody is there."""
        record.evidence.believe_in_life()
        record.evidence.proven = True
        if record.state is HealthState.WARMING and verdict is not Verdict.BUSY:
            self._book.start(record, now, f"a probe says nothing ({found})")
        elif record.state is HealthState.EJECTED and record.confirmed:
            record.until = min(record.until, now)
            self._gate.forget()

    def _probe_passed(self, record: HealthRecord, now: float) -> None:
        count, needed = record.evidence.good_probes, self._book.policy.good_probes
        if record.state in OUT and record.confirmed:
            # Probes saw the illness, so that they can see its end too.
            if record.state is HealthState.EJECTED:
                record.until = min(record.until, now)
                self._book.change(record, HealthState.PROBING, now, "a probe was answered")
                self._gate.forget()
            if count >= needed:
                self._book.start(record, now, f"{count} good probes")
        elif record.state is HealthState.WARMING and count >= needed:
            self._book.start(record, now, f"{count} good probes")
