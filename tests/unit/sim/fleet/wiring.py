"""Parts of a kvpicker for simulations, made as for serving, without a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ext_proc.core.feedback import Feedback
from ext_proc.core.following import follow
from ext_proc.core.health import HealthMonitor
from ext_proc.core.ledger import Ledger
from ext_proc.core.observer import NoObserver
from ext_proc.core.picker import EndpointPicker
from ext_proc.core.pool import Registry
from ext_proc.core.prefix_index import ObservedIndex
from ext_proc.core.strategies import Strategy
from ext_proc.sim.fleet.conditions import View
from ext_proc.sim.fleet.kvpickers import POOL, Parts, Site, Wiring
from ext_proc.sim.fleet.oracle import OracleIndex, OracleLedger


class Resident(ObservedIndex):
    """KV events as an index, exact and without bounds."""

    def __init__(self) -> None:
        super().__init__(lambda _: 1)
        self.held: dict[int, set[int]] = {}

    def stored(self, slot: int, blocks: Sequence[int]) -> None:
        """Note blocks."""
        self.held.setdefault(slot, set()).update(blocks)

    def removed(self, slot: int, blocks: Sequence[int]) -> None:
        """Drop blocks."""
        self.held.setdefault(slot, set()).difference_update(blocks)

    def cleared(self, slot: int) -> None:
        """Drop all blocks."""
        self.held.pop(slot, None)

    def match(self, chain: Sequence[int], measure: Callable[[int], int] = int) -> dict[int, int]:
        """Return how much each slot holds."""
        depths = {}
        for slot, held in self.held.items():
            depth = next((place for place, block in enumerate(chain) if block not in held), len(chain))
            if depth:
                depths[slot] = measure(depth)
        return depths

    def learn(self, slot: int, chain: Sequence[int]) -> int:
        """Learn nothing."""
        return len(chain)


def wiring(make: Callable[[Site], Strategy], kept: list[Parts] | None = None) -> Wiring:
    """Return a wiring around a strategy; the parts it makes are kept in the list."""

    def wire(site: Site) -> Parts:
        strategy = make(site)
        registry, observer = Registry(), NoObserver()
        ledger = OracleLedger(site.engines, site.clock) if site.conditions.view is View.ORACLE else Ledger()
        resident = Resident() if site.conditions.view is View.EVENTS else None
        index = ObservedIndex(site.hasher.tokens) if resident is None else resident
        if site.conditions.view is View.ORACLE:
            index = OracleIndex(site.engines)
        health = HealthMonitor()
        common = {"registry": registry, "ledger": ledger, "index": index, "health": health, "observer": observer}
        picker = EndpointPicker(
            **common, hasher=site.hasher, strategies={POOL: ("tried", strategy)}, instance=site.instance
        )
        follow(registry.replace(POOL, site.specs), ledger=ledger, index=index, health=health)
        parts = Parts(
            registry=registry,
            picker=picker,
            feedback=Feedback(**common, picker=picker),
            resident=resident,
            scraped=getattr(strategy, "scraped", None),
        )
        if kept is not None:
            kept.append(parts)
        return parts

    return wire
