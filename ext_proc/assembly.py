"""Makes the parts of the decision from a configuration."""

from __future__ import annotations

import datetime as dt
import os
import random
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ext_proc import admitting
from ext_proc.config import Config, StrategyConfig, load, located, parse_endpoints
from ext_proc.core.addresses import network
from ext_proc.core.admission import Admission
from ext_proc.core.capacity_gate import CapacityGate
from ext_proc.core.errors import ConfigError
from ext_proc.core.exchange_policy import ExchangePolicy, Objectives
from ext_proc.core.expectations import Expectations
from ext_proc.core.feedback import Feedback
from ext_proc.core.following import follow
from ext_proc.core.hashing import BlockSizes, Hasher, PromptHasher
from ext_proc.core.health import HealthMonitor
from ext_proc.core.ledger import Ledger
from ext_proc.core.lifecycle import Lifecycle
from ext_proc.core.observer import Observer
from ext_proc.core.picker import EndpointPicker
from ext_proc.core.pool import Change, Registry
from ext_proc.core.prefix_index import ObservedIndex, PrefixIndex
from ext_proc.core.rates import RateLearner
from ext_proc.core.resident_index import MixedIndex, ResidentIndex
from ext_proc.core.signals import Signals
from ext_proc.core.sleepers import Sleepers
from ext_proc.core.strangers import Strangers
from ext_proc.core.strategies import Strategy
from ext_proc.core.token_hits import TokenHits, TokenSource
from ext_proc.core.wishes import names_of
from ext_proc.ops.admin_token import read_token
from ext_proc.plugins import load_strategy
from ext_proc.sources import certificates
from ext_proc.sources.api_keys import read_keys
from ext_proc.sources.certificate_dates import validity
from ext_proc.sources.eds import EdsWriter
from ext_proc.sources.files import FileWatcher
from ext_proc.sources.kubernetes import access as clusters
from ext_proc.sources.kv_publishers import check_installed
from ext_proc.token_pools import local_tokenizer
from ext_proc.wire.codec import Encoder


class Core(msgspec.Struct, frozen=True):
    """The parts of the decision, made for one configuration."""

    registry: Registry
    ledger: Ledger
    index: ObservedIndex
    health: HealthMonitor
    rates: RateLearner
    expectations: Expectations
    picker: EndpointPicker
    feedback: Feedback
    signals: Signals
    resident: ResidentIndex
    token_hits: TokenHits
    capacity: CapacityGate
    admission: Admission
    lifecycle: Lifecycle
    sleepers: Sleepers

    def follow(self, change: Change) -> None:
        """Give state to endpoints that came and take it from those that went."""
        self.lifecycle.follow(change)
        memories = (self.health, self.rates, self.signals, self.resident, self.token_hits, self.sleepers)
        follow(change, ledger=self.ledger, index=self.index, memories=memories, greeters=(self.health,))
        self.lifecycle.welcome(change)


def build_core(
    config: Config,
    observer: Observer,
    *,
    hasher: Hasher | None = None,
    ledger: Ledger | None = None,
    index: ObservedIndex | None = None,
    resident: ResidentIndex | None = None,
) -> Core:
    """Make the parts of the decision; the registry is still empty.

    Args:
        config: what they are made from.
        observer: hears what happens.
        hasher: in place of the one for text, where prompts are no text.
        ledger: in place of the usual one.
        index: in place of the usual one.
        resident: what engines report of their caches; goes before the index where there is any.

    Raises:
        ConfigError: a strategy is not installed or its parameters are wrong.
    """
    hasher, ledger, index, known, reports = _memories(config, hasher, ledger, index, resident)
    registry, token_hits = Registry(config.default_pool), TokenHits(reports)
    health, strangers = HealthMonitor(config.health.policy, observer), Strangers(config.leases.renewal_timeout_s)
    rates, expectations = RateLearner(), Expectations()
    capacity, sleepers = CapacityGate(registry, ledger, expectations), Sleepers()
    admission = _admission(config, registry, ledger, expectations, capacity, observer, health, sleepers)
    lifecycle = _lifecycle(ledger, strangers, sleepers, health)
    picker = EndpointPicker(
        registry=registry,
        ledger=ledger,
        index=known,
        health=health,
        rates=rates,
        expectations=expectations,
        hasher=hasher,
        strategies=build_strategies(config),
        observer=observer,
        instance=secrets.token_hex(4),
        fallbacks=config.envoy.named - 1,
        model_strategies=build_model_strategies(config),
        token_hits=token_hits,
        gates=(lifecycle, sleepers, health, capacity),
    )
    feedback = Feedback(
        registry=registry,
        ledger=ledger,
        index=known,
        health=health,
        rates=rates,
        expectations=expectations,
        picker=picker,
        observer=observer,
        admission=admission,
        strangers=strangers,
    )
    signals = picker.knowledge.engines = Signals(config.scrape.fresh_s)
    parts = (registry, ledger, index, health, rates, expectations, picker, feedback, signals, reports, token_hits)
    return Core(*parts, capacity, admission, lifecycle, sleepers)


def _memories(
    config: Config,
    hasher: Hasher | None,
    ledger: Ledger | None,
    index: ObservedIndex | None,
    resident: ResidentIndex | None,
) -> tuple[Hasher, Ledger, ObservedIndex, PrefixIndex, ResidentIndex]:
    """Make what is remembered of requests, where nothing is given in its place, and join both indexes."""
    sizes, leases = config.index, config.leases
    hasher = hasher or PromptHasher(block_sizes(sizes.first_block_bytes, sizes.last_block_bytes))
    if ledger is None:
        ledger = Ledger(
            hasher.tokens, timeout=leases.timeout_s, renewal_timeout=leases.renewal_timeout_s, limit=leases.max_leases
        )
    if index is None:
        index = ObservedIndex(hasher.tokens, max_blocks=sizes.max_blocks)
    if resident is None:
        return hasher, ledger, index, index, ResidentIndex()
    return hasher, ledger, index, MixedIndex(index, resident), resident


