"""Parts of a kvpicker for simulations, made as for serving, without a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ext_proc.core.expectations import Expectations
from ext_proc.core.feedback import Feedback
from ext_proc.core.following import follow
from ext_proc.core.health import HealthMonitor
from ext_proc.core.ledger import Ledger
from ext_proc.core.picker import EndpointPicker
from ext_proc.core.pool import Registry
from ext_proc.core.prefix_index import ObservedIndex, PrefixIndex
from ext_proc.core.rates import RateLearner
from ext_proc.core.resident_index import MixedIndex, ResidentIndex
from ext_proc.core.strategies import Strategy
from ext_proc.sim.fleet.conditions import View
from ext_proc.sim.fleet.kvpickers import POOL, Parts, Site, Wiring
from ext_proc.sim.fleet.oracle import OracleIndex, OracleLedger
from tests.unit.core.builders import Notes


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
        observed = ObservedIndex(site.hasher.tokens)
        resident = ResidentIndex() if site.conditions.view is View.EVENTS else None
        index: PrefixIndex = observed if resident is None else MixedIndex(observed, resident)
        if site.conditions.view is View.ORACLE:
            index = OracleIndex(site.engines)
        health = HealthMonitor()
        change = registry.replace(POOL, site.specs)
        rates = RateLearner()
        follow(change, ledger=ledger, index=observed, memories=(health, rates), greeters=(health,))
        for endpoint in change.added if resident is not None else ():
            resident.add(endpoint.slot)
        common: dict[str, Any] = {
            "registry": registry,
            "ledger": ledger,
            "index": index,
            "health": health,
            "rates": rates,
            "expectations": Expectations(),
            "observer": observer,
        }
        picker = EndpointPicker(
            **common, hasher=site.hasher, strategies={POOL: ("tried", strategy)}, instance=site.instance
        )
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
