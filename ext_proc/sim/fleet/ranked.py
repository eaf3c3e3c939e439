"""A simulated engine of several data-parallel ranks behind one address, which balances them by itself."""

from __future__ import annotations

from itertools import chain

import msgspec

from ext_proc.sim.fleet.engine import Engine
from ext_proc.sim.fleet.presets import EnginePreset
from ext_proc.sim.fleet.sequence import Sequence

_WAITING_WEIGHS = 4


class RankedEngine(Engine):
    """N engines with a share of the KV memory each; a request goes where 4 * waiting + running is lowest, as in vLLM.

    Args:
        preset: timing of a rank, and the size of all of them together.
        block_tokens: tokens of a KV block.
        events: True if somebody reads the journal.
    """

    def __init__(self, preset: EnginePreset, block_tokens: int, *, events: bool = False) -> None:
        one = msgspec.structs.replace(preset, kv_tokens=preset.kv_tokens // preset.ranks, ranks=1)
        super().__init__(one, block_tokens, events=events)
        self.preset = preset
        self._ranks = [Engine(one, block_tokens, events=events) for _ in range(preset.ranks)]
        self._turn = 0

    @property
    def usage(self) -> float:
        """Share of the KV caches that running requests hold."""
        return sum(rank.usage for rank in self._ranks) / len(self._ranks)

    def submit(self, sequence: Sequence, now: float) -> None:
        """Queue a request at the rank that has least to do; of equal ones each in its turn."""
        self._turn += 1
        turn = self._turn % len(self._ranks)
        ranks = self._ranks[turn:] + self._ranks[:turn]
        min(ranks, key=lambda rank: _WAITING_WEIGHS * len(rank.waiting) + len(rank.running)).submit(sequence, now)
        self._gather()

    def interrupt(self, now: float) -> None:
        """Let the runs of steps that are under way end with the steps that run at `now`."""
        for rank in self._ranks:
            rank.interrupt(now)
            rank.slowness = self.slowness
        self._gather()

    def advance(self) -> None:
        """End what is due in any rank and begin what follows."""
        now = self.due
        for rank in self._ranks:
            if rank.due == now:
                rank.advance()
                self.first += rank.first
                self.ended += rank.ended
                self.journal += rank.journal
                rank.first.clear()
                rank.ended.clear()
                rank.journal.clear()
        self._gather()

    def crash(self) -> list[Sequence]:
        """Lose everything; return the requests that were here."""
        lost = list(chain.from_iterable(rank.crash() for rank in self._ranks))
        self._gather()
        return lost

    def _gather(self) -> None:
        self.due = min(rank.due for rank in self._ranks)
        self.waiting.clear()
        self.waiting.extend(chain.from_iterable(rank.waiting for rank in self._ranks))
        self.running = dict(enumerate(chain.from_iterable(rank.running.values() for rank in self._ranks)))
