"""What is kept per endpoint, in step with which endpoints there are."""

from __future__ import annotations

from ext_proc.core.health import HealthMonitor
from ext_proc.core.ledger import Ledger
from ext_proc.core.pool import Change
from ext_proc.core.prefix_index import ObservedIndex


def follow(change: Change, *, ledger: Ledger, index: ObservedIndex, health: HealthMonitor) -> None:
    """Give state to endpoints that came and take it from those that went."""
    for endpoint in change.removed:
        ledger.remove(endpoint.slot)
        index.remove(endpoint.slot)
        health.remove(endpoint.slot)
    for endpoint in change.added:
        ledger.add(endpoint.slot)
    for endpoint in (*change.added, *change.updated):
        index.add(endpoint.slot, endpoint.kv_tokens)
