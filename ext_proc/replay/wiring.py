"""Makes the kvpickers of a simulation: the same parts as for serving, under a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ext_proc.assembly import Core, build_core
from ext_proc.config import Config
from ext_proc.config.settings import PoolConfig
from ext_proc.core import rates
from ext_proc.core.observer import NoObserver, Observer
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.ops.text import printable
from ext_proc.replay.contestants import Contestant
from ext_proc.sim.fleet.conditions import View
from ext_proc.sim.fleet.kvpickers import POOL, Parts, Scrape, Site
from ext_proc.sim.fleet.oracle import OracleIndex, OracleLedger

Scraped: TypeAlias = Callable[[int, Scrape, float], None]


class Failures(NoObserver):
    """Counts how often a strategy failed, so that another decided in its place.

    Attributes:
        count: how often.
        first: what it was the first time; empty if it never failed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def strategy_failed(self, strategy: str, error: BaseException) -> None:  # noqa: ARG002  there is but one
        """Count it."""
        self.count += 1
        self.first = self.first or printable(f"{type(error).__name__}: {error}")


def wire(contestant: Contestant, site: Site, observer: Observer | None = None) -> Parts:
    """Make one kvpicker whose pool has the contestant's strategy.

    Args:
        contestant: the strategy and its view.
        site: what the kvpicker is made from.
        observer: hears what happens; None for nobody.

    Raises:
        ConfigError: the strategy cannot be made.
    """
    config = Config(pools={POOL: PoolConfig()})
    knows_all = contestant.view is View.ORACLE
    resident = ResidentIndex() if contestant.view is View.EVENTS else None
    core = build_core(
        config,
        observer or NoObserver(),
        hasher=site.hasher,
        ledger=OracleLedger(site.engines, site.clock) if knows_all else None,
        index=OracleIndex(site.engines) if knows_all else None,
        resident=resident,
    )
    strategy = contestant.strategy(site)
    core.picker.instance = site.instance
    core.picker.strategies = {POOL: (contestant.name, strategy)}
    change = core.registry.replace(POOL, site.specs)
    core.follow(change)
    if resident is not None:
        for endpoint in change.added:
            resident.add(endpoint.slot)
    return Parts(
        registry=core.registry,
        picker=core.picker,
        feedback=core.feedback,
        resident=resident,
        scraped=_scraped(core, getattr(strategy, "scraped", None)),
    )


def _scraped(core: Core, strategy: Scraped | None) -> Scraped:
    """Let the feedback, and a strategy that looks at scrapes, hear of them."""
    before: dict[int, Scrape] = {}
    endpoints = {endpoint.slot: endpoint for endpoint in core.registry.snapshot.endpoints}

    def hear(slot: int, scrape: Scrape, now: float) -> None:
        last = before.get(slot)
        before[slot] = scrape
        if last is not None and scrape.ttft_count >= last.ttft_count:
            seconds, count = scrape.ttft_sum - last.ttft_sum, scrape.ttft_count - last.ttft_count
            added = rates.Scrape(seconds, count, scrape.waiting, scrape.running)
            core.feedback.scraped(endpoints[slot], added, now)
        if strategy is not None:
            strategy(slot, scrape, now)

    return hear
