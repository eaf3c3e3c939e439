"""Lets requests wait for their turn: caps and limits from the configuration, and a look whether anybody's turn came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ext_proc.background import Failed, follow_up
from ext_proc.config import Config
from ext_proc.config.overload import MARGIN_S, USUAL_WAIT_S, longest_wait
from ext_proc.core.admission import Admission
from ext_proc.core.capacity_gate import CapacityGate
from ext_proc.core.waiting_room import Fill, Limits

LOOK_INTERVAL_S = 0.05
"""Ends of requests are heard of at once; this is for all else that frees a place: health, drains, new endpoints."""


def configure(config: Config, gate: CapacityGate, admission: Admission) -> None:
    """Put the caps and limits of a configuration into effect."""
    gate.configure({name: pool.caps.caps for name, pool in config.pools.items()})
    longest = longest_wait(config.envoy.message_timeout_s, config.envoy.max_message_timeout_s)
    admission.configure(
        {
            name: Limits(
                requests=pool.queue.max_requests,
                bytes=pool.queue.max_bytes,
                wait=min(USUAL_WAIT_S, longest) if pool.queue.wait_s is None else pool.queue.wait_s,
                from_zero=pool.queue.scale_from_zero_s,
                wake=pool.queue.wake_s,
                proof=pool.kubernetes is None,  # a cluster lists who is ready
                models=frozenset(pool.models),
                promises=pool.queue.max_promises,
                tenants=pool.queue.max_tenants,
            )
            for name, pool in config.pools.items()
        }
    )


def extension(config: Config) -> float:
    """Return the seconds that Envoy is asked to be patient beyond a wait; 0 for an Envoy that cannot be asked."""
    return MARGIN_S if config.envoy.max_message_timeout_s > MARGIN_S else 0.0


async def look(
    admission: Admission, clock: Callable[[], float], failed: Failed, still_wait: Callable[[], None] = lambda: None
) -> None:
    """Let whoever waits try again and again, for ever.

    Args:
        admission: who waits.
        clock: monotonic seconds.
        failed: hears of faults.
        still_wait: called whenever some have tried in vain.
    """
    waits = asyncio.Event()
    admission.on_wait = waits.set

    def dispatch() -> None:
        try:
            admission.dispatch(clock())
        finally:
            if len(admission):
                waits.set()
                still_wait()

    if len(admission):
        waits.set()
    await follow_up(waits, LOOK_INTERVAL_S, failed, "admission", dispatch)


def ratios(fills: dict[str, Fill]) -> dict[str, float]:
    """Return how full the structures of waiting rooms are, by name; of several pools the fullest counts."""
    made = {"queue_requests": 0.0, "queue_bytes": 0.0, "promises": 0.0}
    for fill in fills.values():
        parts = (
            ("queue_requests", fill.requests, fill.limits.requests),
            ("queue_bytes", fill.bytes, fill.limits.bytes),
            ("promises", fill.promises, fill.limits.promises),
        )
        for name, used, limit in parts:
            made[name] = max(made[name], used / limit if limit else 0.0)
    return made
