"""The order in which requests are served that wait for the same endpoints."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.fair_queue import FairQueue
from ext_proc.core.turn import Turn
from tests.unit.core.waiting import turn

TENANTS = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TENANTS, st.integers(-1, 1), st.integers(1, 50), st.booleans()),
        st.tuples(st.just("serve")),
        st.tuples(st.just("leave"), st.integers(0, 1000)),
    ),
    max_size=60,
)


def served(queue: FairQueue, most: int = 1000) -> list[Turn]:
    """Serve until nobody waits, or so many."""
    order: list[Turn] = []
    while len(order) < most and (first := queue.first()) is not None:
        queue.serve(first)
        order.append(first)
    return order


def line(queue: FairQueue, *turns: Turn) -> None:
    """Let several wait."""
    for each in turns:
        queue.add(each)


def test_of_one_tenant_the_first_to_come_is_the_first_served() -> None:
    """Arrival decides where nothing else does."""
    queue = FairQueue()
    turns = [turn() for _ in range(5)]
    line(queue, *turns)
    assert served(queue) == turns


def test_higher_priority_is_served_first() -> None:
    """Whenever it came and whoever sent it."""
    queue = FairQueue()
    low, high, middle = turn(priority=-5), turn(priority=7), turn(tenant="b")
    line(queue, low, high, middle)
    assert served(queue) == [high, middle, low]


def test_who_comes_back_as_told_goes_before_who_is_new() -> None:
    """Among the same tenant's, and those who came back in the order of their return."""
    queue = FairQueue()
    new, first, second = turn(), turn(returned=True), turn(returned=True)
    line(queue, new, first, second)
    assert served(queue) == [first, second, new]


def test_a_flood_does_not_delay_another_tenant() -> None:
    """One request of a tenant is next but one at the latest, whatever another one sent before."""
    queue = FairQueue()
    line(queue, *[turn(tenant="flood") for _ in range(100)])
    served(queue, 10)
    own = turn(tenant="small")
    queue.add(own)
    assert own in served(queue, 2)


def test_one_request_at_a_time_is_no_way_around_the_share() -> None:
    """A tenant that always has one waiting gets no more than one that has many, by tokens."""
    queue = FairQueue()
    line(queue, *[turn(tenant="many") for _ in range(100)], turn(tenant="one", cost=5.0))
    got = defaultdict(float)
    for _ in range(60):
        (each,) = served(queue, 1)
        got[each.tenant] += each.cost
        if each.tenant == "one":
            queue.add(turn(tenant="one", cost=5.0))
    assert abs(got["one"] - got["many"]) <= 10.0


def test_who_leaves_is_not_charged() -> None:
    """A tenant whose requests left before they were served has its share still."""
    queue = FairQueue()
    gone = [turn(tenant="a", cost=100.0) for _ in range(5)]
    line(queue, *gone, turn(tenant="b"), turn(tenant="b"))
    for each in gone:
        queue.leave(each)
    queue.add(own := turn(tenant="a"))
    assert own in served(queue, 2)


def test_the_memory_of_tenants_is_bounded() -> None:
    """However many tenants were served, only so many are remembered."""
    queue = FairQueue(tenants=3)
    queue.add(turn(tenant="stays", cost=1e9))
    line(queue, *[turn(tenant=f"t{number}", cost=5.0) for number in range(50)], turn(tenant="last", cost=1e9))
    served(queue, 51)
    assert len(queue._levels[0]._ahead) <= 3


@settings(max_examples=300)
@given(STEPS)
def test_nobody_is_lost_or_served_twice_and_priority_is_kept(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    """Whatever the order of coming, leaving and being served."""
    queue = FairQueue(tenants=2)
    waiting: list[Turn] = []
    for name, *rest in steps:
        if name == "add":
            tenant, priority, cost, returned = rest
            waiting.append(turn(tenant=tenant, priority=priority, cost=cost, returned=returned))
            queue.add(waiting[-1])
        elif name == "leave" and waiting:
            queue.leave(waiting.pop(rest[0] % len(waiting)))
        elif name == "serve" and waiting:
            first = queue.first()
            assert first is not None
            assert first.priority == max(each.priority for each in waiting)
            queue.serve(first)
            waiting.remove(first)
        assert len(queue) == len(waiting)
        assert all(each.is_waiting for each in waiting)
        if waiting:
            last, standing = queue.last()
            lowest = min(each.priority for each in waiting)
            lengths = [sum((e.tenant, e.priority) == (t, lowest) for e in waiting) for t in "abc"]
            assert (last.priority, standing) == (lowest, max(lengths))
    assert set(served(queue)) == set(waiting)
    assert queue.first() is None


@settings(max_examples=200)
@given(st.lists(st.tuples(TENANTS, st.integers(1, 50)), min_size=10, max_size=80), st.data())
def test_shares_of_tenants_that_all_wait_are_equal_within_two_requests(
    asked: list[tuple[str, int]], data: st.DataObject
) -> None:
    """As long as two tenants both have somebody waiting, what they got differs by at most their largest requests."""
    queue = FairQueue()
    waiting: dict[str, int] = defaultdict(int)
    for tenant, cost in asked:
        queue.add(turn(tenant=tenant, cost=cost))
        waiting[tenant] += 1
    got: dict[str, float] = dict.fromkeys("abc", 0.0)
    largest = {tenant: max((cost for t, cost in asked if t == tenant), default=0) for tenant in "abc"}
    for _ in range(data.draw(st.integers(0, len(asked)))):
        for one in "abc":
            for other in "abc":
                if waiting[one] and waiting[other]:
                    assert abs(got[one] - got[other]) <= largest[one] + largest[other]
        if all(not count for count in waiting.values()):
            break
        (each,) = served(queue, 1)
        waiting[each.tenant] -= 1
        got[each.tenant] += each.cost
