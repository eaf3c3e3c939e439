"""Who chooses engines in a simulated fleet: the picker that serves requests, told what it would be told."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from benchmarks.independent.baselines import CacheAware
from benchmarks.independent.cache import BLOCK_TOKENS, Change, Run
from benchmarks.independent.engine import Engine
from benchmarks.independent.hardware import Job
from ext_proc.assembly import build_core
from ext_proc.config import Config, PoolConfig, StrategyConfig
from ext_proc.core.hashing import BYTES_PER_TOKEN
from ext_proc.core.model import Api, Decision, Ending, InferenceRequest, Operation, Outcome, Usage
from ext_proc.core.observer import NoObserver
from ext_proc.core.picker import Rejection
from ext_proc.core.pool import EndpointSpec
from ext_proc.core.rates import Scrape
from ext_proc.core.signals import EngineSignals, Times
from ext_proc.core.token_chain import TokenChain
from ext_proc.core.token_hits import TokenPrompt

_MODEL = "m"
_POOL = "p"
_BYTES = 4.4
"""Bytes of text per token: an assumption, other than the picker's rule of thumb, so there is something to learn."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a picker gets to know, and what it chooses by.

    Attributes:
        strategy: name of the strategy.
        parameters: its parameters.
        events: whether the engines report their caches, exactly and soon.
        first_tokens: whether first tokens are heard of.
        scrape_s: seconds between two readings of an engine's metrics.
        knows_rates: whether the picker is told how fast each engine prefills.
        stated: KV memory that the picker is told, as a factor of the true one.
        believed: KV memory that its prefix index starts with, as a factor of what it is told.
    """

    strategy: str = "least-wait"
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    events: bool = False
    first_tokens: bool = True
    scrape_s: float = 1.0
    knows_rates: bool = False
    stated: float = 1.0
    believed: float = 1.0


class Router(Protocol):
    """Chooses an engine for each request."""

    def pick(self, name: int, job: Job, now: float) -> int:
        """Return the place of the engine that a request, by its number, goes to."""

    def first_token(self, name: int, now: float) -> None:
        """Hear of a request's first token."""

    def ended(self, name: int, job: Job, now: float) -> None:
        """Hear of a request's end."""

    def went(self, place: int, now: float) -> None:
        """Hear that an engine is away, and has lost everything."""

    def came(self, place: int) -> None:
        """Hear that it is back."""

    def lost(self, name: int, now: float) -> None:
        """Hear that a request was lost with its engine; it is sent again."""

    def changed(self, place: int, changes: Sequence[Change]) -> None:
        """Hear of an engine's reports on its cache."""

    def scraped(self, place: int, engine: Engine, ttft: Times, now: float) -> None:
        """Read an engine's metrics."""


