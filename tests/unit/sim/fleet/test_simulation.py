"""A workload against a fleet, with the picker that serves requests."""

from __future__ import annotations

from itertools import pairwise
from statistics import stdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.rates import RateSource
from ext_proc.core.strategies import Strategy
from ext_proc.core.strategies.least_request import LeastRequest
from ext_proc.core.strategies.least_wait import LeastWait
from ext_proc.core.strategies.round_robin import RoundRobin
from ext_proc.sim.fleet.checks import SimulationError
from ext_proc.sim.fleet.conditions import Conditions, Restart, Slowdown, View
from ext_proc.sim.fleet.kvpickers import Scrape, Site, Wiring
from ext_proc.sim.fleet.results import Result
from ext_proc.sim.fleet.simulation import Simulation
from ext_proc.sim.workload import Workload
from tests.unit.sim.fleet.fleets import H100, preset, request, workload, workloads
from tests.unit.sim.fleet.wiring import Made, wiring


def least_wait(_: Site) -> Strategy:
    """Make the default strategy."""
    return LeastWait()


def run(asked: Workload, wire: Wiring, engines: int = 3, *, seed: int = 0, **conditions: Any) -> Result:
    """Simulate on H100s."""
    return Simulation(asked, [H100] * engines, wire, Conditions(**conditions), seed=seed).run()


VIEWS = st.builds(
    Conditions,
    view=st.sampled_from(View),
    kvpickers=st.integers(1, 3),
    token_noise=st.sampled_from([0.0, 0.3]),
    kv_factor=st.sampled_from([None, 0.3, 1.0]),
    rate_factor=st.sampled_from([None, 1.0]),
    scrape_interval=st.sampled_from([None, 0.1]),
    slowdowns=st.just((Slowdown(engine=0, at=0.1),)),
    restarts=st.sampled_from([(), (Restart(engine=1, at=0.05, down=0.3),)]),
)


