"""Makes the parts of the decision from a configuration, and warms them up."""

from __future__ import annotations

import gc
import os
import random
import secrets
import time
from pathlib import Path

import msgspec

from ext_proc.config import Config, load, parse, parse_endpoints
from ext_proc.core.errors import ConfigError
from ext_proc.core.exchange import BodyMode, Exchange, ExchangePolicy
from ext_proc.core.feedback import Feedback
from ext_proc.core.following import follow
from ext_proc.core.hashing import BlockSizes, PromptHasher
from ext_proc.core.health import HealthMonitor, HealthPolicy
from ext_proc.core.ledger import Ledger
from ext_proc.core.observer import NoObserver, Observer
from ext_proc.core.picker import EndpointPicker
from ext_proc.core.pool import Registry
from ext_proc.core.prefix_index import ObservedIndex
from ext_proc.core.signals import Signals
from ext_proc.core.strategies import Strategy
from ext_proc.plugins import load_strategy
from ext_proc.sources.eds import EdsWriter
from ext_proc.wire._pb.core_pb2 import HeaderValue
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest
from ext_proc.wire.codec import Encoder
from ext_proc.wire.ext_proc import ExtProcSession

_WARM_UP_ROUNDS = 50

_GC_THRESHOLDS = (50_000, 20, 100)
"""A decision leaves no cycles; with the usual 700 the collector runs every few dozen requests and finds nothing."""


class Core(msgspec.Struct, frozen=True):
    """The parts of the decision, made for one configuration."""

    registry: Registry
    ledger: Ledger
    index: ObservedIndex
    health: HealthMonitor
    picker: EndpointPicker
    feedback: Feedback
    signals: Signals


def build_core(config: Config, observer: Observer) -> Core:
    """Make the parts of the decision; the registry is still empty.

    Raises:
        ConfigError: a strategy is not installed or its parameters are wrong.
    """
    sizes = config.index
    hasher = PromptHasher(block_sizes(sizes.first_block_bytes, sizes.last_block_bytes))
    registry = Registry(config.default_pool)
    ledger = Ledger(timeout=config.leases.timeout_s, renewal_timeout=config.leases.renewal_timeout_s)
    index = ObservedIndex(hasher.tokens, max_blocks=sizes.max_blocks)
    policy = HealthPolicy(config.health.failures, config.health.ejection_s, config.health.max_ejection_s)
    health = HealthMonitor(policy, observer)
    picker = EndpointPicker(
        registry=registry,
        ledger=ledger,
        index=index,
        health=health,
        hasher=hasher,
        strategies=build_strategies(config),
        observer=observer,
        instance=secrets.token_hex(4),
        fallbacks=config.envoy.fallbacks,
    )
    feedback = Feedback(registry=registry, ledger=ledger, index=index, health=health, picker=picker, observer=observer)
    return Core(registry, ledger, index, health, picker, feedback, Signals(config.scrape.fresh_s))


def block_sizes(first: int, last: int) -> BlockSizes:
    """Let blocks grow from `first` to `last` bytes; a block is never more than half of what stands before it."""
    steps = ((first, 4 * first), (min(2 * first, last), 32 * first), (min(4 * first, last), 256 * first))
    return BlockSizes(steps, last)


def build_strategies(config: Config) -> dict[str, tuple[str, Strategy]]:
    """Make the strategy of each pool.

    Raises:
        ConfigError: a strategy is not installed or its parameters are wrong.
    """
    return {
        name: (
            pool.strategy.name,
            load_strategy(pool.strategy.name, pool.strategy.parameters, f"pools.{name}.strategy"),
        )
        for name, pool in config.pools.items()
    }


def exchange_policy(config: Config) -> ExchangePolicy:
    """Take from the configuration what every exchange needs."""
    return ExchangePolicy(config.failure_mode == "refuse", config.prompts.inspect_bytes)


def scrape_token(config: Config) -> str | None:
    """Read the token for the engines' metrics from the environment.

    Raises:
        ConfigError: the variable that is to hold it is not set.
    """
    name = config.scrape.token_env
    if name is None:
        return None
    if not os.environ.get(name):
        raise ConfigError("the environment variable that it names is not set or empty", path="scrape.token_env")
    return os.environ[name]


def check(path: Path) -> Config:
    """Load a configuration and all that it names, without running anything.

    Raises:
        ConfigError: something in it cannot be used.
    """
    config = load(path)
    build_strategies(config)
    scrape_token(config)
    if config.envoy.endpoints_file is not None:
        EdsWriter(config.envoy.endpoints_file, config.envoy.cluster)
    for name, pool in config.pools.items():
        if pool.endpoints_file is not None:
            check_endpoints(name, Path(pool.endpoints_file))
    return config


def check_endpoints(pool: str, path: Path) -> None:
    """Read an endpoints file as the watcher would; one that is not there yet is no error.

    Raises:
        ConfigError: it cannot be used.
    """
    if path.exists():
        parse_endpoints(path.read_text("utf-8-sig"), f"{path} (endpoints of pool {pool})")


def warm_up() -> None:
    """Send a few requests through throw-away parts, so that the first real one finds all code loaded.

    Then freeze what start-up allocated: the collector need not walk it again while requests wait.
    """
    config = parse("pools: {warm: {endpoints: ['192.0.2.1:1', '192.0.2.2:1'], models: [warm]}}")
    observer = NoObserver()
    core = build_core(config, observer)
    change = core.registry.replace("warm", config.pools["warm"].specs)
    follow(change, ledger=core.ledger, index=core.index, health=core.health)
    encoder, generator = Encoder(1), random.Random(0)  # noqa: S311  breaks ties
    headers, body = _warm_up_messages()
    for _ in range(_WARM_UP_ROUNDS):
        exchange = Exchange(core.picker, core.feedback, observer, ExchangePolicy(), time.monotonic, generator)
        session = ExtProcSession(exchange, encoder, observer)
        session.receive(headers)
        session.receive(body)
        session.close(delivered=False)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _warm_up_messages() -> tuple[bytes, bytes]:
    headers = ProcessingRequest()
    pairs = {":method": b"POST", ":path": b"/v1/chat/completions", "content-type": b"application/json"}
    headers.request_headers.headers.headers.extend(
        HeaderValue(key=key, raw_value=value) for key, value in pairs.items()
    )
    headers.protocol_config.request_body_mode = int(BodyMode.BUFFERED_PARTIAL)  # type: ignore[assignment]
    body = ProcessingRequest()
    content = b"warm " * 1000
    body.request_body.body = b'{"model":"warm","messages":[{"role":"user","content":"' + content + b'"}]}'
    body.request_body.end_of_stream = True
    return headers.SerializeToString(), body.SerializeToString()
