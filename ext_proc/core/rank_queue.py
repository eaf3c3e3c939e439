"""The virtual prefill queue of an engine with several data-parallel ranks: one line before N servers.

Ranks prefill side by side: together they do N seconds of prefill in a second, and while one of them has nothing to do
nobody waits. With r seconds of prefill left to do and s those that a prompt takes usually (a moving average):

    W = max(0, r - (N - 1) s) / N

That is r where there is one rank. It holds where the engine balances its ranks, and on average where the pick names the
rank, since that takes the one that is free first.

Rates are those of one rank: work over the seconds that ranks were at it. With m prompts not prefilled that tell a first
token, and about m' that tell none, ranks are at the m for this long in a time dt:

    m min(1, N / (m + m')) dt

What the time between two first tokens tells of one server, that tells of N.
"""

from __future__ import annotations

from collections import deque

import msgspec

_NEWEST = 0.05
"""Weight of the newest prompt in what they take usually."""


class RankQueue(msgspec.Struct, gc=False):
    """The line.

    Attributes:
        ranks: how many serve it (N).
        drained_at: when all that was sent will be prefilled, monotonic seconds.
        usual: seconds that the prefill of one prompt takes usually.
        telling: prompts not prefilled yet whose first token will be heard of.
        silent: of the others, as far as they are not known to be done, what had been sent silently by then.
        worked: seconds that ranks were at prompts that tell since the last first token, added up.
        at: up to when that is counted, monotonic seconds; below 0 before anything is.
    """

    ranks: int
    drained_at: float = 0.0
    usual: float = 0.0
    telling: int = 0
    silent: deque[float] = msgspec.field(default_factory=deque)
    worked: float = 0.0
    at: float = -1.0

    @property
    def spare(self) -> float:
        """Seconds of prefill that are under way before anybody waits."""
        return (self.ranks - 1) * self.usual

    def left(self, now: float) -> float:
        """Return the seconds of prefill that are left to do."""
        return max(self.drained_at - now, 0.0) * self.ranks

    def hold(self, seconds: float, now: float) -> float:
        """Set the seconds of prefill that are left to do; return when a rank is free."""
        self.drained_at = now + seconds / self.ranks
        return now + max(seconds - self.spare, 0.0) / self.ranks

    def join(self, seconds: float, now: float, *, silent: float, tells: bool) -> float:
        """Note a dispatch; return when a rank is free for the one after it.

        Args:
            seconds: of its prefill.
            now: monotonic seconds.
            silent: effective tokens of silent requests ever sent, this one included.
            tells: whether its first token will be heard of.
        """
        self._pass(now)
        self.usual += (seconds - self.usual) * (_NEWEST if self.usual else 1.0)
        if tells:
            self.telling += 1
        else:
            self.silent.append(silent)
        return self.hold(self.left(now) + seconds, now)

    def gone(self, now: float, *, silent: float, tells: bool) -> None:
        """Note the end of a request whose first token was not heard of; `silent` was given when it joined."""
        self._pass(now)
        if tells:
            self.telling = max(self.telling - 1, 0)
        elif silent in self.silent:
            self.silent.remove(silent)

    def clear(self, now: float) -> None:
        """Note that nothing is in flight."""
        self._pass(now)
        self.telling = 0
        self.silent.clear()
        self.drained_at = min(self.drained_at, now)

    def answer(self, silent: float, now: float) -> float:
        """Note a first token; what was sent silently before its request, `silent` in all, is prefilled too.

        Returns:
            The seconds that ranks were at prompts that tell since the last one.
        """
        self._pass(now)
        while self.silent and self.silent[0] <= silent:
            self.silent.popleft()
        self.telling = max(self.telling - 1, 0)
        worked, self.worked = self.worked, 0.0
        return worked

    def _pass(self, now: float) -> None:
        if self.at < 0:  # what was sent before there was this queue counts from its first news on
            self.at = now
        if self.silent and self.drained_at < now:  # by then the silent ones are done, as far as anybody knows
            self._work(self.drained_at)
            self.silent.clear()
        self._work(now)

    def _work(self, until: float) -> None:
        if until > self.at:
            present = max(self.telling + len(self.silent), self.ranks)
            self.worked += self.telling * self.ranks / present * (until - self.at)
            self.at = until
