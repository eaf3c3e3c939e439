"""An engine's scheduler without a clock: which sequences run in the next step, and how long that step takes."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ext_proc.sim.fleet import presets
from ext_proc.sim.prefix_cache import Holding, PrefixCache


@dataclass(frozen=True, slots=True)
class Preset:
    """What a step costs on one kind of hardware, and how much fits into it.

    `seconds = a + b·prefill tokens + e·Σ chunk·(context before + chunk/2) + c·decoding sequences + d·their context`

    Attributes:
        a: seconds of any step.
        b: seconds per prefilled token.
        e: seconds per prefilled token and token of its context (attention).
        c: seconds per decoding sequence.
        d: seconds per token of context of a decoding sequence.
        kv_tokens: KV memory in tokens.
        token_budget: tokens that one step may process.
    """

    a: float
    b: float
    e: float
    c: float
    d: float
    kv_tokens: int
    token_budget: int


PRESETS: Final[Mapping[str, Preset]] = {
    known.name: Preset(
        a=known.step_s,
        b=known.prefill_s,
        e=known.attention_s,
        c=known.decode_s,
        d=known.context_s,
        kv_tokens=known.kv_tokens,
        token_budget=known.step_tokens,
    )
    for known in presets.PRESETS.values()
}
"""Presets by name: those of simulated fleets."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the scheduler takes on at once.

    Attributes:
        kv_tokens: KV memory in tokens.
        block_size: tokens per KV block.
        max_num_seqs: sequences that run at the same time.
        token_budget: tokens that one step may process.
        max_waiting: sequences that may wait; None for no bound.
    """

    kv_tokens: int
    block_size: int = 16
    max_num_seqs: int = 256
    token_budget: int = 8192
    max_waiting: int | None = None


class State(enum.Enum):
    """Where a sequence is in its life."""

    FRESH = enum.auto()
    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()
    ABORTED = enum.auto()


@dataclass(slots=True, eq=False)
class SimSequence:
    """One prompt and its answer; what the scheduler knows of them.

    Attributes:
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: tokens that will be generated; 0 for pooling (embeddings), which ends with the prefill.
        chain: hashes of the full blocks of the prompt followed by the answer.
        arrived: when it was submitted, in the caller's seconds; so are the other times.
        admitted: when it left the queue for the first time.
        first_token: when the prefill was complete.
        finished: when it ended.
        cached_tokens: prompt tokens that its first admission found in the cache.
        computed: tokens whose KV is in memory.
        generated: tokens generated so far.
        preemptions: how often its memory was taken from it.
    """

    prompt_tokens: int
    output_tokens: int
    chain: Sequence[int] = ()
    arrived: float = 0.0
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None
    cached_tokens: int = 0
    computed: int = 0
    generated: int = 0
    preemptions: int = 0
    state: State = State.FRESH
    committed: int = 0
    holding: Holding = field(default_factory=Holding)

    @property
    def known(self) -> int:
        """Tokens that are there to be computed: the prompt and what was generated."""
        return self.prompt_tokens + self.generated


@dataclass(slots=True)
class Step:
    """The work of one pass through the model.

    Attributes:
        prefill: sequences with the number of tokens of theirs that the step computes.
        decode: sequences that get one token each.
        seconds: how long the step takes.
    """

    prefill: list[tuple[SimSequence, int]]
    decode: list[SimSequence]
    seconds: float


@dataclass(slots=True)
class Statistics:
    """Counts since the start."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    rejections: int = 0


