"""Cases from public bug reports of other endpoint pickers, as far as the decision answers them."""

from __future__ import annotations

import pytest

from ext_proc.core.model import Decision, Ending
from tests.unit.core.builders import CHAT, Fleet, request, shares, text

SYSTEM = text("system", 32_000)


def test_f01_a_burst_is_spread_because_picks_are_counted_at_once() -> None:
    """99 requests in one moment, all unique, go to three idle endpoints in about equal parts."""
    fleet = Fleet(3)
    counts = shares([fleet.pick(request(text(number, 512))) for number in range(99)])
    assert all(25 <= counts[endpoint.address] <= 41 for endpoint in fleet.endpoints)


@pytest.mark.parametrize("kv_tokens", [None, 450_000], ids=["memory unknown", "memory known"])
def test_f02_a_hot_prefix_spreads_over_the_fleet(kv_tokens: int | None) -> None:
    """One popular system prompt at 60 requests/s does not overload its first holder and becomes known on the others.

    In shares (F02); what it costs in waiting, tests/unit/sim/fleet/test_hot_prefix.py measures.
    """
    fleet = Fleet(3, kv_tokens=kv_tokens)
    fleet.settle(fleet.pick(request(SYSTEM), subset={"10.0.0.11:8000"}))
    running: list[tuple[float, Decision]] = []
    made = []
    for number in range(60 * 20):
        fleet.now += 1 / 60
        while running and running[0][0] <= fleet.now:
            fleet.settle(running.pop(0)[1])
        made.append(fleet.pick(request(SYSTEM + text(number, 800))))
        running.append((fleet.now + 1.0, made[-1]))
    counts = shares(made[600:])
    assert len(counts) == 3
    assert max(counts.values()) <= 1.5 * min(counts.values())
    chain = fleet.hasher.chain(request(SYSTEM))
    known = fleet.index.depths(chain, [endpoint.slot for endpoint in fleet.endpoints])
    assert min(known) >= len(chain) - 1


def test_f04_a_prefix_nobody_has_leaves_the_load_to_decide() -> None:
    """With 30, 0 and 15 requests running, new ones prefer E2, then E3, then E1 (F04)."""
    fleet = Fleet(3)
    fleet.occupy(0, 30)
    fleet.occupy(2, 15, seconds=10.0)
    costs = [terms.cost for terms in fleet.pick(request(text("x"))).terms]
    assert costs[1] < costs[2] < costs[0]
    made = []
    for number in range(20):
        fleet.now += 0.5
        made.append(fleet.pick(request(text(number))))
    assert shares(made)["10.0.0.12:8000"] >= 12


def test_f05_equal_endpoints_get_equal_shares() -> None:
    """300 requests, each finished before the next, do not all go to the first of three idle endpoints (F05)."""
    fleet = Fleet(3)
    counts = shares([fleet.serve(request(text(number, 512))) for number in range(300)])
    assert all(70 <= counts[endpoint.address] <= 130 for endpoint in fleet.endpoints)


