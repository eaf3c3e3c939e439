"""The state of the decision as plain data: taken from the parts that serve, put into fresh ones to explain elsewhere.

Prompts are in it as hashes of their blocks, and of those only the last used ones. Sessions, reputations, open requests
and what engines say of themselves are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from ext_proc.core.caps import NO_CAPS, Caps
from ext_proc.core.expectations import Expectation, Expectations
from ext_proc.core.health import HealthMonitor
from ext_proc.core.ledger import Ledger
from ext_proc.core.lifecycle import Lifecycle, Stage
from ext_proc.core.model import BlockHash, Ending, Endpoint
from ext_proc.core.pool import Change, EndpointSpec, Registry
from ext_proc.core.prefix_index import ObservedIndex
from ext_proc.core.rates import RateLearner, RateSource
from ext_proc.core.sleepers import Sleepers, SleepLevel, Witness

FORMAT: Literal["kvpicker-state/1"] = "kvpicker-state/1"

_BOUNDLESS = 10**15
"""Tokens: what was held may all be put back."""


class EndpointState(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint with its load.

    Attributes:
        address: `ip:port`.
        pool: its pool.
        models: what it serves, declared or learnt.
        learnt: True if the engine said so itself.
        kv_tokens: capacity of its KV cache in tokens.
        prefill_rate: its configured prefill rate in tokens per second.
        ranks: data-parallel ranks of its engine.
        learnt_rate: the one learnt from it, and
        learnt_from: how.
        labels: as configured.
        caps: what it may hold at most, where that differs from the rest of its pool.
        in_flight: requests in flight.
        tokens_in_flight: prompt and expected output tokens of those.
        tokens_pinned: tokens of KV memory that they hold on average, what they share counted once; None takes all.
        queue_s: seconds of prefill in front.
        ejected: True if it may not be chosen.
        lifecycle: its stage by an operator's word.
        blocks: blocks of prompts it is believed to hold.
        newest_blocks: hashes of those used last, in hexadecimal, latest first.
    """

    address: str
    pool: str
    models: tuple[str, ...] = ()
    learnt: bool = False
    kv_tokens: int | None = None
    prefill_rate: float | None = None
    ranks: int = 1
    learnt_rate: float | None = None
    learnt_from: str | None = None
    labels: Mapping[str, str] = {}
    caps: Caps = NO_CAPS
    in_flight: int = 0
    tokens_in_flight: int = 0
    tokens_pinned: int | None = None
    queue_s: float = 0.0
    ejected: bool = False
    lifecycle: Stage = Stage.ACTIVE
    blocks: int = 0
    newest_blocks: tuple[str, ...] = ()


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What the next decision depends on.

    Attributes:
        format: the notation's name.
        version: of the kvpicker that wrote it.
        config: the configuration in force.
        sole_model: the base model, if only one is served.
        expectations: what is expected of answers where no served model is named.
        model_expectations: the same of each model.
        attention: learnt attention length of each pool, in tokens.
        endpoints: every endpoint.
    """

    format: Literal["kvpicker-state/1"]
    version: str
    config: dict[str, Any]
    sole_model: str | None
    expectations: Expectation
    model_expectations: dict[str, Expectation]
    attention: dict[str, float]
    endpoints: tuple[EndpointState, ...]


class Parts(Protocol):
    """The parts of the decision that hold state."""

    @property
    def registry(self) -> Registry:
        """The endpoints."""

    @property
    def ledger(self) -> Ledger:
        """Work in flight."""

    @property
    def index(self) -> ObservedIndex:
        """Who holds which prefix."""

    @property
    def health(self) -> HealthMonitor:
        """Which endpoints may be chosen."""

    @property
    def lifecycle(self) -> Lifecycle:
        """Which endpoints an operator has taken out."""

    @property
    def sleepers(self) -> Sleepers:
        """Whose engines sleep."""

    @property
    def rates(self) -> RateLearner:
        """How fast endpoints prefill."""

    @property
    def expectations(self) -> Expectations:
        """How long answers will be."""

    def follow(self, change: Change) -> None:
        """Give state to endpoints that came and take it from those that went."""


def take(parts: Parts, config: dict[str, Any], version: str, now: float, blocks: int) -> State:
    """Write the state down.

    Args:
        parts: what serves; left as it is.
        config: the configuration in force.
        version: of this kvpicker.
        now: monotonic seconds.
        blocks: blocks of the index at most, shared equally by the endpoints.
    """
    snapshot = parts.registry.snapshot
    share = blocks // max(len(snapshot.endpoints), 1)
    learnt = {endpoint.address for endpoint in snapshot.undeclared}
    return State(
        format=FORMAT,
        version=version,
        config=config,
        sole_model=snapshot.sole_model,
        expectations=parts.expectations.unnamed,
        model_expectations=parts.expectations.models,
        attention={pool: length for pool in snapshot.by_pool if (length := parts.rates.attention(pool))},
        endpoints=tuple(
            _endpoint(parts, endpoint, endpoint.address in learnt, now, share) for endpoint in snapshot.endpoints
        ),
    )


def _endpoint(parts: Parts, endpoint: Endpoint, learnt: bool, now: float, share: int) -> EndpointState:
    slot = endpoint.slot
    load, source = parts.ledger.load(slot), parts.rates.source(slot)
    held = parts.index.newest(slot, parts.index.blocks(slot))
    return EndpointState(
        address=endpoint.address,
        pool=endpoint.pool,
        models=tuple(sorted(endpoint.models)),
        learnt=learnt,
        kv_tokens=endpoint.kv_tokens,
        prefill_rate=endpoint.prefill_rate,
        ranks=endpoint.ranks,
        learnt_rate=parts.rates.rate(slot),
        learnt_from=None if source is None else source.name,
        labels=endpoint.labels,
        caps=endpoint.caps,
        in_flight=load.in_flight,
        tokens_in_flight=load.tokens,
        tokens_pinned=load.pinned,
        queue_s=max(load.busy_until - now, 0.0),
        ejected=not parts.health.may_serve(slot, now),
        lifecycle=parts.lifecycle.stage(slot),
        blocks=len(held),
        newest_blocks=tuple(f"{block:016x}" for block in held[:share]),
    )


def put_back(state: State, parts: Parts, pools: Mapping[str, frozenset[str]], now: float) -> None:
    """Put a state into fresh parts.

    Args:
        state: what was written down; time has stood still since.
        parts: new and empty.
        pools: the models of each pool that is configured.
        now: monotonic seconds.

    Raises:
        ValueError: a hash in it is none.
        KeyError: rates are learnt in a way that is not known here.
    """
    parts.expectations.assume(state.expectations, state.model_expectations)
    for pool, length in state.attention.items():
        parts.rates.assume_attention(pool, length)
    by_pool: dict[str, list[EndpointState]] = {name: [] for name in pools}
    for known in state.endpoints:
        by_pool.setdefault(known.pool, []).append(known)
    for name, members in by_pool.items():
        parts.follow(parts.registry.replace(name, map(_spec, members), pools.get(name, frozenset())))
    for known in state.endpoints:
        _put_back(known, state.sole_model, parts, now)


def _spec(known: EndpointState) -> EndpointSpec:
    models = frozenset[str]() if known.learnt else frozenset(known.models)
    return EndpointSpec(
        address=known.address,
        models=models,
        kv_tokens=known.kv_tokens,
        prefill_rate=known.prefill_rate,
        ranks=known.ranks,
        labels=known.labels,
        caps=known.caps,
    )


def _put_back(known: EndpointState, sole_model: str | None, parts: Parts, now: float) -> None:
    endpoint = parts.registry.snapshot.by_address[known.address]
    slot, models = endpoint.slot, frozenset(known.models)
    if known.learnt and models:
        secondary = models - {sole_model} if sole_model in models else frozenset[str]()
        parts.registry.learn(known.address, endpoint.generation, models, secondary)
    load = parts.ledger.load(slot)
    load.in_flight, load.tokens, load.busy_until = known.in_flight, known.tokens_in_flight, now + known.queue_s
    if load.ranked is not None:
        load.ranked.drained_at = load.busy_until
    load.later = 0 if known.tokens_pinned is None else known.tokens_in_flight - known.tokens_pinned
    if known.learnt_rate is not None and known.learnt_from is not None:
        parts.rates.assume(slot, known.learnt_rate, RateSource[known.learnt_from])
    if known.ejected:
        parts.health.note(endpoint, Ending.CONNECT_FAILURE, now)
    if known.lifecycle is Stage.ASLEEP:
        parts.sleepers.asleep(endpoint, SleepLevel.UNKNOWN, Witness.PROBE, now)
    elif known.lifecycle is not Stage.ACTIVE:
        parts.lifecycle.cordon(endpoint)
    chain: list[BlockHash] = [int(text, 16) for text in known.newest_blocks]
    parts.index.add(slot, _BOUNDLESS)
    parts.index.learn(slot, chain, 0)
