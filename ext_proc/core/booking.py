"""Books what was chosen, so that the next decision already sees it."""

from __future__ import annotations

import msgspec

from ext_proc.core.affinity import Affinity, session_name
from ext_proc.core.choosing import Choice
from ext_proc.core.health import HealthMonitor
from ext_proc.core.learnt import NOTHING_LEARNT, Learnt
from ext_proc.core.ledger import Ledger
from ext_proc.core.model import GENERATING, NEARLY_FREE
from ext_proc.core.prefix_index import PrefixIndex
from ext_proc.core.rates import RateLearner
from ext_proc.core.reuse import ReuseMeter
from ext_proc.core.token_hits import TokenHits


class Booking:
    """The books of a picker.

    Args:
        index: learns who will hold the prompt.
        ledger: has the work in flight.
        health: hears who is tried.
        rates: learn from the time that a prefill takes.
        reuse: measures how much of prompts repeats.
        sessions: tie what is one session to its endpoint.
    """

    def __init__(
        self,
        index: PrefixIndex,
        ledger: Ledger,
        health: HealthMonitor,
        rates: RateLearner,
        reuse: ReuseMeter,
        sessions: Affinity,
    ) -> None:
        self._index = index
        self._ledger = ledger
        self._health = health
        self._rates = rates
        self._reuse = reuse
        self._sessions = sessions

    def book(self, choice: Choice, token_hits: TokenHits | None) -> None:
        """Note what was chosen wherever the next decision looks.

        Args:
            choice: what was chosen.
            token_hits: expects the engine to report the prompt; None if none reports.
        """
        decision, chain, prefill = choice.decision, choice.chain, choice.prefill
        endpoint, request, now = decision.endpoints[0], decision.request, decision.decided_at
        if not request.unhashed:
            self._reuse.add(chain, choice.size.estimated, choice.deepest)
        learnt = NOTHING_LEARNT
        if chain:
            used = self._index.used(endpoint.slot, chain[choice.depth - 1]) if choice.depth else 0
            expired = self._index.used(endpoint.slot, chain[choice.depth]) if choice.depth < len(chain) else 0
            stamp = self._index.learn(endpoint.slot, chain, choice.depth)
            held = chain[choice.deepest - 1] if choice.deepest else None
            learnt = Learnt(chain, choice.depth, stamp, choice.size.guessed, used, expired, held)
        if choice.tokens is not None and token_hits is not None:
            token_hits.sent(decision.id, endpoint.slot, choice.tokens, now, prefill, decision.rank)
        self._ledger.take(
            # What waits for the outcome, perhaps for minutes, is small: memory touched by every request is slow.
            msgspec.structs.replace(decision, terms=(), filters=()),
            learnt,
            prefill,
            output=choice.output,
            now=now,
            counted=request.operation not in NEARLY_FREE,
        )
        if request.operation in GENERATING:
            self._rates.dispatched(endpoint.slot, decision.id, prefill)
        self._health.dispatched(endpoint, now)
        if request.session:
            self._sessions.tie(session_name(request), endpoint.address, now)
