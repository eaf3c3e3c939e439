"""One generation request on its way through the engine: its sequences, their texts, and their progress as events."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from ext_proc.sim import tokens
from ext_proc.sim.asks import Ask
from ext_proc.sim.driver import Driver, Inbox, Progress
from ext_proc.sim.errors import ApiError, bad_request
from ext_proc.sim.scheduler import SimSequence
from ext_proc.sim.shapes import Answer, Event, Shape, Tally


@dataclass(slots=True)
class _Run:
    """One sequence with the text that it will have generated."""

    sequence: SimSequence
    text: str
    limited: bool
    sent: int = 0

    def take(self, count: int) -> str:
        """The text of the next `count` tokens."""
        start = self.sent * tokens.TOKEN_BYTES
        self.sent += count
        return self.text[start : self.sent * tokens.TOKEN_BYTES]


class Generation:
    """The sequences of a request; whoever starts it must call `abort` in the end, which is harmless after success."""

    def __init__(self, driver: Driver, ask: Ask, model: str, max_model_len: int) -> None:
        """Read the prompts.

        Raises:
            ApiError: a prompt, or a prompt with its answer, is longer than the model allows (400).
        """
        self._driver = driver
        self._ask = ask
        self._inbox = Inbox(quiet=not ask.stream)
        chain = functools.partial(_chain, driver, model, ask.salt)
        self._runs = [
            _run(ask, prompt, choice, max_model_len, chain) for prompt in ask.prompts for choice in range(ask.choices)
        ]
        self._left = len(self._runs)
        self.tally = Tally(prompt=sum(run.sequence.prompt_tokens for run in self._runs[:: ask.choices]))

    def start(self, retry_after: float | None) -> None:
        """Give the sequences to the engine.

        Raises:
            ApiError: the engine's queue is full (503).
        """
        for index, run in enumerate(self._runs):
            reason = "length" if run.limited else "stop"
            if not self._driver.start(run.sequence, self._inbox, index, reason):
                self.abort()
                raise ApiError(503, "The engine's queue is full.", retry_after=retry_after)

    def abort(self) -> None:
        """Free what the sequences hold."""
        if self._left:
            for run in self._runs:
                self._driver.abort(run.sequence)

    @property
    def finished(self) -> bool:
        """Whether all sequences have ended."""
        return self._left == 0

    async def answers(self) -> Sequence[Answer]:
        """Wait for all sequences."""
        while self._left:
            for progress in await self._inbox.take():
                self._account(progress)
        return [self._answer(index) for index in range(len(self._runs))]

    async def events(self, shape: Shape) -> list[Event]:
        """Wait for the next tokens; they are one event each."""
        events: list[Event] = []
        for progress in await self._inbox.take():
            events += self._progress_events(progress, shape)
        return events

    def _progress_events(self, progress: Progress, shape: Shape) -> list[Event]:
        index, run = progress.place, self._runs[progress.place]
        events: list[Event] = []
        if run.sent == 0:
            if index % self._ask.choices == 0:
                self.tally.cached += run.sequence.cached_tokens
            events += shape.first(index, self.tally)
        for _ in range(progress.tokens):
            self.tally.completion += 1
            events += shape.delta(index, run.take(1), self.tally)
        if progress.finished:
            self._left -= 1
            events += shape.finish(self._answer(index), self.tally)
        return events

    def _account(self, progress: Progress) -> None:
        self._left -= 1
        sequence = self._runs[progress.place].sequence
        self.tally.completion += sequence.generated
        if progress.place % self._ask.choices == 0:
            self.tally.cached += sequence.cached_tokens

    def _answer(self, index: int) -> Answer:
        run = self._runs[index]
        sequence = run.sequence
        return Answer(
            index,
            run.text,
            sequence.output_tokens,
            sequence.prompt_tokens,
            sequence.cached_tokens,
            run.limited,
        )


def _chain(driver: Driver, model: str, salt: str, content: bytes) -> list[int]:
    """Hash the blocks of a sequence, and let the journal of the cache know what they hold."""
    cache, block_size = driver.scheduler.cache, driver.scheduler.limits.block_size
    chain = tokens.hash_chain(content, block_size, tokens.cache_seed(model, salt))
    if cache.journal is not None:
        cache.journal.learn(chain, content, model, salt)
    return chain


def _run(ask: Ask, prompt: bytes, choice: int, max_model_len: int, chain: Callable[[bytes], list[int]]) -> _Run:
    length = tokens.count_tokens(prompt)
    check_length(length, ask.max_tokens or 1, max_model_len)
    digest = xxh3_64_intdigest(prompt, choice)
    wanted = min(ask.output_tokens(digest), max_model_len - length)
    text = tokens.answer_text(digest, wanted)
    sequence = SimSequence(length, wanted, chain(prompt + text.encode()))
    return _Run(sequence, text, limited=wanted < natural(ask, digest))


def natural(ask: Ask, digest: int) -> int:
    """Tokens after which the model stops by itself."""
    if ask.exact and ask.max_tokens is not None:
        return ask.max_tokens + 1
    return max(tokens.natural_length(digest), ask.min_tokens)


def check_length(prompt_tokens: int, output_tokens: int, max_model_len: int) -> None:
    """Refuse what does not fit into the model's context.

    Raises:
        ApiError: prompt and output together are too long (400).
    """
    if prompt_tokens + output_tokens > max_model_len:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{output_tokens} output tokens and your prompt contains {prompt_tokens} input tokens."
        )


async def pool(driver: Driver, prompts: Sequence[bytes], model: str, retry_after: float | None) -> None:
    """Compute prompts without generating anything, as embeddings do.

    Raises:
        ApiError: the engine's queue is full (503).
    """
    ask = Ask(tuple(prompts))
    inbox = Inbox(quiet=True)
    sequences = [
        SimSequence(max(tokens.count_tokens(prompt), 1), 0, _chain(driver, model, "", prompt)) for prompt in ask.prompts
    ]
    left = len(sequences)
    try:
        for index, sequence in enumerate(sequences):
            if not driver.start(sequence, inbox, index, "stop"):
                raise ApiError(503, "The engine's queue is full.", retry_after=retry_after)
        while left:
            left -= len(await inbox.take())
    finally:
        for sequence in sequences if left else ():
            driver.abort(sequence)
