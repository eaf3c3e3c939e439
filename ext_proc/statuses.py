"""Gathers what is known of endpoints: for people, for metrics, and for Envoy's own choice among them."""

from __future__ import annotations

from collections.abc import Callable

from ext_proc.assembly import Core
from ext_proc.core.model import Decision, Endpoint
from ext_proc.ops.collector import EndpointStatus
from ext_proc.sources.eds import Offer, offered
from ext_proc.sources.scrape import ScrapeStatus


def endpoint_status(
    core: Core, endpoint: Endpoint, now: float, reputation: float, scrape: ScrapeStatus
) -> EndpointStatus:
    """Gather what is known of an endpoint."""
    load, source = core.ledger.load(endpoint.slot), core.rates.source(endpoint.slot)
    health, sleep = core.health.status(endpoint.slot, now), core.sleepers.of(endpoint.slot)
    return EndpointStatus(
        endpoint=endpoint,
        health=health,
        sleep=sleep,
        asleep_for=None if sleep is None else max(now - sleep.since, 0.0),
        health_age=None if health.since is None else max(now - health.since, 0.0),
        health_left=None if health.until is None else max(health.until - now, 0.0),
        in_flight=load.in_flight,
        tokens_in_flight=load.tokens,
        caps=core.capacity.caps(endpoint.slot),
        queue=max(load.busy_until - now, 0.0),
        index_blocks=core.index.blocks(endpoint.slot),
        index_tokens=core.index.capacity(endpoint.slot),
        prefill_rate=core.rates.rate(endpoint.slot),
        rate_source="" if source is None else source.name.lower(),
        engine=scrape.engine,
        metrics_problem=scrape.problem,
        signals=core.signals.of(endpoint.slot, now),
        signals_age=core.signals.age(endpoint.slot, now),
        interval=core.signals.interval(endpoint.slot),
        reputation=reputation,
    )


def endpoint_statuses(core: Core, now: float, read: Callable[[Endpoint], ScrapeStatus]) -> list[EndpointStatus]:
    """Gather what is known of all endpoints; `read` tells how reading their metrics goes."""
    scores = core.picker.knowledge.reputations.scores
    pools = core.registry.snapshot.by_pool.values()
    reputations = {e.slot: score for pool in pools for e, score in zip(pool, scores(pool, now), strict=True)}
    return [endpoint_status(core, e, now, reputations[e.slot], read(e)) for e in core.registry.snapshot.endpoints]


def endpoint_offer(core: Core, endpoint: Endpoint, now: float) -> Offer:
    """Tell how an endpoint is offered to Envoy's fallback policy."""
    health = core.health.status(endpoint.slot, now)
    return offered(health.state, core.lifecycle.stage(endpoint.slot), health.share)


def pace(core: Core, decision: Decision, address: str) -> float:
    """Return the seconds that an output token takes: as the engine says, else the usual stay over the usual length."""
    endpoint = core.registry.snapshot.by_address.get(address)
    interval = None if endpoint is None else core.signals.interval(endpoint.slot)
    said = None if interval is None or interval.itl is None else interval.itl.mean
    if said is not None:
        return said
    expected = core.expectations.of(decision.request.model)
    return expected.residence / max(expected.output, 1.0)
