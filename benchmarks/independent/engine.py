"""A simulated engine that schedules as vLLM V1 does, in virtual time.

A step has a budget of tokens. Running sequences come first, each that decodes with one token, then those whose prompt
is not done; then waiting ones are admitted, first come, first served, while the whole prompt fits into memory. Memory
is taken chunk by chunk, blocks are found by others as soon as they are scheduled, and if a running sequence finds none
left, the one admitted last gives up its own and starts again later. Where nothing but decoding happens, many steps are
taken as one: how many sequences need a block in a step depends on the step's number modulo 16 alone.

A step takes, by the roofline of the GPU (`Hardware`):

    overhead + sequence * sequences + max(weights, linear * tokens) + attention * sum(chunk * context) + read * context
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from math import ceil, inf

from benchmarks.independent.cache import BLOCK_TOKENS, BlockCache, Change
from benchmarks.independent.hardware import Hardware, Job


class Engine:
    """One engine. The caller lets time pass: `run` when `due` has come.

    Attributes:
        hardware: what it runs on.
        cache: its KV cache.
        waiting: jobs that are not admitted.
        prefilling: admitted ones whose prompt is not done, in the order of admission.
        decoding: those that generate, in the order in which they began.
        due: when the present step ends; infinity while idle.
        preemptions: how often a sequence had to give up its memory.
        uncached: prompt tokens computed so far, those of preempted sequences not again.
    """

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.cache = BlockCache(hardware.blocks)
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []
        self.decoding: dict[Job, None] = {}
        self.due = inf
        self.preemptions = 0
        self.uncached = 0
        self._began = 0.0
        self._step = 0
        self._steps = 1
        self._chunks: list[tuple[Job, int]] = []
        self._context = 0
        self._phases = [0] * BLOCK_TOKENS
        self._ends: list[tuple[int, int, Job]] = []
        self._count = 0

    def submit(self, job: Job, now: float) -> None:
        """Give it a job; it sees it when the present step ends, at once if idle."""
        job.arrived = now
        job.target, job.hit = job.prompt, self.hit(job)
        self.waiting.append(job)
        if self.due == inf:
            self._start(now)
        elif self._steps > 1:
            self._steps = self._steps_until(now)
            self.due = self._began + self._duration(self._steps)

    def run(self) -> tuple[list[Job], list[Job], list[Change]]:
        """End the step that is due; return first tokens, finished jobs and changes of the cache, and begin the next."""
        now = self.due
        firsts: list[Job] = []
        finished: list[Job] = []
        self._grow_on()
        self._context += len(self.decoding) * self._steps
        self._step += self._steps
        # The last token of an answer is never computed, so a job ends in the step that samples it.
        while self._ends and self._ends[0][0] <= self._step:
            job = heapq.heappop(self._ends)[2]
            self._leave(job)
            self._finish(job, now, finished)
        for job, chunk in self._chunks:
            job.computed += chunk
            if job.computed == job.target:
                self.prefilling.remove(job)
                if not job.generated:
                    job.first_token = now
                    firsts.append(job)
                job.generated += 1
                if job.generated >= job.output:
                    self._finish(job, now, finished)
                else:
                    self._join(job)
        changes, self.cache.changes = self.cache.changes, []
        self._start(now)
        return firsts, finished, changes

    def jobs(self) -> Iterator[Job]:
        """Go through all that is there."""
        yield from self.decoding
        yield from self.prefilling
        yield from self.waiting

    def __len__(self) -> int:
        """Return how many jobs are there."""
        return len(self.decoding) + len(self.prefilling) + len(self.waiting)

    def hit(self, job: Job) -> int:
        """Return the prompt tokens that it would find cached now."""
        return self.cache.match(job.runs, (job.prompt - 1) // BLOCK_TOKENS)[0] * BLOCK_TOKENS

    def wait(self, jobs: Iterable[tuple[int, int]], now: float) -> float:
        """Return the seconds until waiting jobs are prefilled, computed as they will be if nothing else comes.

        Args:
            jobs: uncached tokens and length of those that wait, in their order, those in hand not included.
            now: when that is asked.
        """
        if self.due == inf:
            left = 0.0
        elif self._steps > 1:
            left = self._began + self._duration(self._steps_until(now)) - now
        else:
            left = self.due - now
        in_step = {id(job): chunk for job, chunk in self._chunks}
        todo = [(job.target - job.computed - in_step.get(id(job), 0), job.target) for job in self.prefilling]
        todo = [*((tokens, length) for tokens, length in todo if tokens), *jobs]
        tokens = sum(each for each, _ in todo)
        if not tokens:
            return left
        hardware, decoding = self.hardware, len(self.decoding)
        steps = ceil(tokens / max(hardware.budget - decoding, 1))
        each = hardware.overhead + hardware.sequence * decoding + hardware.read * self._context
        linear = max(hardware.linear * (tokens + steps * decoding), steps * hardware.weights)
        attention = sum(hardware.attention * own * (length - own / 2) for own, length in todo)
        return left + steps * each + linear + attention

    def wait_for_memory(self, blocks: int) -> float:
        """Return the seconds until so many blocks are there that nobody uses, by the true ends of what decodes."""
        missing = blocks - self.cache.available
        if missing <= 0:
            return 0.0
        for step, _, job in sorted(self._ends):
            if job.holding is not None:
                missing -= ceil((job.context + step) / BLOCK_TOKENS)
            if missing <= 0:
                each = self.hardware.decoding(len(self.decoding), self._context)
                return (step - self._step) * each
        return inf if not self.decoding else 60.0

    def _start(self, now: float) -> None:
        """Schedule the next step."""
        self._began, self._steps, self._chunks = now, 1, []
        self._grow()
        budget = self.hardware.budget - len(self.decoding)
        attention, tokens = 0.0, len(self.decoding)
        budget, preempted = self._continue(budget)
        if not preempted:
            self._admit(budget)
        for job, chunk in self._chunks:
            tokens += chunk
            attention += chunk * (job.computed + chunk / 2)
        if not tokens:
            self.due = inf
            return
        if self._chunks:
            hardware, sequences = self.hardware, len(self.decoding) + len(self._chunks)
            self.due = now + hardware.overhead + hardware.sequence * sequences + hardware.read * self._context
            self.due += max(hardware.weights, hardware.linear * tokens) + hardware.attention * attention
            return
        self._steps = 1 if preempted else self._skippable()
        self.due = now + self._duration(self._steps)

    def _skippable(self) -> int:
        """Return how many steps in a row can do nothing but decode."""
        until_end = self._ends[0][0] - self._step
        cycles = self.cache.available // max(len(self.decoding), 1)
        return max(min(until_end, (cycles - 1) * BLOCK_TOKENS), 1)

    def _duration(self, steps: int) -> float:
        growth = self.hardware.read * len(self.decoding) * steps * (steps - 1) / 2
        return steps * self.hardware.decoding(len(self.decoding), self._context) + growth

    def _steps_until(self, now: float) -> int:
        """Return how many of the steps that only decode have begun."""
        low, high = 1, self._steps
        while low < high:
            middle = (low + high) // 2
            if self._began + self._duration(middle) >= now:
                high = middle
            else:
                low = middle + 1
        return low

    def _grow(self) -> None:
        """Take the blocks that decoding needs in the next step."""
        while not self.cache.take(self._phases[-self._step % BLOCK_TOKENS]):
            self._preempt()

    def _grow_on(self) -> None:
        """Take the blocks that decoding needed in the steps after the first of those that were taken as one."""
        for ahead in range(1, min(self._steps, BLOCK_TOKENS + 1)):
            cycles = (self._steps - 1 - ahead) // BLOCK_TOKENS + 1
            self.cache.take(self._phases[-(self._step + ahead) % BLOCK_TOKENS] * cycles)

    def _continue(self, budget: int) -> tuple[int, bool]:
        """Schedule chunks of prompts that were begun; return the budget left, and whether memory ran out."""
        for job in list(self.prefilling):
            chunk = min(job.target - job.computed, budget)
            while job.holding is not None and not self._chunk(job, chunk):
                self._preempt()
            if job.holding is None:
                return 0, True
            budget -= chunk
        return budget, False

    def _admit(self, budget: int) -> None:
        """Schedule chunks of waiting prompts."""
        hardware = self.hardware
        while self.waiting and budget > 0 and len(self.decoding) + len(self.prefilling) < hardware.most:
            job = self.waiting[0]
            hit, pieces = self.cache.match(job.stream, (job.target - 1) // BLOCK_TOKENS)
            whole = ceil(job.target / BLOCK_TOKENS) - hit
            if whole > self.cache.available - self.cache.idle(pieces):
                return
            self.waiting.popleft()
            job.holding = self.cache.hold(pieces, hit)
            job.computed = hit * BLOCK_TOKENS
            if job.cached is None:
                job.cached = min(job.computed, job.prompt)
                self.uncached += job.prompt - job.cached
            chunk = min(job.target - job.computed, budget)
            self._chunk(job, chunk)
            self.prefilling.append(job)
            budget -= chunk

    def _chunk(self, job: Job, chunk: int) -> bool:
        """Take the memory for a chunk and schedule it; False if there is none."""
        if not chunk:
            return True
        holding = job.holding
        if holding is None:
            return False
        end = job.computed + chunk
        blocks = ceil(end / BLOCK_TOKENS) - holding.hashed - holding.private
        if not self.cache.take(blocks):
            return False
        holding.private += blocks
        self.cache.fill(holding, job.stream, end // BLOCK_TOKENS)
        self._chunks.append((job, chunk))
        return True

    def _preempt(self) -> None:
        """Take the memory of the sequence that was admitted last; it waits in front of all others."""
        self.preemptions += 1
        if self.prefilling:  # admitted after all that decode
            job = self.prefilling.pop()
            self._chunks = [each for each in self._chunks if each[0] is not job]
        else:
            job = next(reversed(self.decoding))
            self._leave(job)
            self._ends = [each for each in self._ends if each[2] is not job]
            heapq.heapify(self._ends)
        if job.holding is not None:
            self.cache.free(job.holding)
        job.holding, job.computed = None, 0
        job.target = job.prompt + job.generated
        self.waiting.appendleft(job)

    def _join(self, job: Job) -> None:
        """Let a job decode from now on; the token that was sampled last is computed in its next step."""
        self._count += 1
        job.context = job.computed - self._step
        self._context += job.computed
        self._phases[job.context % BLOCK_TOKENS] += 1
        self.decoding[job] = None
        heapq.heappush(self._ends, (self._step + job.output - job.generated, self._count, job))

    def _leave(self, job: Job) -> None:
        """Let a job decode no more, and count what it has done by now."""
        del self.decoding[job]
        context = job.context + self._step
        self._phases[job.context % BLOCK_TOKENS] -= 1
        self._context -= context
        job.generated += context - job.computed
        job.computed = context
        if job.holding is not None:
            job.holding.private = ceil(context / BLOCK_TOKENS) - job.holding.hashed
            self.cache.fill(job.holding, job.stream, context // BLOCK_TOKENS)

    def _finish(self, job: Job, now: float, finished: list[Job]) -> None:
        job.finished = now
        if job.holding is not None:
            self.cache.free(job.holding)
            job.holding = None
        finished.append(job)