@given(workloads(), VIEWS, st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_request_ends_once_and_every_lease_is_settled(asked: Workload, conditions: Conditions, seed: int) -> None:
    """Whatever the view and whatever goes wrong, all requests end, and the ledger is empty when all is known."""
    kept: list[Made] = []
    small = [preset(kv_tokens=400), preset(kv_tokens=500), H100]
    result = Simulation(asked, small, wiring(least_wait, kept), conditions, seed=seed).run()
    assert len(result.records) == len(asked.requests)
    for asked_for, record in zip(asked.requests, result.records, strict=True):
        assert record.prompt_tokens == asked_for.prompt_tokens
        assert 0 <= record.hit_tokens < record.prompt_tokens
        assert 0 < record.ttft <= record.e2e
        assert record.recomputed_tokens == 0 or record.preemptions
    for made in kept:
        assert not len(made.ledger)
        assert not made.notes.failures


@given(workloads(), VIEWS)
@settings(max_examples=20, deadline=None)
def test_equal_seeds_give_equal_runs(asked: Workload, conditions: Conditions) -> None:
    """A run is a function of workload, fleet, conditions and seed."""
    first, second = (Simulation(asked, [H100] * 3, wiring(least_wait), conditions, seed=5).run() for _ in range(2))
    assert first == second


def test_a_lone_request_takes_what_the_formula_says() -> None:
    """Nothing comes on top of what the engine takes."""
    record = run(workload(request(at=2.0, prompt=1000, output=1)), wiring(least_wait)).records[0]
    assert (record.arrived, record.ttft) == (2.0, pytest.approx(5.8e-3 + 1000 * 27e-6 + 1.3e-9 * 1000**2 / 2))


def test_a_follow_up_arrives_after_the_think_time() -> None:
    """The next turn of a conversation comes when the answer has been read."""
    result = run(workload(request(at=1.0), request(at=4.0, after=0)), wiring(least_wait))
    first, second = result.records
    assert second.arrived == pytest.approx(first.arrived + first.e2e + 4.0)


def test_requests_go_where_their_prefix_is() -> None:
    """The picker sees the blocks of the trace: a repeated prompt goes to the engine that has it."""
    same = [request(at=5.0 * turn, prompt=8000, blocks=tuple(range(1, 501))) for turn in range(4)]
    result = run(workload(*same), wiring(least_wait))
    assert len({record.endpoint for record in result.records}) == 1
    assert [record.hit_tokens for record in result.records] == [0, 7984, 7984, 7984]
    assert [record.predicted_hit for record in result.records] == [0, 8000, 8000, 8000]


@pytest.mark.parametrize(("gap", "seen"), [(0.9, False), (1.2, True)])
def test_kv_events_arrive_late(gap: float, seen: bool) -> None:
    """What an engine stored counts for a decision only after the lag."""
    asked = request(prompt=1600, output=1, blocks=tuple(range(1, 101)))
    later = request(at=gap, prompt=1600, output=1, blocks=tuple(range(1, 101)))
    result = run(workload(asked, later), wiring(least_wait), view=View.EVENTS, event_lag=1.0)
    assert bool(result.records[1].predicted_hit) == seen


def test_the_oracle_sees_caches_at_once() -> None:
    """What the oracle predicts is what the engine finds, but for the last block of a prompt that is all cached."""
    same = [request(at=0.5 * turn, prompt=1610, output=1, blocks=tuple(range(1, 101))) for turn in range(3)]
    result = run(workload(*same), wiring(least_wait), view=View.ORACLE)
    assert [record.predicted_hit for record in result.records] == [record.hit_tokens for record in result.records]


@pytest.mark.parametrize(("gap", "engine"), [(0.9, 1), (1.2, 0)])
def test_outcomes_arrive_late(gap: float, engine: int) -> None:
    """A request counts as in flight until its outcome is known: least-request avoids its engine until then."""
    asked = workload(request(output=1), request(output=1, at=0.05), request(output=1, at=gap))
    kept: list[Made] = []
    result = run(asked, wiring(lambda _: LeastRequest(), kept), 2, end_lag=1.0)
    assert result.records[0].endpoint != result.records[1].endpoint
    open_at = [gap < 0.006 + 1.0, gap < 0.056 + 1.0]
    assert open_at == [engine == 1] * 2


def test_scrapes_say_what_the_engine_is_at() -> None:
    """The callback of a kvpicker hears of queue, running requests, memory and times to first token."""
    heard: list[tuple[int, Scrape, float]] = []

    class Listener(RoundRobin):
        def scraped(self, slot: int, scrape: Scrape, now: float) -> None:
            heard.append((slot, scrape, now))

    asked = workload(request(output=2000), request(output=2000, at=0.001))
    Simulation(asked, [preset(max_running=1)], wiring(lambda _: Listener()), Conditions(scrape_interval=0.5)).run()
    early = heard[2][1]
    assert (early.waiting, early.running, early.ttft_count) == (1, 1, 1)
    assert 0 < early.kv_usage < 0.01
    assert heard[-1][1].ttft_sum > heard[0][1].ttft_sum
    gaps = [later - earlier for (_, _, earlier), (_, _, later) in pairwise(heard)]
    assert all(0.45 <= gap <= 0.55 for gap in gaps)


def test_a_restart_sends_the_lost_requests_again_and_leaves_the_engine_cold() -> None:
    """Who was there is served elsewhere at once; the engine refuses while it is down and has forgotten its cache."""
    blocks = tuple(range(1, 101))
    asked = workload(
        request(prompt=1610, output=500, blocks=blocks),
        request(prompt=1610, output=500, blocks=blocks, at=0.1),
        request(prompt=1610, output=1, blocks=blocks, at=60.0),
    )
    first = run(asked, wiring(least_wait)).records[0].endpoint
    result = run(asked, wiring(least_wait), restarts=(Restart(engine=first, at=1.0, down=5.0),))
    lost = result.records[0]
    assert lost.attempts == 2
    assert lost.endpoint != first
    assert lost.ttft > 1.0


def test_a_restart_is_seen_in_the_events() -> None:
    """Who listens to KV events expects nothing of a restarted engine; who learnt from decisions still does."""
    blocks = tuple(range(1, 101))
    asked = workload(
        request(prompt=1610, output=1, blocks=blocks), request(prompt=1610, output=1, blocks=blocks, at=60.0)
    )
    predicted = {
        view: run(asked, wiring(least_wait), 1, view=view, restarts=(Restart(engine=0, at=30.0, down=5.0),)).records[1]
        for view in (View.EVENTS, View.OBSERVED)
    }
    assert {view: record.predicted_hit for view, record in predicted.items()} == {View.EVENTS: 0, View.OBSERVED: 1600}
    assert all(record.hit_tokens == 0 for record in predicted.values())


def test_estimates_of_prompt_tokens_are_noisy_if_asked_for() -> None:
    """The picker is told wrong lengths, the engine computes the true ones."""
    kept: list[Made] = []
    asked = workload(*[request(prompt=1000, at=float(turn)) for turn in range(50)])
    result = run(asked, wiring(least_wait, kept), token_noise=0.1)
    told = [decision.request.prompt_tokens for decision, _ in kept[0].notes.finishes]
    assert 0.05 < stdev(told) / 1000 < 0.15
    assert all(record.prompt_tokens == 1000 for record in result.records)


def test_a_fleet_that_is_down_is_asked_again() -> None:
    """If all engines refuse, the client comes back until one answers."""
    result = run(
        workload(request(at=1.0)), wiring(least_wait), 1, restarts=(Restart(engine=0, at=0.5, down=3.0),), retry_s=1.0
    )
    assert result.records[0].attempts == 4
    assert result.records[0].ttft > 3.0


def test_a_first_token_after_a_fallback_tells_nothing_of_the_engine_that_was_down() -> None:
    """Kvpicker hears who answered: the chosen engine is not taken for one that prefills."""
    asked = workload(request(at=1.0, prompt=100_000))
    usual: list[Made] = []
    first = run(asked, wiring(least_wait, usual)).records[0].endpoint
    kept: list[Made] = []
    result = run(asked, wiring(least_wait, kept), restarts=(Restart(engine=first, at=0.5, down=600.0),))
    assert result.records[0].endpoint != first
    sources = []
    for made in (*usual, *kept):
        ((decision, _),) = made.notes.first_tokens
        assert decision.chosen.address == f"10.0.0.{first}:8000"
        sources.append(made.parts.feedback._rates.source(decision.chosen.slot))
    assert sources == [RateSource.FIRST_TOKEN, None]


@pytest.mark.parametrize("known", [False, True])
def test_conversations_have_names_only_where_clients_give_them(known: bool) -> None:
    """The picker breaks ties by them, which would flatter what does not know them."""
    kept: list[Made] = []
    run(workload(request(session="s")), wiring(least_wait, kept), sessions=known)
    assert [decision.request.session for decision, _ in kept[0].notes.finishes] == ["s" if known else ""]


def test_a_slow_engine_slows_down_when_it_is_told_to() -> None:
    """A slowdown applies from its time on, even in the middle of a run of decode steps."""
    asked = workload(request(output=1000))
    usual = run(asked, wiring(least_wait), 1).records[0].e2e
    slow = run(asked, wiring(least_wait), 1, slowdowns=(Slowdown(engine=0, at=usual / 2, factor=3.0),)).records[0].e2e
    assert slow == pytest.approx(2 * usual, rel=0.02)


def test_capacity_and_rate_are_stated_with_the_asked_error() -> None:
    """Kvpicker is told a share of the truth, or nothing."""
    kept: list[Made] = []
    run(workload(request()), wiring(least_wait, kept), kv_factor=0.5, rate_factor=2.0)
    run(workload(request()), wiring(least_wait, kept), kv_factor=None)
    told, untold = (made.parts.registry.snapshot.endpoints[0] for made in kept)
    assert told.kv_tokens == 225_000
    assert told.prefill_rate == pytest.approx(2 / 27e-6)
    assert (untold.kv_tokens, untold.prefill_rate) == (None, None)


def test_several_kvpickers_share_the_traffic_and_know_their_own() -> None:
    """Each of two decides on about half of the requests."""
    kept: list[Made] = []
    asked = workload(*[request(at=0.1 * turn) for turn in range(200)])
    run(asked, wiring(least_wait, kept), kvpickers=2)
    shares = [len(made.notes.finishes) for made in kept]
    assert sum(shares) == 200
    assert min(shares) > 70


def test_progress_is_told() -> None:
    """Whoever watches hears of every end."""
    heard: list[int] = []
    Simulation(workload(request(), request()), [H100], wiring(least_wait), progress=heard.append).run()
    assert heard == [1, 2]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (request(prompt=0), "at least one prompt token"),
        (request(output=0), "at least one prompt token"),
        (request(prompt=31, blocks=(1, 2)), "names more blocks"),
        (request(prompt=32, output=15, blocks=(1, 2), output_blocks=(3,)), "names more blocks"),
        (request(after=0), "follows request 0"),
        (request(prompt=450_000, output=1), "holds 450000"),
    ],
)
def test_what_cannot_be_simulated_is_refused(broken: Any, message: str) -> None:
    """A workload that would never end, or contradicts itself, is refused with the position of the request."""
    with pytest.raises(SimulationError, match=f"request 0 .*{message}|request 0 {message}"):
        Simulation(workload(broken), [H100], wiring(least_wait))
