"""least-wait against its formula, and what each term is for."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.explanation import costs
from ext_proc.core.load import Load
from ext_proc.core.model import Endpoint
from ext_proc.core.sharing import Sharing
from ext_proc.core.strategies import Context
from ext_proc.core.strategies.least_wait import LeastWait, LeastWaitParameters
from ext_proc.core.terms import Terms
from tests.unit.core.builders import Fleet, context, endpoints, request

TOKENS = st.integers(0, 200_000)
CANDIDATES = st.lists(
    st.tuples(
        st.builds(Load, st.integers(0, 100), TOKENS, st.floats(0, 100), later=st.integers(0, 20_000)),
        TOKENS,
        st.one_of(st.none(), st.integers(1_000, 500_000)),
        st.one_of(st.just(0.0), st.floats(100, 50_000)),
    ),
    min_size=1,
    max_size=6,
)


def _common(load: Load, seen: Context) -> int:
    return load.sharing.common(seen.chain) if load.sharing else 0


def _sharing(tokens: int) -> Sharing:
    """Make what two requests that both begin with so many tokens have in common."""
    sharing = Sharing(lambda blocks: blocks * tokens, 1.0)
    for _ in range(2):
        sharing.begin((1,), 1.0)
    return sharing


def _formula(length: int, candidates: list[Endpoint], seen: Context) -> list[float]:
    """The docstring of the strategy, term by term, with its default parameters."""
    rows, works = [], []
    least = min(
        (endpoint.kv_tokens // endpoint.ranks for endpoint in candidates if endpoint.kv_tokens), default=float("inf")
    )
    rates = seen.rates or [0.0] * len(candidates)
    for endpoint, load, hit, rate in zip(candidates, seen.loads, seen.hits, rates, strict=True):
        n = endpoint.ranks
        m, capacity = load.tokens / n, endpoint.kv_tokens // n if endpoint.kv_tokens else least
        u = max(length - hit, 16)
        s = u * (1 + (length - u / 2) / (seen.attention or 24_000)) / (rate or 8000.0)
        w = max(0.0, load.busy_until - seen.now)
        h = load.pinned / n
        e = max(0.0, h + length - _common(load, seen) - capacity)
        if seen.lasting > 4:
            h, e = m, max(0.0, m + length + seen.output - 0.95 * capacity)
        h = max(h, 0.0)
        k = seen.residence * ((min(e, h) / h if h else 0.0) + max(0.0, e - h))
        rows.append((w, s, k, load.in_flight / n))
        works.append(u * (1 + (length - u / 2) / (seen.attention or 24_000)))
    q = min(w + k for w, _, k, _ in rows)
    costs = [w + s * (1 + min(2, q) + 0.03 * min(n, 64)) + k for w, s, k, n in rows]
    for place, (w, s, k, n) in enumerate(rows):
        x = s * (1 - min(works) / works[place])
        if seen.lasting <= 4:
            costs[place] += 3 * min(1, sum(n for *_, n in rows) / len(rows)) * max(0, min(1, 2 - seen.siblings / 4)) * x
        elif w + k == 0 and x <= seen.residence / 2:
            costs[place] -= x * (1 + min(2, q) + 0.03 * min(n, 64)) * (1 - 4 / seen.lasting)
    return costs


@given(
    TOKENS,
    CANDIDATES,
    st.floats(0, 50),
    st.one_of(st.just(0.0), st.floats(6_000, 300_000)),
    st.booleans(),
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
    st.integers(0, 50_000),
    st.sampled_from([[1], [1], [1, 4], [3, 8]]),
)
def test_costs_follow_the_formula(
    length: int,
    drawn: list[tuple[Load, int, int | None, float]],
    now: float,
    attention: float,
    known: bool,
    alike: tuple[int, int],
    shared: int,
    ranks: list[int],
) -> None:
    """For any loads, hits, sizes, ranks, rates, siblings and shared beginnings each cost is what the formula gives."""
    candidates = [
        Endpoint(address=f"a:{slot}", pool="p", slot=slot, kv_tokens=size, ranks=ranks[slot % len(ranks)])
        for slot, (_, _, size, _) in enumerate(drawn)
    ]
    rates = [rate for *_, rate in drawn] if known else ()
    hits = [min(hit, length) for _, hit, _, _ in drawn]
    loads = [load for load, *_ in drawn]
    loads[0] = msgspec.structs.replace(loads[0], sharing=_sharing(shared))
    told = {"rates": rates, "attention": attention, "siblings": alike[0], "lasting": min(alike), "chain": (1, 2)}
    seen = context(loads, hits, now=now, **told)
    costs = LeastWait().rank(request(prompt_tokens=length), candidates, seen).costs
    assert costs == pytest.approx(_formula(length, candidates, seen))


def test_ranks_share_requests_and_memory() -> None:
    """An engine of four ranks with four times the work and the memory of another costs what that one costs."""
    one = Endpoint(address="a:0", pool="p", slot=0, kv_tokens=100_000)
    four = Endpoint(address="a:1", pool="p", slot=1, kv_tokens=400_000, ranks=4)
    loads = [Load(10, 99_000, 1.0), Load(40, 396_000, 1.0)]
    ranking = LeastWait().rank(request(prompt_tokens=8000), [one, four], context(loads))
    assert ranking.costs[0] == pytest.approx(ranking.costs[1])
    assert ranking.memories[0] > 0
    terms = Terms([one, four], ranking, [0, 0], [10, 40])[1]
    assert terms.wait + terms.interference + terms.backlog == pytest.approx(ranking.costs[1])


def test_terms_add_up_to_the_cost() -> None:
    """With an idle candidate in the fleet an explanation is queue + prefill with interference + memory."""
    loads = [Load(), Load(10, 90_000, 5.0)]
    ranking = LeastWait().rank(request(prompt_tokens=8000), endpoints(2, kv_tokens=100_000), context(loads))
    assert ranking.costs[0] == ranking.prefills[0]
    assert ranking.queues[1] == 5.0
    assert ranking.costs[1] == pytest.approx(5.0 + 1.3 * ranking.prefills[1] + ranking.memories[1])


@pytest.mark.parametrize(
    ("loads", "hits"),
    [
        ([Load(), Load(1, 100, 3.0)], [0, 0]),
        ([Load(1, 100, 0.0), Load(1, 100, 0.0)], [4000, 0]),
        ([Load(2, 100, 0.0), Load(3, 100, 0.0)], [0, 0]),
        ([Load(9, 10_000, 0.0), Load(9, 99_000, 0.0)], [0, 0]),
    ],
    ids=["queue", "prefix", "interference", "memory"],
)
def test_each_term_decides_when_all_else_is_equal(loads: list[Load], hits: list[int]) -> None:
    """A shorter queue, a cached prefix, fewer running requests and free memory each make an endpoint cheaper."""
    candidates = endpoints(2, kv_tokens=100_000)
    first, second = LeastWait().rank(request(prompt_tokens=4096), candidates, context(loads, hits)).costs
    assert first < second


@pytest.mark.parametrize(
    ("siblings", "idle", "length", "copied"),
    [(16, Load(6), 6000, True), (4, Load(6), 6000, False), (16, Load(6, 9000, 0.3), 6000, False)],
    ids=["popular", "not popular", "somebody waits"],
)
def test_what_is_popular_gets_a_copy_where_nobody_waits(siblings: int, idle: Load, length: int, copied: bool) -> None:
    """Among many with the same prefix one computes it again on an idle endpoint, rather than to queue for a moment."""
    seen = context([Load(10, 90_000, 0.25), idle], [length - 200, 0], siblings=siblings, lasting=siblings)
    holder, other = LeastWait().rank(request(prompt_tokens=length), endpoints(2), seen).costs
    assert (other < holder) is copied


@pytest.mark.parametrize("length", [100_001, 101_000, 1_000_000])
@pytest.mark.parametrize("siblings", [0, 40])
def test_what_fits_nowhere_goes_where_least_is_in_the_way(length: int, siblings: int) -> None:
    """What waits for memory that never comes free must not look cheaper for all that stands in front of it."""
    loads = [Load(), Load(2, 2_000), Load(20, 90_000)]
    seen = context(loads, siblings=siblings, lasting=siblings)
    ranking = LeastWait().rank(request(prompt_tokens=length), endpoints(3, kv_tokens=100_000), seen)
    assert ranking.costs == sorted(ranking.costs)
    assert ranking.memories[1] == pytest.approx(ranking.memories[2])
    smaller = [Endpoint(address=f"a:{size}", pool="p", slot=slot, kv_tokens=size) for slot, size in enumerate((1, 2))]
    first, second = LeastWait().rank(request(prompt_tokens=length), smaller, context(loads[1:])).memories
    assert first > second


def test_what_requests_share_leaves_room_for_others() -> None:
    """Requests that fill the memory only if what they share is counted for each of them make nobody wait."""
    crowd = [Load(40, 120_000, later=6000, sharing=_sharing(60_000)), Load(40, 120_000, later=6000)]
    ranking = LeastWait().rank(request(prompt_tokens=4000), endpoints(2, kv_tokens=100_000), context(crowd))
    assert ranking.memories == [0.0, pytest.approx((114_000 + 4000 - 100_000) * 10.0 / 114_000)]


@pytest.mark.parametrize("limit", [1, 4000])
def test_answers_take_the_memory_that_is_expected_of_each(limit: int) -> None:
    """How long the answer to one request may be says nothing of those that run already."""
    fleet = Fleet(2, LeastWait(), kv_tokens=100_000)
    short = [fleet.pick(request(prompt_tokens=500, output_tokens=1), subset={"10.0.0.11:8000"}) for _ in range(250)]
    chat = fleet.pick(request(prompt_tokens=500, output_tokens=limit))
    assert [term.memory for term in chat.terms] == [pytest.approx((125_250 + 500 - 100_000) * 10.0 / 125_250), 0.0]
    for decision in (*short, chat):
        fleet.settle(decision)
    assert [(fleet.load(place).later, fleet.load(place).pinned) for place in range(2)] == [(0, 0), (0, 0)]


def test_a_prompt_in_flight_takes_no_more_room() -> None:
    """Where the memory is full, one that begins like those that run there waits only for what is its own."""
    full = [Load(40, 180_000, later=6000, sharing=_sharing(80_000)), Load(40, 100_000, later=6000)]
    seen = context(full, chain=(1, 2))
    ranking = LeastWait().rank(request(prompt_tokens=90_000), endpoints(2, kv_tokens=100_000), seen)
    assert ranking.memories[0] == pytest.approx((94_000 + 90_000 - 80_000 - 100_000) * 10.0 / 94_000)
    assert ranking.memories[1] == pytest.approx((94_000 + 90_000 - 100_000) * 10.0 / 94_000)


def test_what_is_popular_is_spread_by_all_that_is_read() -> None:
    """An engine reads a prefix for each of those that share it, so it is crowded before its memory is full."""
    crowd = [Load(40, 120_000, sharing=_sharing(60_000)), Load(30, 90_000)]
    seen = context(crowd, [3900, 3900], siblings=30, lasting=30)
    holder, other = LeastWait().rank(request(prompt_tokens=4000), endpoints(2, kv_tokens=100_000), seen).memories
    assert other == 0.0
    assert holder == pytest.approx((120_000 + 4000 + 300 - 95_000) * 10.0 / 120_000)


def test_nobody_spends_more_on_a_copy_than_half_of_what_requests_take() -> None:
    """A prefix that takes long to compute stays where it is, however many want it."""
    loads, length = [Load(10, 90_000, 0.25), Load()], 6000
    seen = context(loads, [length - 200, 0], siblings=1000, lasting=1000, residence=1.4)
    holder, other = LeastWait().rank(request(prompt_tokens=length), endpoints(2), seen).costs
    assert holder < other


def test_a_slow_endpoint_that_holds_the_prefix_pays_for_no_copy() -> None:
    """What others bear is the price of a copy, not that of slowness."""
    seen = context([Load(), Load()], [5800, 5800], rates=[20_000.0, 5_000.0], siblings=16, lasting=16)
    ranking = LeastWait().rank(request(prompt_tokens=6000), endpoints(2), seen)
    assert not any(ranking.copying)
    assert ranking.costs == ranking.prefills


def test_what_a_copy_saves_others_is_told_and_adds_up() -> None:
    """An explanation has what others bear of the price, and the terms less that are the cost."""
    seen = context([Load(10, 90_000, 0.25), Load(6)], [5800, 0], siblings=16, lasting=16)
    candidates = endpoints(2)
    ranking = LeastWait().rank(request(prompt_tokens=6000), candidates, seen)
    assert ranking.copying[0] == 0
    assert ranking.copying[1] == pytest.approx(1.18 * 0.75 * (ranking.prefills[0] - ranking.prefills[1]))
    assert ranking.costs[1] == pytest.approx(1.18 * ranking.prefills[1] + ranking.copying[1])
    told = Terms(candidates, ranking, seen.hits, [10, 6])[1]
    assert told.copying == ranking.copying[1]
    parts = (told.queue, told.prefill, told.interference, told.backlog, told.memory, told.copying)
    assert sum(parts) == pytest.approx(told.cost)


@pytest.mark.parametrize(
    ("siblings", "running", "waits"),
    [(0, 5, True), (8, 5, False), (0, 0, False)],
    ids=["alone", "common", "idle fleet"],
)
def test_what_is_held_is_worth_waiting_for_as_others_would_pay(siblings: int, running: int, waits: bool) -> None:
    """In a busy fleet what is cached is waited for longer than computing it takes, unless many share it."""
    loads = [Load(running, 9000, 0.5), Load(running, 9000)]
    seen = context(loads, [2900, 0], siblings=siblings)
    ranking = LeastWait().rank(request(prompt_tokens=3000), endpoints(2), seen)
    assert ranking.queues[0] > ranking.prefills[1]
    assert (ranking.costs[0] < ranking.costs[1]) is waits


def test_the_price_of_a_copy_can_be_set() -> None:
    """With 0 only what the request itself waits for counts."""
    loads = [Load(5, 9000, 0.5), Load(5, 9000)]
    seen = context(loads, [2900, 0])
    selfish = LeastWait(LeastWaitParameters(copy_price=0.0)).rank(request(prompt_tokens=3000), endpoints(2), seen)
    assert not any(selfish.copying)
    assert selfish.costs[0] > selfish.costs[1]
    for price in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="copy_price must be a finite number, 0 or more"):
            LeastWaitParameters(copy_price=price)


def test_a_faster_endpoint_is_preferred() -> None:
    """A known prefill rate outranks the default one."""
    seen = context([Load(), Load()], rates=[0.0, 20_000.0])
    costs = LeastWait().rank(request(prompt_tokens=4096), endpoints(2), seen).costs
    assert costs[1] < costs[0]


def test_learning_can_be_switched_off() -> None:
    """With `learn` off only parameters and configured rates count."""
    slow, fast = endpoints(2)
    candidates = [slow, msgspec.structs.replace(fast, prefill_rate=16_000.0)]
    seen = context([Load(), Load()], rates=[90_000.0, 1.0], attention=6000.0)
    ranking = LeastWait(LeastWaitParameters(learn=False)).rank(request(prompt_tokens=24_000), candidates, seen)
    assert list(ranking.works) == [36_000.0, 36_000.0]
    assert list(ranking.prefills) == [4.5, 2.25]


def test_a_cached_prefix_does_not_outweigh_a_long_queue() -> None:
    """Half a second of prefill saved is not worth two and a half seconds of waiting, whatever it costs others."""
    loads, hits = [Load(5, 500, 2.5), Load(5, 500, 0.0)], [4000, 0]
    costs = LeastWait().rank(request(prompt_tokens=4096), endpoints(2), context(loads, hits)).costs
    assert costs[1] < costs[0]


def test_an_unknown_memory_size_is_neutral() -> None:
    """Where no endpoint says how large its cache is none waits for memory; else the smallest known size is assumed."""
    loads = [Load(64, 10**9, 0.0)] * 2
    ranking = LeastWait().rank(request(prompt_tokens=4096), endpoints(2), context(loads))
    assert not any(ranking.memories)
    unknown, known = endpoints(2)
    candidates = [unknown, msgspec.structs.replace(known, kv_tokens=100_000)]
    first, second = LeastWait().rank(request(prompt_tokens=4096), candidates, context(loads)).memories
    assert first == second > 0


def test_a_request_without_prompt_has_a_price() -> None:
    """Even nothing to prefill costs a little, so that ties go to the less busy endpoint."""
    costs = LeastWait().rank(request(prompt_tokens=0), endpoints(2), context([Load(1), Load()])).costs
    assert 0 < costs[1] < costs[0]


@pytest.mark.parametrize("wrong", [{"prefill_rate": 0}, {"attention_tokens": -1}, {"rate": 1}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    """What cannot be divided by, and what is not known, is an error of the configuration."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, LeastWaitParameters)


def test_a_prompt_larger_than_a_memory_is_said_not_to_fit() -> None:
    """It goes where there is room; where there is none it is sent all the same, and the explanation has no time."""
    fleet = Fleet(2, kv_tokens=50_000)
    decision = fleet.pick(request(prompt_tokens=60_000))
    assert [terms.unfit for terms in decision.terms] == [True, True]
    assert [(costs(terms)["cost_ms"], costs(terms)["memory_ms"]) for terms in decision.terms] == [(None, None)] * 2
    large = Endpoint(address="a:1", pool="p", slot=1, kv_tokens=400_000, ranks=4)
    small = Endpoint(address="a:0", pool="p", slot=0, kv_tokens=90_000)
    unknown = Endpoint(address="a:2", pool="p", slot=2)
    candidates = [small, large, unknown]
    ranking = LeastWait().rank(request(prompt_tokens=95_000), candidates, context([Load()] * 3))
    assert ranking.unfit == {0, 2}
    assert ranking.costs.index(min(ranking.costs)) == 1
    assert not LeastWait().rank(request(prompt_tokens=80_000), candidates, context([Load()] * 3)).unfit
