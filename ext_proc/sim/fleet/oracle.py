"""What a kvpicker would do that knew the truth: views that read the engines, and the strategy that foresees best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Self

import msgspec

from ext_proc.core.ledger import Ledger
from ext_proc.core.load import Load
from ext_proc.core.model import BlockHash, Endpoint, InferenceRequest
from ext_proc.core.prefix_index import ObservedIndex
from ext_proc.core.strategies import Context, Ranking
from ext_proc.sim.fleet.engine import Engine
from ext_proc.sim.fleet.kvpickers import Clock


class OracleIndex(ObservedIndex):
    """Answers from the caches of the engines; engines are counted as slots."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        super().__init__(int)
        self._engines = engines

    def depths(self, chain: Sequence[BlockHash], slots: Sequence[int]) -> list[int]:
        """Return how many leading blocks of a chain each engine holds."""
        return [self._engines[slot].blocks.depth(chain, len(chain)) for slot in slots]

    def learn(self, slot: int, chain: Sequence[BlockHash], depth: int | None = None) -> int:  # noqa: ARG002
        """Learn nothing; the engines know."""
        return 0

    def ended(self, slot: int, chain: Sequence[BlockHash], answer: int) -> None:
        """Note nothing."""

    def forget(self, slot: int, chain: Sequence[BlockHash], depth: int, stamp: int) -> None:
        """Forget nothing."""

    def correct(self, slot: int, predicted: float, actual: float, length: float, slack: float = 0.0) -> None:
        """Correct nothing."""


class TrueLoad(Load, gc=False):
    """What is in flight at an engine that can be looked into.

    Attributes:
        in_use: tokens of KV memory that it holds for them, and what is still to come of their answers beyond half.
    """

    in_use: int = 0

    @property
    def pinned(self) -> int:
        """Those, not what requests add up to."""
        return self.in_use


class OracleLedger(Ledger):
    """Answers from the queues of the engines; engines are counted as slots.

    Args:
        engines: the engines.
        clock: virtual time.
    """

    def __init__(self, engines: Sequence[Engine], clock: Clock) -> None:
        super().__init__()
        self._engines = engines
        self._clock = clock

    def loads_of(self, slots: Sequence[int]) -> list[Load]:
        """Return the true queue of each slot, and the tokens of what is there, up to the true ends."""
        now = self._clock.now
        return [self._load(self._engines[slot], now) for slot in slots]

    def _load(self, engine: Engine, now: float) -> Load:
        present = [*engine.running.values(), *engine.waiting]
        tokens = sum(one.request.prompt_tokens + one.request.output_tokens for one in present)
        size, used = engine.block_tokens, engine.blocks.used * engine.block_tokens
        for one in engine.waiting:
            used += one.target - engine.depth(one.request.blocks, one.target) * size
        to_come = sum(steps for steps, _ in engine.ends())
        to_come += sum(one.request.output_tokens - one.generated for one in (*engine.prefilling, *engine.waiting))
        to_come -= sum(one.request.output_tokens for one in present) // 2
        until = now + Backlog.of(engine, now).seconds
        return TrueLoad(in_flight=len(present), tokens=tokens, busy_until=until, in_use=used + to_come)


class TtftOracle:
    """Chooses the engine on which the request itself gets its first token soonest, and knows all that decides it.

    Args:
        engines: the engines; they are counted as slots.
        chain: reads the chain of a request.
    """

    def __init__(self, engines: Sequence[Engine], chain: Callable[[InferenceRequest], Sequence[BlockHash]]) -> None:
        self._engines = engines
        self._chain = chain

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Return the seconds to the first token on each candidate."""
        chain = self._chain(request)
        engines = [self._engines[endpoint.slot] for endpoint in candidates]
        return Ranking([_first_token(engine, chain, request.prompt_tokens, context.now) for engine in engines])


class Backlog(msgspec.Struct):
    """What stands in front of a request that would arrive at an engine now.

    Attributes:
        seconds: to prefill it, beside what the steps take anyhow.
        tokens: to prefill, beside the chunks under way.
        blocks: that waiting requests need.
    """

    seconds: float
    tokens: int = 0
    blocks: int = 0

    @classmethod
    def of(cls, engine: Engine, now: float) -> Self:
        """Read the queue of an engine."""
        backlog = cls(engine.due - now if engine.prefilling else 0.0)
        for sequence in engine.prefilling:
            backlog._add(engine, sequence.target, sequence.computed + sequence.chunk)
        for sequence in engine.waiting:
            depth = engine.depth(sequence.request.blocks, sequence.target)
            backlog._add(engine, sequence.target, depth * engine.block_tokens)
            backlog.blocks += engine.blocks_for(sequence.target + 1) - depth
        return backlog

    def _add(self, engine: Engine, target: int, done: int) -> None:
        self.tokens += target - done
        self.seconds += _prefill_seconds(engine, target - done, done)


def _prefill_seconds(engine: Engine, tokens: int, before: int) -> float:
    """Return the seconds that prefilling tokens takes behind a context of so many."""
    return engine.preset.prefill_seconds(tokens, tokens * (before + tokens / 2)) * engine.slowness


def _first_token(engine: Engine, chain: Sequence[BlockHash], prompt_tokens: int, now: float) -> float:
    """Return the seconds to the first token of a request that would join the queue now, by the model of a step."""
    depth = engine.depth(chain, prompt_tokens)
    found = depth * engine.block_tokens
    backlog = Backlog.of(engine, now)
    tokens = backlog.tokens + prompt_tokens - found
    steps = ceil(tokens / (engine.preset.step_tokens - engine.decoding))
    seconds = backlog.seconds + _prefill_seconds(engine, prompt_tokens - found, found)
    pace = engine.preset.decode_seconds(1, engine.decoding, engine.context) * engine.slowness
    blocks = backlog.blocks + engine.blocks_for(prompt_tokens + 1) - depth
    return seconds + (steps + _steps_until_room(engine, blocks)) * pace


def _steps_until_room(engine: Engine, blocks: int) -> int:
    """Return the steps until enough requests have ended for so many blocks and one more place."""
    places = len(engine.running) + len(engine.waiting) + 1 - engine.preset.max_running
    missing = blocks - engine.blocks.available
    if places <= 0 and missing <= 0:
        return 0
    freed, steps = 0, 0
    for place, (steps, held) in enumerate(engine.ends(), 1):  # noqa: B007  where all do not suffice, the last counts
        freed += held
        if freed >= missing and place >= places:
            break
    return steps
