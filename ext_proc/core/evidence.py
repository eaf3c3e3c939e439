"""What speaks for and against an endpoint: outcomes of requests, probes, metrics that stay away, slowness.

Outcomes make an exponentially weighted share of failures: with x = 1 for an ill outcome and 0 for a good one,

    bad    = 0.9 * bad + x           weight = 0.9 * weight + 1           ratio = bad / weight

so about the last ten count. Both halve with every minute without an outcome, so that what was long ago needs to be
confirmed before it says anything again.
"""

from __future__ import annotations

from math import exp2, inf

import msgspec

_MEMORY = 0.9
_HALF_LIFE = 60.0
_CREDIT = 5.0
"""Weight of the good outcomes before the first ill one, which nobody counted."""


class Evidence(msgspec.Struct, gc=False):
    """The evidence on one endpoint.

    Attributes:
        row: ill outcomes since the last good one.
        bad: weight of ill outcomes.
        weight: weight of all outcomes.
        samples: how many outcomes there were, fading like their weight.
        at: when the last one came, monotonic seconds.
        answered_at: when the last good outcome came.
        proven: whether it ever answered well, a request or a probe, as far as that is asked.
        good_probes: good probes in a row.
        failed_probes: failed probes in a row.
        failing_since: when the first of them came.
        silent_since: since when its metrics cannot be read; None if they can.
        slowness: its latency over that of its peers; 1 where nothing is known.
    """

    row: int = 0
    bad: float = 0.0
    weight: float = _CREDIT
    samples: float = 0.0
    at: float = -inf
    answered_at: float = -inf
    proven: bool = True
    good_probes: int = 0
    failed_probes: int = 0
    failing_since: float = inf
    silent_since: float | None = None
    slowness: float = 1.0

    @property
    def ratio(self) -> float:
        """Share of ill outcomes lately, in [0, 1]."""
        return self.bad / self.weight if self.weight > 0 else 0.0

    def outcome(self, *, ill: bool, now: float) -> None:
        """Note how a request ended."""
        faded = exp2(-max(now - self.at, 0.0) / _HALF_LIFE) if self.samples else 1.0
        self.bad = self.bad * faded * _MEMORY + ill
        self.weight = self.weight * faded * _MEMORY + 1
        self.samples = min(self.samples * faded + 1, 1000.0)
        self.at = max(now, self.at)
        if ill:
            self.row += 1
        else:
            self.row, self.answered_at, self.proven = 0, now, True

    def halve(self, samples: float) -> None:
        """Give another chance: what is known still counts, and is confirmed by half as many outcomes as usual.

        Args:
            samples: how many outcomes are usually needed.
        """
        self.row = 0
        self.samples = min(self.samples, samples / 2)

    def seen(self, now: float) -> float:
        """Return how many outcomes of lately there are."""
        return self.samples * exp2(-max(now - self.at, 0.0) / _HALF_LIFE)

    def probe(self, *, failed: bool, now: float) -> None:
        """Note what a probe found."""
        if not failed:
            self.good_probes, self.failed_probes, self.failing_since, self.proven = self.good_probes + 1, 0, inf, True
            return
        if not self.failed_probes:
            self.failing_since = now
        self.good_probes, self.failed_probes = 0, self.failed_probes + 1

    def believe_in_life(self) -> None:
        """Take back what failed probes said."""
        self.failed_probes, self.failing_since = 0, inf

    @property
    def told(self) -> str:
        """Say how many probes failed."""
        return "1 probe failed" if self.failed_probes == 1 else f"{self.failed_probes} probes failed"

    def lifeless(self, now: float, silence: float) -> int:
        """Count signs that the process hangs or is gone: failed probes in a row, and metrics that stay away.

        Args:
            now: monotonic seconds.
            silence: seconds without metrics that count twice; 0 counts none of it.

        Returns:
            0 if a request was answered since the first sign. Good probes outweigh metrics.
        """
        since, signs = self.failing_since, self.failed_probes
        if self.silent_since is not None and not self.good_probes and silence > 0:
            since, signs = min(since, self.silent_since), signs + 1 + (now - self.silent_since >= silence)
        return 0 if self.answered_at >= since else signs
