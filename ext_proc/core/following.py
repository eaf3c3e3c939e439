"""What is kept per endpoint, in step with which endpoints there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ext_proc.core.ledger import Ledger
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Change
from ext_proc.core.prefix_index import ObservedIndex


class Memory(Protocol):
    """Remembers something of endpoints by slot, from the first time it hears of one."""

    def remove(self, slot: int) -> None:
        """Forget a slot; an unknown one is no error."""


class Greeter(Protocol):
    """Wants to hear of endpoints that come."""

    def joined(self, endpoints: Iterable[Endpoint]) -> None:
        """Take note of endpoints that came."""


def follow(
    change: Change,
    *,
    ledger: Ledger,
    index: ObservedIndex,
    memories: Iterable[Memory] = (),
    greeters: Iterable[Greeter] = (),
) -> None:
    """Give state to endpoints that came and take it from those that went."""
    for endpoint in change.removed:
        ledger.remove(endpoint.slot)
        index.remove(endpoint.slot)
        for memory in memories:
            memory.remove(endpoint.slot)
    for endpoint in change.added:
        ledger.add(endpoint.slot)
    for greeter in greeters:
        greeter.joined(change.added)
    for endpoint in (*change.added, *change.updated):
        ledger.serve(endpoint.slot, endpoint.ranks)
        index.add(endpoint.slot, endpoint.kv_tokens)
