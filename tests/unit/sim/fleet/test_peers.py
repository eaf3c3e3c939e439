"""How other pickers choose."""

from __future__ import annotations

from ext_proc.core.load import Load
from ext_proc.sim.fleet.kvpickers import Scrape
from ext_proc.sim.fleet.peers import CacheAware, NewTokensTimesBatch, WeightedScrapes
from tests.unit.core.builders import context, endpoints, request

IDLE = [Load(), Load(), Load()]


def scrape(waiting: int, usage: float = 0.0) -> Scrape:
    """Make a scrape."""
    return Scrape(waiting=waiting, running=0, kv_usage=usage, ttft_sum=0.0, ttft_count=0)


def best(costs: list[float]) -> int:
    """Return the position of the lowest cost."""
    return costs.index(min(costs))


def test_weighted_scrapes_add_up_prefix_queue_and_memory() -> None:
    """The sum is 3 * matched share + 2 * min-max of the queue + 2 * free memory."""
    strategy = WeightedScrapes()
    strategy.scraped(0, scrape(4, 0.5), 1.0)
    strategy.scraped(1, scrape(2, 0.2), 1.0)
    ranking = strategy.rank(request(prompt_tokens=1000), endpoints(3), context(IDLE, [500, 0, 0]))
    expected = [-(1.5 + 0 + 1.0), -(0 + 1.0 + 1.6), -(0 + 2.0 + 2.0)]
    assert [round(cost, 6) for cost in ranking.costs] == expected


def test_weighted_scrapes_break_ties_at_random() -> None:
    """Without any scrape or hit all sums are equal, and any engine may be chosen."""
    around = context(IDLE)
    made = {best(WeightedScrapes().rank(request(prompt_tokens=9), endpoints(3), around).costs) for _ in range(50)}
    assert made == {0, 1, 2}


def test_new_tokens_times_batch_is_a_product() -> None:
    """Uncached tokens times requests there would be."""
    loads = [Load(in_flight=3), Load(in_flight=0)]
    ranking = NewTokensTimesBatch().rank(request(prompt_tokens=100), endpoints(2), context(loads, [90, 0]))
    assert ranking.costs == [40.0, 100.0]


def test_cache_aware_follows_the_best_match_above_the_threshold() -> None:
    """A match of more than 30 % of the prompt decides."""
    ranking = CacheAware().rank(request(prompt_tokens=100), endpoints(3), context(IDLE, [0, 40, 20]))
    assert best(ranking.costs) == 1


def test_cache_aware_takes_the_smallest_tree_on_a_miss() -> None:
    """Without a match, who was given the fewest tokens so far."""
    strategy = CacheAware()
    made = [
        best(strategy.rank(request(prompt_tokens=size), endpoints(3), context(IDLE)).costs) for size in (100, 10, 50, 9)
    ]
    assert made == [0, 1, 2, 1]


def test_cache_aware_leaves_the_prefix_when_loads_differ_much() -> None:
    """More than 64 apart and more than 1.5 times: the least loaded, whatever it has cached."""
    loads = [Load(in_flight=70), Load(in_flight=5), Load(in_flight=30)]
    ranking = CacheAware().rank(request(prompt_tokens=100), endpoints(3), context(loads, [100, 0, 0]))
    assert best(ranking.costs) == 1
