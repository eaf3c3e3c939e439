"""Runs a workload against a fleet of simulated engines in virtual time, with the picker that serves requests."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Any

import msgspec

from ext_proc.core.model import Api, BlockHash, Decision, Ending, InferenceRequest, Operation, Outcome, Usage
from ext_proc.core.pool import EndpointSpec
from ext_proc.sim.fleet.checks import SimulationError, check
from ext_proc.sim.fleet.conditions import Conditions, Restart, Slowdown, View
from ext_proc.sim.fleet.engine import Engine
from ext_proc.sim.fleet.hasher import TraceHasher, packed
from ext_proc.sim.fleet.kvpickers import MODEL, Clock, Parts, Scrape, Site, Wiring
from ext_proc.sim.fleet.presets import EnginePreset
from ext_proc.sim.fleet.ranked import RankedEngine
from ext_proc.sim.fleet.results import Record, Result
from ext_proc.sim.fleet.sequence import Sequence as EngineSequence
from ext_proc.sim.workload import SimRequest, Workload


class _Flight(msgspec.Struct, gc=False):
    """A request on its way, from its last decision to its end."""

    kvpicker: int
    decision: Decision
    engine: int
    tried: int
    first_token: float = 0.0


class _Host(msgspec.Struct):
    """An engine with what only the fleet knows of it."""

    engine: Engine
    address: str
    up: bool = True
    scheduled: float = inf
    ttft_sum: float = 0.0
    ttft_count: int = 0


class Simulation:
    """One run.

    Args:
        workload: what is asked.
        presets: the engines.
        wiring: makes the parts of each kvpicker.
        conditions: what kvpicker gets to know, and what goes wrong.
        seed: of everything random.
        progress: hears now and then how many requests have ended.

    Raises:
        SimulationError: a request contradicts itself or is too large for an engine.
    """

    def __init__(
        self,
        workload: Workload,
        presets: Sequence[EnginePreset],
        wiring: Wiring,
        conditions: Conditions | None = None,
        *,
        seed: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._workload = workload
        self._conditions = conditions = conditions or Conditions()
        self._progress = progress
        self._random = random.Random(f"{seed} traffic")  # noqa: S311
        self._ties = random.Random(f"{seed} ties")  # noqa: S311
        self._clock = Clock()
        events = conditions.view is View.EVENTS
        engines = [
            (RankedEngine if preset.ranks > 1 else Engine)(preset, workload.block_tokens, events=events)
            for preset in presets
        ]
        self._hosts = [_Host(engine, f"10.0.{place >> 8}.{place & 255}:8000") for place, engine in enumerate(engines)]
        check(workload, engines)
        self._kvpickers = [self._make(wiring, f"kvpicker{number}") for number in range(conditions.kvpickers)]
        self._slots = [self._slots_of(parts) for parts in self._kvpickers]
        self._places = {host.address: place for place, host in enumerate(self._hosts)}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._seen = [self._estimate(request) for request in workload.requests]
        self._followers: dict[int, list[int]] = {}
        self._arrived: dict[int, float] = {}
        self._attempts: dict[int, int] = {}
        self._flights: dict[int, _Flight] = {}
        self._records: dict[int, Record] = {}

    def run(self) -> Result:
        """Simulate until every request has ended and every outcome is known."""
        for position, request in enumerate(self._workload.requests):
            if request.after is None:
                self._at(request.at, self._arrive, position)
            else:
                self._followers.setdefault(request.after, []).append(position)
        for restart in self._conditions.restarts:
            self._at(restart.at, self._crash, restart)
        for slowdown in self._conditions.slowdowns:
            self._at(slowdown.at, self._slow_down, slowdown)
        if self._conditions.scrape_interval is not None:
            for place in range(len(self._hosts)):
                self._at(self._conditions.scrape_interval * self._random.random(), self._scrape, place)
        events, clock = self._events, self._clock
        while events:
            clock.now, _, action, arguments = heapq.heappop(events)
            action(*arguments)
        records = tuple(self._records[position] for position in range(len(self._workload.requests)))
        ends = (record.arrived + record.e2e for record in records)
        return Result(
            workload=self._workload.name, engines=len(self._hosts), records=records, seconds=max(ends, default=0.0)
        )

    def _make(self, wiring: Wiring, instance: str) -> Parts:
        conditions = self._conditions
        specs = tuple(
            EndpointSpec(
                address=host.address,
                ranks=host.engine.preset.ranks,
                models=frozenset({MODEL}),
                kv_tokens=_stated(host.engine.preset.kv_tokens, conditions.kv_factor),
                prefill_rate=conditions.rate_factor and host.engine.preset.prefill_rate * conditions.rate_factor,
            )
            for host in self._hosts
        )
        engines = tuple(host.engine for host in self._hosts)
        hasher = TraceHasher(self._workload.block_tokens)
        return wiring(
            Site(
                instance=instance,
                specs=specs,
                hasher=hasher,
                conditions=conditions,
                engines=engines,
                clock=self._clock,
            )
        )

    def _slots_of(self, parts: Parts) -> list[int]:
        known = parts.registry.snapshot.by_address
        return [known[host.address].slot for host in self._hosts]

    def _estimate(self, request: SimRequest) -> InferenceRequest:
        noise = self._conditions.token_noise
        factor = max(1 + self._random.gauss(0, noise), 0.1) if noise else 1.0
        return InferenceRequest(
            operation=Operation.CHAT,
            api=Api.OPENAI,
            model=MODEL,
            prompt=packed(request.blocks),
            prompt_tokens=max(round(request.prompt_tokens * factor), 1),
            stream=True,
            session=request.session if self._conditions.sessions else "",
        )

    def _at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, action, arguments))

    # A request

    def _arrive(self, position: int) -> None:
        now = self._clock.now
        self._arrived.setdefault(position, now)
        self._attempts[position] = self._attempts.get(position, 0) + 1
        count = len(self._kvpickers)
        number = self._random.randrange(count) if count > 1 else 0
        decision = self._kvpickers[number].picker.pick(self._seen[position], now, self._ties)
        if not isinstance(decision, Decision):
            raise SimulationError(f"request {position} was refused: {decision.refusal}")
        for tried, endpoint in enumerate(decision.endpoints, 1):
            place = self._places[endpoint.address]
            if self._hosts[place].up:
                self._flights[position] = _Flight(number, decision, place, tried)
                self._submit(position, place)
                return
        flight = _Flight(number, decision, self._places[decision.endpoints[-1].address], len(decision.endpoints))
        self._settle_later(flight, Ending.CONNECT_FAILURE, Usage())
        self._at(now + self._conditions.retry_s, self._arrive, position)

    def _submit(self, position: int, place: int) -> None:
        host = self._hosts[place]
        host.engine.submit(EngineSequence(position, self._workload.requests[position]), self._clock.now)
        self._schedule(host, place)

    def _schedule(self, host: _Host, place: int) -> None:
        due = host.engine.due
        if due not in (inf, host.scheduled):
            self._at(due, self._wake, place)
        host.scheduled = due

    def _wake(self, place: int) -> None:
        host = self._hosts[place]
        engine = host.engine
        if engine.due != self._clock.now:
            return  # the run was cut, or the engine crashed
        engine.advance()
        if engine.first:
            for sequence in engine.first:
                self._note_first_token(sequence, host)
            engine.first.clear()
        if engine.ended:
            for sequence in engine.ended:
                self._finish(sequence)
            engine.ended.clear()
        if engine.journal:
            self._at(self._clock.now + self._conditions.event_lag, self._tell, place, tuple(engine.journal))
            engine.journal.clear()
        self._schedule(host, place)

    def _note_first_token(self, sequence: EngineSequence, host: _Host) -> None:
        flight, now = self._flights[sequence.position], self._clock.now
        flight.first_token = now
        host.ttft_sum += now - flight.decision.decided_at
        host.ttft_count += 1
        if self._conditions.first_token:
            self._kvpickers[flight.kvpicker].feedback.first_token(flight.decision.id, now, host.address)

    def _finish(self, sequence: EngineSequence) -> None:
        position, request, now = sequence.position, sequence.request, self._clock.now
        flight = self._flights.pop(position)
        arrived = self._arrived.pop(position)
        self._records[position] = Record(
            arrived=arrived,
            ttft=flight.first_token - arrived,
            tpot=(now - flight.first_token) / max(request.output_tokens - 1, 1),
            e2e=now - arrived,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            hit_tokens=sequence.hit,
            predicted_hit=(flight.decision.hit_tokens, *flight.decision.fallback_hits)[flight.tried - 1],
            recomputed_tokens=sequence.recomputed,
            endpoint=flight.engine,
            preemptions=sequence.preemptions,
            attempts=self._attempts.pop(position),
        )
        usage = Usage(request.prompt_tokens, request.output_tokens, sequence.hit)
        self._settle_later(flight, Ending.OK, usage)
        for follower in self._followers.pop(position, ()):
            self._at(now + self._workload.requests[follower].at, self._arrive, follower)
        if self._progress is not None:
            self._progress(len(self._records))

    def _settle_later(self, flight: _Flight, ending: Ending, usage: Usage) -> None:
        now = self._clock.now
        outcome = Outcome(
            decision_id=flight.decision.id,
            ending=ending,
            status=200 if ending is Ending.OK else 0,
            served=self._hosts[flight.engine].address,
            attempts=flight.tried,
            duration=now - flight.decision.decided_at,
            usage=usage,
        )
        self._at(now + self._conditions.end_lag, self._settle, flight.kvpicker, outcome)

    def _settle(self, kvpicker: int, outcome: Outcome) -> None:
        self._kvpickers[kvpicker].feedback.settle(outcome, self._clock.now)

    # What kvpicker hears of engines

    def _tell(self, place: int, journal: Sequence[tuple[bool, BlockHash]]) -> None:
        runs = [(kind, [block for _, block in run]) for kind, run in groupby(journal, itemgetter(0))]
        for parts, slots in zip(self._kvpickers, self._slots, strict=True):
            if parts.resident is None:
                continue
            for is_stored, blocks in runs:
                (parts.resident.stored if is_stored else parts.resident.removed)(slots[place], blocks)

    def _clear(self, place: int) -> None:
        for parts, slots in zip(self._kvpickers, self._slots, strict=True):
            if parts.resident is not None:
                parts.resident.cleared(slots[place])

    def _scrape(self, place: int) -> None:
        host, now = self._hosts[place], self._clock.now
        engine = host.engine
        scrape = Scrape(len(engine.waiting), len(engine.running), engine.usage, host.ttft_sum, host.ttft_count)
        if host.up:
            for parts, slots in zip(self._kvpickers, self._slots, strict=True):
                if parts.scraped is not None:
                    parts.scraped(slots[place], scrape, now)
        conditions = self._conditions
        if conditions.scrape_interval is not None and len(self._records) < len(self._workload.requests):
            varied = 1 + conditions.scrape_jitter * (2 * self._random.random() - 1)
            self._at(now + conditions.scrape_interval * varied, self._scrape, place)

    # What goes wrong

    def _slow_down(self, slowdown: Slowdown) -> None:
        host = self._hosts[slowdown.engine]
        host.engine.interrupt(self._clock.now)
        host.engine.slowness = slowdown.factor
        self._schedule(host, slowdown.engine)

    def _crash(self, restart: Restart) -> None:
        host = self._hosts[restart.engine]
        lost = host.engine.crash()
        host.up = False
        host.scheduled = inf
        host.ttft_sum = host.ttft_count = 0
        self._at(self._clock.now + restart.down, self._come_back, host)
        self._at(self._clock.now + self._conditions.event_lag, self._clear, restart.engine)
        for sequence in lost:
            self._settle_later(self._flights.pop(sequence.position), Ending.RESET, Usage())
            self._arrive(sequence.position)

    def _come_back(self, host: _Host) -> None:
        host.up = True


def _stated(true: int, factor: float | None) -> int | None:
    return None if factor is None else max(round(true * factor), 1)
