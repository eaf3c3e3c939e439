"""Parts of a kvpicker for simulations, made as for serving, without a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ext_proc.core.feedback import Feedback
from ext_proc.core.following import follow
from ext_proc.core.health import HealthMonitor
from ext_proc.core.ledger import Ledger
from ext_proc.core.picker import EndpointPicker
from ext_proc.core.pool import Registry
from ext_proc.core.prefix_index import ObservedIndex
from ext_proc.core.strategies import Strategy
from ext_proc.sim.fleet.conditions import View
from ext_proc.sim.fleet.kvpickers import POOL, Parts, Site, Wiring
from ext_proc.sim.fleet.oracle import OracleIndex, OracleLedger
from tests.unit.core.builders import Notes


class Resident(ObservedIndex):
    """KV events as an index, exact and without bounds."""

    def __init__(self) -> None:
        super().__init__(int)
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

    def depths(self, chain: Sequence[int], slots: Sequence[int]) -> list[int]:
        """Return how many leading blocks each slot holds."""
        found = []
        for slot in slots:
            held = self.held.get(slot, set())
            found.append(next((place for place, block in enumerate(chain) if block not in held), len(chain)))
        return found

    def learn(self, slot: int, chain: Sequence[int], depth: int | None = None) -> int:
        """Learn nothing."""
        return 0


class Made(msgspec.Struct):
    """What a wiring made for one kvpicker."""

    parts: Parts
    ledger: Ledger
    notes: Notes


def wiring(make: Callable[[Site], Strategy], kept: list[Made] | None = None) -> Wiring:
    """Return a wiring around a strategy; the parts it makes are kept in the list."""

    def wire(site: Site) -> Parts:
        strategy = make(site)
        registry, observer = Registry(), Notes()
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
            kept.append(Made(parts, ledger, observer))
        return parts

    return wire