def test_f07_disconnects_release_everything() -> None:
    """When all clients of 200 streams hang up, nothing stays in flight, however often the end is reported."""
    fleet = Fleet(3)
    made = [fleet.pick(request(text(number, 512))) for number in range(200)]
    for decision in made * 2:
        fleet.settle(decision, Ending.CLIENT_GONE)
    assert [fleet.load(place).in_flight for place in range(3)] == [0, 0, 0]
    assert [fleet.load(place).tokens for place in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("ending", [Ending.RESET, Ending.CONNECT_FAILURE])
def test_f12_a_repeated_request_leaves_the_endpoint_that_fails(ending: Ending) -> None:
    """The client's second repeat at the latest goes elsewhere, although the failing endpoint had its prefix (F12)."""
    fleet = Fleet(3)
    asked = request(text("p"))
    first = fleet.serve(asked)
    repeats = []
    for _ in range(3):
        repeats.append(fleet.pick(asked))
        fleet.settle(repeats[-1], ending if repeats[-1].chosen == first.chosen else Ending.OK)
        fleet.now += 0.3
    assert first.chosen not in [decision.chosen for decision in repeats[2:]]


def test_f14_tokens_count_more_than_requests() -> None:
    """Three prompts of 100,000 tokens in prefill keep new requests away more than ten of 100 (F14)."""
    fleet = Fleet(2)
    fleet.occupy(0, 3, tokens=100_000)
    fleet.occupy(1, 10, tokens=100)
    counts = shares([fleet.pick(request(text(number, 400))) for number in range(10)])
    assert counts["10.0.0.12:8000"] >= 8


def test_a07_a_session_holds_a_conversation_whose_first_block_changes() -> None:
    """Turns whose prompts differ from the first bytes on stay together by session, without an inflated prediction."""
    fleet = Fleet(3)
    stable = text("instructions", 20_000)
    turns = [fleet.serve(request(f"cch={turn}".encode() + stable, session="s-900")) for turn in range(3)]
    assert len(shares(turns)) == 1
    assert [decision.hit_tokens for decision in turns] == [0, 0, 0]


def test_a10_a12_a_missing_model_is_no_fault_where_one_is_served() -> None:
    """With one base model a request without a usable model is placed like any other and shares its prefix."""
    fleet = Fleet(3)
    first = fleet.serve(request(text("a"), model=None))
    assert fleet.pick(request(text("a"))).chosen == first.chosen


def test_a47_a_salt_separates_caches() -> None:
    """The same prompt under another cache_salt is predicted nowhere and drawn nowhere."""
    fleet = Fleet(3)
    fleet.serve(request(SYSTEM, namespace=("cache_salt=tenant-a",)))
    made = [fleet.serve(request(SYSTEM, namespace=(f"cache_salt=tenant-{number}",))) for number in range(20)]
    assert all(decision.hit_tokens == 0 for decision in made)
    assert len(shares(made)) > 1


def test_a53_a_response_is_continued_where_it_was_made() -> None:
    """A follow-up goes to the endpoint that knows the response even if it is busier, and elsewhere if that is gone."""
    fleet = Fleet(3)
    first = fleet.serve(response_id="resp_a1")
    fleet.occupy(fleet.endpoints.index(first.chosen), 5, tokens=9000)
    second = fleet.serve(request(previous_response="resp_a1"), response_id="resp_a2")
    third = fleet.pick(request(previous_response="resp_a2"))
    assert third.chosen == second.chosen == first.chosen
    assert third.reason == "previous_response"
    left = [endpoint.address for endpoint in fleet.endpoints if endpoint != first.chosen]
    fleet.fill("p", *left, models=CHAT)
    assert fleet.pick(request(previous_response="resp_a2")).chosen.address in left


def test_a62_prompts_that_differ_at_their_end_are_spread() -> None:
    """300 short requests that share all but the last characters do not crowd one of three endpoints."""
    fleet = Fleet(3)
    prompts = [b"describe https://img.example/bucket/" + b"0" * 300 + b"%04d.jpg" % number for number in range(300)]
    counts = shares([fleet.pick(request(prompt)) for prompt in prompts])
    assert max(counts.values()) <= 0.45 * 300


def test_a66_a_lookup_avoids_the_endpoint_that_is_down() -> None:
    """GET requests ask for no model and no body, and go to endpoints that answer."""
    fleet = Fleet(3)
    fleet.settle(fleet.pick(subset={"10.0.0.11:8000"}), Ending.CONNECT_FAILURE)
    counts = shares([fleet.pick(request(model=None)) for _ in range(30)])
    assert "10.0.0.11:8000" not in counts


@pytest.mark.parametrize("order", ["removed first", "added first"])
def test_e04_a_reused_address_inherits_nothing(order: str) -> None:
    """An address that comes back in another pool has no prefix, no load and no ejection of the one before."""
    fleet = Fleet(1)
    old = fleet.endpoints[0]
    late = [fleet.pick(request(text("a"))) for _ in range(3)]
    fleet.settle(late.pop(), Ending.CONNECT_FAILURE)
    pools = {"p": (), "q": (old.address,)}
    for pool in sorted(pools, reverse=order == "added first"):
        fleet.fill(pool, *pools[pool], models=frozenset({"acme/embed-1"}))
    (came,) = fleet.endpoints
    decision = fleet.pick(request(text("a"), model="acme/embed-1"))
    assert (came.pool, came.generation != old.generation) == ("q", True)
    assert (decision.hit_tokens, decision.terms[0].in_flight) == (0, 0)
    for ending in (Ending.OK, Ending.CONNECT_FAILURE):
        fleet.settle(late.pop(), ending)
    assert (fleet.load(0).in_flight, fleet.health.state(came.slot)) == (1, "ready")


def test_h08_prefixes_of_other_caches_are_not_seen() -> None:
    """Model, adapter and salt that read alike when joined do not share what is cached (H08)."""
    fleet = Fleet(1, models=frozenset({"a", "ab", "X"}))
    fleet.serve(request(SYSTEM, model="a", namespace=("bc",)))
    fleet.serve(request(SYSTEM, model="X"))
    for model, namespace in (("ab", ("c",)), ("a", ("b", "c")), ("a", ("X",)), ("X", ("",))):
        assert fleet.pick(request(SYSTEM, model=model, namespace=namespace)).hit_tokens == 0
