"""The state of the decision as plain data: taken from the parts that serve, put into fresh ones to explain elsewhere.

Prompts are in it as hashes of their blocks, and of those only the last used ones. Sessions and open requests are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ext_proc.core.following import follow
from ext_proc.core.health import HealthMonitor
from ext_proc.core.ledger import Ledger
from ext_proc.core.model import BlockHash, Ending, Endpoint
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.core.prefix_index import ObservedIndex

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
        prefill_rate: its prefill rate in tokens per second.
        labels: as configured.
        in_flight: requests in flight.
        tokens_in_flight: prompt and expected output tokens of those.
        queue_s: seconds of prefill in front.
        ejected: True if it may not be chosen.
        blocks: blocks of prompts it is believed to hold.
        newest_blocks: hashes of those used last, in hexadecimal, latest first.
    """

    address: str
    pool: str
    models: tuple[str, ...] = ()
    learnt: bool = False
    kv_tokens: int | None = None
    prefill_rate: float | None = None
    labels: Mapping[str, str] = {}
    in_flight: int = 0
    tokens_in_flight: int = 0
    queue_s: float = 0.0
    ejected: bool = False
    blocks: int = 0
    newest_blocks: tuple[str, ...] = ()


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the next decision depends on, but for sessions.

    Attributes:
        format: the notation's name.
        version: of the kvpicker that wrote it.
        config: the configuration in force.
        sole_model: the base model, if only one is served.
        expected_output: tokens an answer is expected to have.
        expected_residence: seconds a request is expected to stay.
        endpoints: every endpoint.
    """

    format: Literal["kvpicker-state/1"]
    version: str
    config: dict[str, Any]
    sole_model: str | None
    expected_output: float
    expected_residence: float
    endpoints: tuple[EndpointState, ...]


class Parts(msgspec.Struct, frozen=True):
    """The parts of the decision that hold state."""

    registry: Registry
    ledger: Ledger
    index: ObservedIndex
    health: HealthMonitor


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
        expected_output=parts.ledger.output,
        expected_residence=parts.ledger.residence,
        endpoints=tuple(
            _endpoint(parts, endpoint, endpoint.address in learnt, now, share) for endpoint in snapshot.endpoints
        ),
    )


def _endpoint(parts: Parts, endpoint: Endpoint, learnt: bool, now: float, share: int) -> EndpointState:
    slot = endpoint.slot
    load = parts.ledger.load(slot)
    return EndpointState(
        address=endpoint.address,
        pool=endpoint.pool,
        models=tuple(sorted(endpoint.models)),
        learnt=learnt,
        kv_tokens=endpoint.kv_tokens,
        prefill_rate=endpoint.prefill_rate,
        labels=endpoint.labels,
        in_flight=load.in_flight,
        tokens_in_flight=load.tokens,
        queue_s=max(load.busy_until - now, 0.0),
        ejected=not parts.health.may_serve(slot, now),
        blocks=parts.index.blocks(slot),
        newest_blocks=tuple(f"{block:016x}" for block in parts.index.newest(slot, share)),
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
    """
    parts.ledger.output, parts.ledger.residence = state.expected_output, state.expected_residence
    by_pool: dict[str, list[EndpointState]] = {name: [] for name in pools}
    for known in state.endpoints:
        by_pool.setdefault(known.pool, []).append(known)
    for name, members in by_pool.items():
        change = parts.registry.replace(name, map(_spec, members), pools.get(name, frozenset()))
        follow(change, ledger=parts.ledger, index=parts.index, health=parts.health)
    for known in state.endpoints:
        _put_back(known, state.sole_model, parts, now)


def _spec(known: EndpointState) -> EndpointSpec:
    models = frozenset[str]() if known.learnt else frozenset(known.models)
    return EndpointSpec(
        address=known.address,
        models=models,
        kv_tokens=known.kv_tokens,
        prefill_rate=known.prefill_rate,
        labels=known.labels,
    )


def _put_back(known: EndpointState, sole_model: str | None, parts: Parts, now: float) -> None:
    endpoint = parts.registry.snapshot.by_address[known.address]
    slot, models = endpoint.slot, frozenset(known.models)
    if known.learnt and models:
        secondary = models - {sole_model} if sole_model in models else frozenset[str]()
        parts.registry.learn(known.address, endpoint.generation, models, secondary)
    load = parts.ledger.load(slot)
    load.in_flight, load.tokens, load.busy_until = known.in_flight, known.tokens_in_flight, now + known.queue_s
    if known.ejected:
        parts.health.note(endpoint, Ending.CONNECT_FAILURE, now)
    chain: list[BlockHash] = [int(text, 16) for text in known.newest_blocks]
    parts.index.add(slot, _BOUNDLESS)
    parts.index.learn(slot, chain, 0)