def _admission(
    config: Config,
    registry: Registry,
    ledger: Ledger,
    expectations: Expectations,
    capacity: CapacityGate,
    observer: Observer,
    health: HealthMonitor,
    sleepers: Sleepers,
) -> Admission:
    """Make what lets requests wait, with the caps and limits of the configuration."""
    spread = random.Random()  # noqa: S311  of what Retry-After says
    made = Admission(registry, ledger, expectations, capacity, observer, spread, health.is_proven, sleepers)
    admitting.configure(config, capacity, made)
    return made


def _lifecycle(ledger: Ledger, strangers: Strangers, sleepers: Sleepers, health: HealthMonitor) -> Lifecycle:
    """Make what knows who is taken out, and tell those who must not count or wake them."""
    lifecycle = Lifecycle(ledger.load, strangers.at, sleepers)
    sleepers.barred = lambda: lifecycle.out
    health.miss(lambda: lifecycle.out | sleepers.slots)
    return lifecycle


def block_sizes(first: int, last: int) -> BlockSizes:
    """Let blocks grow from `first` to `last` bytes.

    Up to a `last` of 128 times `first`, a block is never more than half of what stands before it.
    """
    steps = ((first, 4 * first), (min(2 * first, last), 32 * first), (min(4 * first, last), 256 * first))
    return BlockSizes(steps, last)


def build_strategies(config: Config) -> dict[str, tuple[str, Strategy]]:
    """Make the strategy of each pool.

    Raises:
        ConfigError: a strategy is not installed or its parameters are wrong.
    """
    return {name: _strategy(pool.strategy, f"pools.{name}") for name, pool in config.pools.items()}


def build_model_strategies(config: Config) -> dict[str, tuple[str, Strategy]]:
    """Make the strategies of models that have one of their own.

    Raises:
        ConfigError: a strategy is not installed or its parameters are wrong.
    """
    return {name: _strategy(model.strategy, f"models.{name}") for name, model in config.models.items()}


def _strategy(chosen: StrategyConfig, owner: str) -> tuple[str, Strategy]:
    return chosen.name, load_strategy(chosen.name, chosen.parameters, f"{owner}.strategy")


def exchange_policy(
    config: Config,
    tokens: TokenSource | None = None,
    admission: Admission | None = None,
    objectives: Objectives | None = None,
) -> ExchangePolicy:
    """Take from the configuration what every exchange needs.

    Args:
        config: the configuration.
        tokens: knows the exact tokens of requests.
        admission: lets requests wait for their turn.
        objectives: priorities that a cluster knows.
    """
    return ExchangePolicy(
        refuse_on_failure=config.failure_mode == "refuse",
        inspect_bytes=config.prompts.inspect_bytes,
        collect_bytes=config.prompts.collect_bytes,
        collect_s=config.prompts.collect_s,
        show_decisions=config.explain.header,
        networks=tuple(map(network, config.explain.networks)),
        tokens=tokens,
        admission=admission,
        extension=admitting.extension(config),
        named=config.envoy.named_in_duplex,
        names=names_of(
            config.tenants.header,
            config.tenants.priority_header,
            rewrite=config.gateway.model_rewrite,
            targets=config.gateway.targets,
        ),
        priorities=config.tenants.priorities,
        objectives=objectives if config.gateway.objectives else None,
    )


def message_encoder(config: Config) -> Encoder:
    """Make what writes answers."""
    return Encoder(config.envoy.named, config.envoy.named_in_duplex)


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
    check_config(config, path)
    return config


def check_config(config: Config, path: Path | None) -> None:
    """Check all that a configuration names, without running anything.

    Args:
        config: what to check.
        path: the file it came from, for messages; None if there is none.

    Raises:
        ConfigError: something in it cannot be used.
    """
    with located(path):
        build_strategies(config)
        scrape_token(config)
        read_keys(config)
        read_token(config.admin)
        build_model_strategies(config)
        check_installed(config)
        clusters.check_installed(config)
        certificates.check(config.tls)
        if config.envoy.endpoints_file is not None:
            EdsWriter(config.envoy.endpoints_file, config.envoy.cluster)
    for name, pool in config.pools.items():
        tokenizer = local_tokenizer(name, config)
        if tokenizer is not None:
            tokenizer.close()
        if pool.endpoints_file is not None:
            check_endpoints(name, Path(pool.endpoints_file))


def notes(config: Config) -> Iterator[str]:
    """Give what is no mistake, and may be one, of a configuration that was checked."""
    for name, pool in config.pools.items():
        if pool.endpoints_file is not None and not Path(pool.endpoints_file).exists():
            yield f"pools.{name}.endpoints_file: {pool.endpoints_file} is not there yet"
    if config.tls is not None and config.tls.certificate is not None:
        valid = validity(Path(config.tls.certificate).read_bytes())
        if valid is not None and valid.end < dt.datetime.now(dt.UTC):
            yield f"tls.certificate: {config.tls.certificate} is not valid any more, since {valid.end:%Y-%m-%d}"


def check_endpoints(pool: str, path: Path) -> None:
    """Read an endpoints file as the watcher would; one that is not there yet is no error.

    Raises:
        ConfigError: it cannot be used.
    """
    problems: list[Exception] = []
    if path.exists():
        FileWatcher(path, parse_endpoints, lambda _: None, problems.append).check()
    for problem in problems:
        raise ConfigError(f"{problem} (endpoints of pool {pool})")