class Scheduler:
    """Continuous batching after vLLM: decodes first, then unfinished prefills, then the queue in order of arrival.

    The caller owns the clock: it calls `plan`, waits for `Step.seconds`, and calls `complete`.
    """

    def __init__(self, preset: Preset, limits: Limits) -> None:
        self.preset = preset
        self.limits = limits
        self.cache = PrefixCache(limits.kv_tokens // limits.block_size)
        self.running: list[SimSequence] = []
        self.waiting: deque[SimSequence] = deque()
        self.statistics = Statistics()

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of that many tokens in all can ever run."""
        return self._blocks(tokens) <= self.cache.capacity

    def submit(self, sequence: SimSequence, now: float) -> bool:
        """Queue a sequence; False if the queue is full.

        Raises:
            ValueError: the sequence is larger than the KV memory.
        """
        if not self.fits(sequence.prompt_tokens + sequence.output_tokens):
            raise ValueError("the sequence is larger than the KV memory")
        if self.limits.max_waiting is not None and self._queue_full(self.limits.max_waiting):
            self.statistics.rejections += 1
            return False
        sequence.arrived = now
        sequence.state = State.WAITING
        self.waiting.append(sequence)
        return True

    def abort(self, sequence: SimSequence) -> None:
        """Take a sequence out wherever it is and free its memory; no effect on one that has ended."""
        if sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is State.RUNNING:
            self.running.remove(sequence)
            self.cache.release(sequence.holding)
        else:
            return
        sequence.state = State.ABORTED

    def plan(self, now: float) -> Step | None:
        """The next step, or None if there is nothing to do."""
        preemptions = self.statistics.preemptions
        decode = self._plan_decodes()
        short_of_memory = self.statistics.preemptions > preemptions
        budget = self.limits.token_budget - len(decode)
        prefill: list[tuple[SimSequence, int]] = []
        for sequence in self.running:
            left = sequence.known - sequence.computed
            if budget > 0 and left > 0 and not self._decoding(sequence):
                prefill.append((sequence, min(left, budget)))
                budget -= min(left, budget)
        if not short_of_memory:
            prefill += self._plan_admissions(budget, now)
        if not prefill and not decode:
            return None
        return Step(prefill, decode, self._seconds(prefill, decode))

    def _plan_admissions(self, budget: int, now: float) -> list[tuple[SimSequence, int]]:
        prefill = []
        while budget > 0 and self.waiting and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting[0]
            if not self._admit(sequence, now):
                break
            self.waiting.popleft()
            self.running.append(sequence)
            chunk = min(sequence.known - sequence.computed, budget)
            prefill.append((sequence, chunk))
            budget -= chunk
        return prefill

    def complete(self, step: Step, now: float) -> list[SimSequence]:
        """Apply a step that is over; the sequences that got a token or ended, in batch order."""
        progressed = []
        for sequence in step.decode:
            if sequence.state is State.RUNNING:
                self._advance(sequence, 1, now)
                progressed.append(sequence)
        for sequence, chunk in step.prefill:
            if sequence.state is State.RUNNING and self._advance(sequence, chunk, now):
                progressed.append(sequence)
        if any(sequence.state is State.FINISHED for sequence in progressed):
            self.running = [sequence for sequence in self.running if sequence.state is State.RUNNING]
        return progressed

    def run_at_once(self, sequence: SimSequence, now: float) -> None:
        """Run a whole sequence in no time; the result is that of an idle, infinitely fast engine.

        Raises:
            ValueError: the sequence is larger than the KV memory that is free.
        """
        total = sequence.prompt_tokens + sequence.output_tokens
        hits = self._lookup(sequence)
        if not self.cache.pass_through(sequence.chain, self._blocks(total)):
            raise ValueError("the sequence is larger than the KV memory")
        self._admitted(sequence, hits, now)
        sequence.arrived = sequence.first_token = sequence.finished = now
        sequence.generated = sequence.output_tokens
        sequence.computed = total
        sequence.state = State.FINISHED

    def _queue_full(self, max_waiting: int) -> bool:
        free = self.limits.max_num_seqs - len(self.running)
        return len(self.waiting) >= max_waiting + max(free, 0)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    @staticmethod
    def _decoding(sequence: SimSequence) -> bool:
        return sequence.generated > 0 and sequence.computed == sequence.known - 1

    def _plan_decodes(self) -> list[SimSequence]:
        """Sequences that decode, each with room for its next token; the youngest pay for it when memory is short."""
        decode = [
            sequence
            for sequence in list(self.running)
            if sequence.state is State.RUNNING and self._decoding(sequence) and self._make_room(sequence)
        ]
        return [sequence for sequence in decode if sequence.state is State.RUNNING]

    def _make_room(self, sequence: SimSequence) -> bool:
        missing = self._blocks(sequence.known) - len(sequence.holding)
        while missing > 0 and not self.cache.grow(sequence.holding, missing):
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _preempt(self, sequence: SimSequence) -> None:
        self.running.remove(sequence)
        self.cache.release(sequence.holding)
        sequence.computed = sequence.committed = 0
        sequence.preemptions += 1
        sequence.state = State.WAITING
        self.waiting.appendleft(sequence)
        self.statistics.preemptions += 1

    def _lookup(self, sequence: SimSequence) -> int:
        # The last known token is always computed, since the model's output for it is needed.
        return self.cache.match(sequence.chain, (sequence.known - 1) // self.limits.block_size)

    def _admit(self, sequence: SimSequence, now: float) -> bool:
        """Give a sequence memory for all its known tokens, as much of it as possible from the cache."""
        hits = self._lookup(sequence)
        holding = self.cache.acquire(sequence.chain, hits, self._blocks(sequence.known))
        if holding is None:
            return False
        sequence.holding = holding
        self._admitted(sequence, hits, now)
        return True

    def _admitted(self, sequence: SimSequence, hits: int, now: float) -> None:
        sequence.committed = hits
        sequence.computed = hits * self.limits.block_size
        sequence.state = State.RUNNING
        if sequence.admitted is None:
            sequence.admitted = now
            sequence.cached_tokens = sequence.computed
            self.statistics.prefix_queries += sequence.prompt_tokens
            self.statistics.prefix_hits += sequence.computed

    def _advance(self, sequence: SimSequence, tokens: int, now: float) -> bool:
        """Account for computed tokens; True if that produced a token or ended the sequence."""
        sequence.computed += tokens
        full = min(sequence.computed // self.limits.block_size, len(sequence.chain))
        if full > sequence.committed:
            self.cache.commit(sequence.holding, sequence.chain[sequence.committed : full])
            sequence.committed = full
        if sequence.computed < sequence.known:
            return False
        if sequence.first_token is None:
            sequence.first_token = now
        if sequence.generated < sequence.output_tokens:
            sequence.generated += 1
        if sequence.generated == sequence.output_tokens:
            sequence.finished = now
            sequence.state = State.FINISHED
            self.cache.release(sequence.holding)
        return True

    def _seconds(self, prefill: list[tuple[SimSequence, int]], decode: list[SimSequence]) -> float:
        preset = self.preset
        tokens = attention = 0.0
        for sequence, chunk in prefill:
            tokens += chunk
            attention += chunk * (sequence.computed + chunk / 2)
        context = sum(sequence.computed for sequence in decode)
        return preset.a + preset.b * tokens + preset.e * attention + preset.c * len(decode) + preset.d * context
