"""Finds the exact tokens of requests for the pools that ask for it, with a cache, a deadline and a bound on work."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final, NamedTuple

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.pool import Registry
from ext_proc.core.prompts import RequestHead
from ext_proc.core.prompts.token_question import TokenQuestion, Unasked, read_question
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher
from ext_proc.core.token_hits import Found, TokenPrompt
from ext_proc.sources.adapters import Adapters
from ext_proc.sources.token_cache import TokenCache
from ext_proc.sources.tokenizing import TokenizeError, Tokenizer

MOST_AT_ONCE: Final = 128
"""Prompts of one pool that are tokenized at a time; a further one is decided by its text at once."""

SIZE_KEPT_S: Final = 1.0
NONE_KEPT_S: Final = 0.05
USUAL_SIZE: Final = 16
"""Tokens of a block, where engines have stored none yet and do not say; they hold nothing, by any size."""

_MOST_MODELS: Final = 256

Count = Callable[[str, str], None]
"""Counts what became of a lookup: pool and result."""

Told = Callable[[int], int | None]
"""Says how many tokens a block of an engine has, by slot, from what that tells beside its events; None if nothing."""


class PoolTokens(NamedTuple):
    """How the tokens of one pool's requests are found.

    Attributes:
        tokenizer: makes the tokens.
        deadline_s: seconds that a pick waits for them.
        cache_tokens: bound on what is remembered, in tokens.
    """

    tokenizer: Tokenizer
    deadline_s: float
    cache_tokens: int


class TokenLookup:
    """The token source of all pools.

    Args:
        registry: the endpoints.
        resident: tells which engines report what they hold, and the size of their blocks.
        adapters: tells adapters from models.
        count: counts each lookup by pool and result.
        inspect_bytes: bound on what is read of a request body after decompression.
        told: tells the size of blocks of engines that have reported none yet.
    """

    def __init__(
        self,
        registry: Registry,
        resident: ResidentIndex,
        adapters: Adapters,
        count: Count,
        inspect_bytes: int,
        told: Told,
    ) -> None:
        self._registry = registry
        self._resident = resident
        self._adapters = adapters
        self._count = count
        self._inspect_bytes = inspect_bytes
        self._told = told
        self._pools: dict[str, _Pool] = {}

    def configure(self, pools: Mapping[str, PoolTokens]) -> None:
        """Serve these pools from now on; what is under way for others is dropped, and their tokenizers are closed."""
        old, self._pools = self._pools, {name: _Pool(name, pool, self._adapters) for name, pool in pools.items()}
        for pool in old.values():
            pool.close()

    def close(self) -> None:
        """Drop all that is under way."""
        self.configure({})

    @property
    def fills(self) -> dict[str, float]:
        """The share of its bound that each structure takes, in the pool where that is most."""
        pools = list(self._pools.values())
        return {
            "token_cache": max((pool.cache.fill for pool in pools), default=0.0),
            "tokenizing": max((pool.under_way / MOST_AT_ONCE for pool in pools), default=0.0),
        }

    def find(self, request: InferenceRequest, head: RequestHead, body: bytes) -> Found:
        """Look for the tokens of a request; None at once where its pool goes by text, or must for this request."""
        return self._find(request, head, body, self._count)

    def rehearse(self, request: InferenceRequest, head: RequestHead, body: bytes) -> Found:
        """Look for tokens as `find` does, and count nothing."""
        return self._find(request, head, body, lambda _pool, _result: None)

    def _find(self, request: InferenceRequest, head: RequestHead, body: bytes, count: Count) -> Found:
        endpoints = self._registry.snapshot.candidates(request.model)
        pool = self._pools.get(endpoints[0].pool) if endpoints else None
        if pool is None:
            return None
        found = self._look(pool, request, head, body, endpoints)
        if isinstance(found, str):
            count(pool.name, found)
            return None
        if isinstance(found, TokenPrompt):
            count(pool.name, "cached")
            return found
        return _Later(found, pool, count)

    def _look(
        self, pool: _Pool, request: InferenceRequest, head: RequestHead, body: bytes, endpoints: Sequence[Endpoint]
    ) -> asyncio.Task[TokenPrompt] | TokenPrompt | str:
        """Find the tokens or begin to; the text says why that is not done."""
        block_tokens = pool.sizes.of(request.model, endpoints, self._resident, self._told)
        if block_tokens is None:
            return "no_reports"
        asked = read_question(request, head, body, self._inspect_bytes)
        if isinstance(asked, Unasked):
            return asked.value
        key = _Key(asked.digest, asked.ids, request.model, asked.adapter, asked.salt, block_tokens)
        return pool.cache.get(key) or pool.begin(key, asked, endpoints) or "busy"


class _Key(NamedTuple):
    digest: int
    ids: tuple[int, ...]
    model: str | None
    adapter: str
    salt: str
    block_tokens: int


class BlockSizes:
    """The size of blocks that most engines of a model report; kept for a moment, since all are asked.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str | None, tuple[Sequence[Endpoint], float, int | None]] = {}

    def of(self, model: str | None, endpoints: Sequence[Endpoint], resident: ResidentIndex, told: Told) -> int | None:
        """Return the tokens of a block; None if no engine reports what it holds."""
        now = self._clock()
        known = self._known.get(model)
        if known is not None and known[0] is endpoints and now < known[1]:
            return known[2]
        slots = [endpoint.slot for endpoint in endpoints]
        sizes = Counter(size for slot in slots if (size := resident.block_tokens(slot)))
        kept_s = SIZE_KEPT_S
        if not sizes:
            sizes = Counter(told(slot) or USUAL_SIZE for slot in slots if slot in resident)
            kept_s = 0.0 if sizes else NONE_KEPT_S
        found = sizes.most_common(1)[0][0] if sizes else None
        if len(self._known) >= _MOST_MODELS:
            self._known.clear()
        self._known[model] = endpoints, now + kept_s, found
        return found