class Picker:
    """The real picker.

    Args:
        view: what it gets to know.
        engines: the fleet.
        generator: breaks ties.
    """

    def __init__(self, view: View, engines: Sequence[Engine], generator: random.Random) -> None:
        own = StrategyConfig(name=view.strategy, parameters=view.parameters)
        named = StrategyConfig() if view.strategy == CacheAware.name else own
        self._view = view
        self._core = build_core(Config(pools={_POOL: PoolConfig(strategy=named)}), NoObserver())
        self._generator = generator
        self._decisions: dict[int, Decision] = {}
        self._ttft = [Times(0.0, 0.0)] * len(engines)
        self._away: set[str] = set()
        specs = [
            EndpointSpec(
                address=f"10.0.0.{place + 1}:8000",
                kv_tokens=round(engine.hardware.blocks * BLOCK_TOKENS * view.stated),
                prefill_rate=1 / engine.hardware.linear if view.knows_rates else None,
            )
            for place, engine in enumerate(engines)
        ]
        self._core.follow(self._core.registry.replace(_POOL, specs, frozenset({_MODEL})))
        self._endpoints = [self._core.registry.snapshot.by_address[spec.address] for spec in specs]
        self._places = {endpoint.address: place for place, endpoint in enumerate(self._endpoints)}
        for endpoint in self._endpoints:
            self._core.index.add(endpoint.slot, round((endpoint.kv_tokens or 0) * view.believed))
        if view.strategy == CacheAware.name:
            self._core.picker.strategies = {_POOL: (CacheAware.name, CacheAware())}
        if view.events:
            for endpoint in self._endpoints:
                self._core.resident.add(endpoint.slot, BLOCK_TOKENS)

    def pick(self, name: int, job: Job, now: float) -> int:
        """Return the place of the engine that a request, by its number, goes to."""
        text = _text(job.runs, job.prompt, name)
        request = InferenceRequest(
            operation=Operation.CHAT,
            api=Api.OPENAI,
            model=_MODEL,
            prompt=text,
            prompt_tokens=len(text) // BYTES_PER_TOKEN,
            stream=True,
        )
        tokens = None
        if self._view.events:
            blocks = [block for run in job.runs for block in range(run.first, run.first + run.blocks)]
            tokens = TokenPrompt(TokenChain(blocks, BLOCK_TOKENS), job.prompt)
        subset = [address for address in self._places if address not in self._away] if self._away else None
        decision = self._core.picker.pick(request, now, self._generator, subset, tokens)
        if isinstance(decision, Rejection):
            raise RuntimeError(f"no engine for request {name}: {decision}")  # noqa: TRY004  it is an answer of the picker
        self._decisions[name] = decision
        return self._places[decision.chosen.address]

    def first_token(self, name: int, now: float) -> None:
        """Hear of a request's first token."""
        if self._view.first_tokens:
            decision = self._decisions[name]
            self._core.feedback.first_token(decision.id, now, decision.chosen.address)

    def ended(self, name: int, job: Job, now: float) -> None:
        """Hear of a request's end."""
        decision = self._decisions.pop(name)
        outcome = Outcome(
            decision_id=decision.id,
            ending=Ending.OK,
            status=200,
            served=decision.chosen.address,
            duration=job.finished - job.arrived,
            usage=Usage(job.prompt, job.output, job.cached),
        )
        self._core.feedback.settle(outcome, now)

    def went(self, place: int, now: float) -> None:  # noqa: ARG002  as every router
        """Hear that an engine is away, and has lost everything."""
        endpoint = self._endpoints[place]
        self._away.add(endpoint.address)
        self._core.feedback.restarted(endpoint)
        self._core.resident.cleared(endpoint.slot)

    def came(self, place: int) -> None:
        """Hear that it is back."""
        self._away.discard(self._endpoints[place].address)

    def lost(self, name: int, now: float) -> None:
        """Hear that a request was lost with its engine; it is sent again."""
        outcome = Outcome(decision_id=self._decisions.pop(name).id, ending=Ending.LOCAL)
        self._core.feedback.settle(outcome, now)

    def changed(self, place: int, changes: Sequence[Change]) -> None:
        """Hear of an engine's reports on its cache."""
        if not self._view.events:
            return
        slot, resident = self._endpoints[place].slot, self._core.resident
        for first, end, stored in changes:
            (resident.stored if stored else resident.removed)(slot, range(first, end))

    def scraped(self, place: int, engine: Engine, ttft: Times, now: float) -> None:
        """Read an engine's metrics."""
        endpoint, before = self._endpoints[place], self._ttft[place]
        waiting, running = len(engine.waiting), len(engine) - len(engine.waiting)
        usage = engine.cache.used / engine.cache.capacity
        signals = EngineSignals(at=now, waiting=waiting, running=running, kv_usage=usage, ttft=ttft)
        self._core.signals.note(endpoint.slot, signals)
        scrape = Scrape(ttft.sum - before.sum, int(ttft.count - before.count), waiting, running)
        self._core.feedback.scraped(endpoint, scrape, now)
        self._ttft[place] = ttft


def _text(runs: Sequence[Run], prompt: int, name: int) -> bytes:
    """Return a text that is the same as far as blocks are, and then nobody else's."""
    parts = [b"\xff"]
    for first, blocks in runs:
        size = int(blocks * BLOCK_TOKENS * _BYTES)
        parts.append((first.to_bytes(8, "big") * (size // 8 + 1))[:size])
    rest = int((prompt - sum(run.blocks for run in runs) * BLOCK_TOKENS) * _BYTES)
    parts.append((name.to_bytes(8, "big") * (rest // 8 + 1))[:rest])
    return b"".join(parts)
