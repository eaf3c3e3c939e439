"""A simulated engine in virtual time: continuous batching, chunked prefill, KV blocks, preemption.

A step decodes a token for every running request, goes on with partial prefills and then admits waiting requests first
come first served, as far as the token budget reaches. While nothing is prefilled, many steps are done at once: their
times are a sum in closed form, up to the next end of a request or the next shortage of blocks.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence as Chain
from math import ceil, inf

from ext_proc.core.model import BlockHash
from ext_proc.sim.fleet.blocks import KvBlocks
from ext_proc.sim.fleet.presets import EnginePreset
from ext_proc.sim.fleet.sequence import Sequence
from ext_proc.sim.workload import SimRequest


class Engine:
    """One engine; whoever drives it calls `advance` at `due` and reads `first`, `ended` and `journal` after.

    Args:
        preset: timing and size.
        block_tokens: tokens of a KV block.
        events: True if somebody reads the journal.

    Attributes:
        preset: timing and size.
        due: when the step or run of steps that is under way ends; infinite while idle.
        slowness: factor on the time of every step that begins from now on.
        waiting: requests not admitted yet, first come first.
        running: admitted requests, oldest first.
        blocks: the KV cache.
        first: requests that generated their first token since the list was last emptied.
        ended: requests that ended since the list was last emptied.
        journal: (True, name) of each block that became visible and (False, name) of each that was evicted, in order.
        computed: prompt tokens computed so far, recomputed ones included.
        prefilling: admitted requests whose prompt is not computed yet.
        decoding: how many requests generate a token per step.
        context: tokens that those generate upon, together.
    """

    def __init__(self, preset: EnginePreset, block_tokens: int, *, events: bool = False) -> None:
        self.preset = preset
        self.block_tokens = block_tokens
        self.due = inf
        self.slowness = 1.0
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}
        self.first: list[Sequence] = []
        self.ended: list[Sequence] = []
        self.journal: list[tuple[bool, BlockHash]] = []
        self.computed = 0
        self._events = events
        self.blocks = self._empty_cache()
        self.prefilling: list[Sequence] = []
        self.decoding = 0
        self.context = 0
        self._rounds = 0
        self._admissions = 0
        self._began = 0.0
        self._pace = 1.0
        self._planned = 0
        # (round, admission): who ends there, and who needs a block before that round; stale entries are skipped.
        self._ends: list[tuple[int, int]] = []
        self._needs: list[tuple[int, int]] = []

    @property
    def usage(self) -> float:
        """Share of the KV cache that running requests hold."""
        return self.blocks.used / self.blocks.capacity

    def ends(self) -> list[tuple[int, int]]:
        """Return (steps until it ends, blocks it holds) of each request that decodes, the next to end first."""
        decoding = [(at - self._rounds, self.running.get(admitted)) for at, admitted in sorted(self._ends)]
        return [(left, sequence.held) for left, sequence in decoding if sequence is not None]

    def depth(self, chain: Chain[BlockHash], tokens: int) -> int:
        """Return how many leading blocks a request with so many tokens to prefill would find.

        Its last token is always computed, since what comes out of it is the next token.
        """
        return self.blocks.depth(chain, (tokens - 1) // self.block_tokens)

    def fits(self, request: SimRequest) -> bool:
        """Tell whether the engine could serve the request if it had no other."""
        return self.blocks_for(request.prompt_tokens + request.output_tokens) <= self.blocks.capacity

    def submit(self, sequence: Sequence, now: float) -> None:
        """Queue a request; a run of decode steps is cut at the end of the step that is under way."""
        self.waiting.append(sequence)
        if self.due == inf:
            self._plan(now)
        else:
            self.interrupt(now)

    def interrupt(self, now: float) -> None:
        """Let the run of steps that is under way end with the step that runs at `now`."""
        if self._planned > 1 and now < self.due:
            self._planned = self._rounds_until(now)
            self.due = self._began + self._run_seconds(self._planned)

    def advance(self) -> None:
        """End what is due and begin what follows."""
        now = self.due
        self._apply_rounds(self._planned)
        self._apply_chunks()
        self._plan(now)

    def crash(self) -> list[Sequence]:
        """Lose everything; return the requests that were here, oldest first."""
        lost = [*self.running.values(), *self.waiting]
        self.waiting.clear()
        self.running.clear()
        self.prefilling.clear()
        self._ends.clear()
        self._needs.clear()
        self.journal.clear()
        self.decoding = self.context = self._planned = 0
        self.blocks = self._empty_cache()
        self.due = inf
        return lost

    def _empty_cache(self) -> KvBlocks:
        capacity = self.preset.kv_tokens // self.block_tokens
        return KvBlocks(capacity, self.journal if self._events else None)

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks that hold so many tokens."""
        return -(-tokens // self.block_tokens)

    def _plan(self, now: float) -> None:
        """Begin the next step, or the next run of decode steps."""
        self._began, self._pace = now, self.slowness
        preempted = self._grow(self._rounds)
        tokens, attention = self._schedule(admit=not preempted)
        if tokens:
            self._planned = 1 if self.decoding else 0
            seconds = self.preset.prefill_seconds(tokens, attention)
            seconds += self.preset.decode_seconds(1, self.decoding, self.context)
            self.due = now + seconds * self._pace
        elif self.decoding:
            # Who was just preempted may come back after the next step already.
            self._planned = 1 if preempted else self._longest_run()
            self.due = now + self._run_seconds(self._planned)
        elif self.waiting:  # all were preempted for nobody's good: the cache is empty now
            self._plan(now)
        else:
            self._planned = 0
            self.due = inf

    def _schedule(self, *, admit: bool) -> tuple[int, float]:
        """Give out the token budget of a step; return its prefill tokens and the token pairs of their attention."""
        budget = self.preset.step_tokens - self.decoding
        tokens, attention = 0, 0.0
        for sequence in self.prefilling:
            sequence.chunk = chunk = min(sequence.target - sequence.computed, budget - tokens)
            tokens += chunk
            attention += sequence.attention(chunk)
        while admit and self.waiting and tokens < budget and self._admit(self.waiting[0]):
            sequence = self.waiting.popleft()
            sequence.chunk = chunk = min(sequence.target - sequence.computed, budget - tokens)
            tokens += chunk
            attention += sequence.attention(chunk)
        return tokens, attention

    def _admit(self, sequence: Sequence) -> bool:
        """Give a request all blocks that its prompt and next token need; False if there is no room."""
        if len(self.running) >= self.preset.max_running:
            return False
        chain = sequence.request.blocks
        depth = self.depth(chain, sequence.target)
        total = self.blocks_for(sequence.target + 1)
        if self.blocks.needed(chain, depth, total) > self.blocks.available:
            return False
        self.blocks.share(chain[:depth])
        self.blocks.allocate(total - depth)
        sequence.named = list(chain[:depth])
        sequence.private = total - depth
        sequence.published = depth
        sequence.computed = depth * self.block_tokens
        if not sequence.preemptions:
            sequence.hit = sequence.computed
        sequence.admitted = self._admissions
        self._admissions += 1
        self.running[sequence.admitted] = sequence
        self.prefilling.append(sequence)
        return True

    def _longest_run(self) -> int:
        """Return how many decode steps can be done at once: to the next end, or while there are blocks for sure."""
        while self._ends[0][1] not in self.running:
            heapq.heappop(self._ends)
        rounds = self._ends[0][0] - self._rounds
        if self.decoding * -(-rounds // self.block_tokens) <= self.blocks.available:
            return rounds
        while self._needs and self._needs[0][1] not in self.running:
            heapq.heappop(self._needs)
        return min(rounds, self._needs[0][0] - self._rounds) if self._needs else rounds

    def _run_seconds(self, rounds: int) -> float:
        return self.preset.decode_seconds(rounds, self.decoding, self.context) * self._pace

    def _rounds_until(self, now: float) -> int:
        """Return how many steps of the run will be over when the one that is under way at `now` ends."""
        exact = self.preset.rounds_in((now - self._began) / self._pace, self.decoding, self.context)
        return max(1, min(ceil(exact), self._planned))

    # The second half: carrying out what was planned

    def _apply_rounds(self, rounds: int) -> None:
        if not rounds:
            return
        self._grow(self._rounds + rounds - 1)
        self._rounds += rounds
        self.context += self.decoding * rounds
        ends, running = self._ends, self.running
        while ends and ends[0][0] <= self._rounds:
            sequence = running.get(heapq.heappop(ends)[1])
            if sequence is not None:
                self._stop_decoding(sequence)
                self._end(sequence)

    def _apply_chunks(self) -> None:
        if not self.prefilling:
            return
        partial: list[Sequence] = []
        for sequence in self.prefilling:
            sequence.computed += sequence.chunk
            sequence.work += sequence.chunk
            self.computed += sequence.chunk
            sequence.chunk = 0
            self._publish(sequence)
            if sequence.computed < sequence.target:
                partial.append(sequence)
                continue
            if not sequence.generated:
                self.first.append(sequence)
            sequence.generated += 1
            if sequence.generated == sequence.request.output_tokens:
                self._end(sequence)
            else:
                self._decode(sequence)
        self.prefilling = partial

    def _publish(self, sequence: Sequence) -> None:
        """Make the prompt's blocks visible that are computed now."""
        chain = sequence.request.blocks
        done = min(sequence.computed // self.block_tokens, len(chain))
        for block in chain[sequence.published : done]:
            if self.blocks.publish(block):
                sequence.named.append(block)
                sequence.private -= 1
        sequence.published = max(sequence.published, done)

    def _decode(self, sequence: Sequence) -> None:
        tokens = sequence.request.prompt_tokens + sequence.generated
        sequence.joined = self._rounds
        self.decoding += 1
        self.context += tokens
        left = sequence.request.output_tokens - sequence.generated
        heapq.heappush(self._ends, (self._rounds + left, sequence.admitted))
        room = sequence.held * self.block_tokens - tokens
        if room < left:
            heapq.heappush(self._needs, (self._rounds + room, sequence.admitted))

    def _stop_decoding(self, sequence: Sequence) -> None:
        sequence.generated += self._rounds - sequence.joined
        sequence.joined = -1
        self.decoding -= 1
        self.context -= sequence.request.prompt_tokens + sequence.generated

    def _grow(self, last: int) -> bool:
        """Give blocks to those that need one before a round up to `last`; True if somebody was preempted for it."""
        needs, running = self._needs, self.running
        preempted = False
        while needs and needs[0][0] <= last:
            before, admitted = heapq.heappop(needs)
            sequence = running.get(admitted)
            if sequence is None:
                continue
            while not self.blocks.available and admitted in running:
                self._preempt(running[next(reversed(running))])
                preempted = True
            if admitted not in running:
                continue
            self.blocks.allocate(1)
            sequence.private += 1
            tokens = sequence.request.prompt_tokens + sequence.generated + before - sequence.joined
            if tokens + self.block_tokens < sequence.request.prompt_tokens + sequence.request.output_tokens:
                heapq.heappush(needs, (before + self.block_tokens, admitted))
        return preempted

    def _preempt(self, sequence: Sequence) -> None:
        """Take a request's blocks; it will be computed again, before anybody who waits."""
        if sequence.joined >= 0:
            self._stop_decoding(sequence)
        else:
            self.prefilling.remove(sequence)
        self._leave(sequence)
        sequence.preemptions += 1
        sequence.target = sequence.request.prompt_tokens + sequence.generated
        sequence.computed = sequence.published = 0
        self.waiting.appendleft(sequence)

    def _end(self, sequence: Sequence) -> None:
        for block in sequence.request.output_blocks:
            if self.blocks.publish(block):
                sequence.named.append(block)
                sequence.private -= 1
        self._leave(sequence)
        self.ended.append(sequence)

    def _leave(self, sequence: Sequence) -> None:
        del self.running[sequence.admitted]
        self.blocks.release(sequence.named, sequence.private)
        sequence.named = []
        sequence.private = 0