class _Pool:
    """One pool's tokenizer, what it found before, and what it is at."""

    def __init__(self, name: str, settings: PoolTokens, adapters: Adapters) -> None:
        self.name = name
        self.deadline_s = settings.deadline_s
        self.cache: TokenCache[TokenPrompt] = TokenCache(settings.cache_tokens)
        self.sizes = BlockSizes()
        self._tokenizer = settings.tokenizer
        self._adapters = adapters
        self._tasks: dict[_Key, asyncio.Task[TokenPrompt]] = {}

    @property
    def under_way(self) -> int:
        """How many prompts are being tokenized."""
        return len(self._tasks)

    def begin(
        self, key: _Key, question: TokenQuestion, endpoints: Sequence[Endpoint]
    ) -> asyncio.Task[TokenPrompt] | None:
        """Begin to tokenize, once for all who ask for the same at a time; None if too much is under way."""
        task = self._tasks.get(key)
        if task is None and len(self._tasks) < MOST_AT_ONCE:
            task = self._tasks[key] = asyncio.create_task(self._tokenize(key, question, endpoints))
            task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tokenizer.close()

    async def _tokenize(self, key: _Key, question: TokenQuestion, endpoints: Sequence[Endpoint]) -> TokenPrompt:
        adapter = key.adapter or await self._adapters.name(key.model, endpoints)
        ids = question.ids or await self._tokenizer.tokens(question, key.model, endpoints)
        try:
            chain = TokenHasher(key.block_tokens).chain(ids, adapter, key.salt)
        except ValueError as error:
            raise TokenizeError("no_tokens") from error
        prompt = TokenPrompt(chain, len(ids))
        if ids:
            # Of a prompt that came as tokens the key holds those, and an integer takes more room than a hash.
            self.cache.put(key, prompt, 2 * len(chain.hashes) + 4 * len(key.ids))
        return prompt

    def _ended(self, key: _Key, task: asyncio.Task[TokenPrompt]) -> None:
        self._tasks.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waits looks at it; nobody may be left to


class _Later:
    """Tokens that are being made; whoever waits gives up at the deadline, and the work goes on for the cache."""

    def __init__(self, task: asyncio.Task[TokenPrompt], pool: _Pool, count: Count) -> None:
        self._task = task
        self._pool = pool
        self._count = count

    def __await__(self) -> Generator[object, None, TokenPrompt | None]:
        return self._wait().__await__()

    async def _wait(self) -> TokenPrompt | None:
        await asyncio.wait((self._task,), timeout=self._pool.deadline_s)
        found, result = self._outcome()
        self._count(self._pool.name, result)
        return found

    def _outcome(self) -> tuple[TokenPrompt | None, str]:
        if not self._task.done():
            return None, "late"
        if self._task.cancelled():
            return None, "dropped"
        error = self._task.exception()
        if error is None:
            return self._task.result(), "asked"
        return None, f"failed_{error.reason}" if isinstance(error, TokenizeError) else "failed_internal"
