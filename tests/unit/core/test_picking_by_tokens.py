"""Decisions on prompts whose tokens are known, and what their outcomes teach."""

from __future__ import annotations

import pytest

from ext_proc.core.model import Decision, Ending, IndexMode, Usage
from ext_proc.core.prefix_index import ObservedIndex
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher
from ext_proc.core.token_hits import TokenHits, TokenPrompt
from tests.unit.core.builders import Fleet, request, text

TOKENS = TokenPrompt(TokenHasher(16).chain(range(1001)), 1001)


class TokenFleet(Fleet):
    """A fleet whose engines at the first two places report what they hold."""

    def __init__(self) -> None:
        super().__init__(3)
        self.resident = ResidentIndex()
        for endpoint in self.endpoints[:2]:
            self.resident.add(endpoint.slot, 16)
        self.picker.token_hits = TokenHits(self.resident)

    def ask(
        self, prompt: bytes = text("a"), tokens: TokenPrompt | None = TOKENS, subset: set[str] | None = None
    ) -> Decision:
        """Pick for a prompt."""
        made = self.picker.pick(request(prompt), self.now, self.generator, subset, tokens)
        assert isinstance(made, Decision)
        return made


def test_who_reports_the_prompt_gets_it() -> None:
    """Reports count although our own history knows nothing."""
    fleet = TokenFleet()
    fleet.resident.stored(fleet.endpoints[1].slot, TOKENS.chain.hashes[:40])
    made = fleet.ask()
    assert (made.chosen, made.hit_tokens) == (fleet.endpoints[1], 640)
    prediction = made.prediction(made.chosen.address)
    assert prediction is not None
    assert (prediction.tokens, prediction.mode) == (640, IndexMode.TOKEN)


def test_reports_go_before_our_own_history() -> None:
    """What an engine evicted is not held, whatever we sent there."""
    fleet = TokenFleet()
    chain = fleet.hasher.chain(request(text("a")))
    fleet.index.learn(fleet.endpoints[0].slot, chain)
    fleet.index.learn(fleet.endpoints[2].slot, chain)
    made = fleet.ask()
    assert made.chosen == fleet.endpoints[2]
    assert made.exact[0] is False
    assert [terms.hit_tokens > 0 for terms in made.terms] == [False, False, True]


def test_without_tokens_the_text_decides() -> None:
    """Tokens that did not come in time leave the decision to our own history, for every endpoint."""
    fleet = TokenFleet()
    fleet.index.learn(fleet.endpoints[0].slot, fleet.hasher.chain(request(text("a"))))
    made = fleet.ask(tokens=None)
    assert (made.chosen, made.exact) == (fleet.endpoints[0], ())
    assert made.prediction(made.chosen.address) is not None


def test_the_length_is_that_of_the_tokens() -> None:
    """An exact count replaces the estimate, and hits by text are put into its measure."""
    fleet = TokenFleet()
    fleet.index.learn(fleet.endpoints[2].slot, fleet.hasher.chain(request(text("a"))))
    made = fleet.ask()
    assert made.request.prompt_tokens == 1001
    assert 900 < made.hit_tokens <= 1001  # 1,024 were estimated of its bytes


def test_siblings_of_a_burst_go_together_before_anything_is_reported() -> None:
    """The second one of two equal prompts finds the engine that the first one was sent to."""
    fleet = TokenFleet()
    fleet.registry.replace("p", [])
    fleet.fill("p", "10.0.0.21:8000", "10.0.0.22:8000", models=frozenset({"acme/chat-8b"}))
    for endpoint in fleet.endpoints:
        fleet.resident.add(endpoint.slot, 16)
    first = fleet.ask()
    fleet.now += 2.0  # it is still to be reported, and nothing else waits there
    second = fleet.ask()
    assert (first.hit_tokens, second.hit_tokens) == (0, 992)
    assert first.chosen == second.chosen


def test_a_failed_request_is_not_expected_to_be_held() -> None:
    """Of a prompt that an engine refused nothing remains."""
    fleet = TokenFleet()
    made = fleet.ask()
    fleet.settle(made, Ending.CONNECT_FAILURE, served=None)
    assert fleet.picker.token_hits is not None
    assert fleet.picker.token_hits.held(TOKENS, [made.chosen.slot], fleet.now)[0] in (0, None)


def test_what_ran_is_expected_until_its_report_can_be_here() -> None:
    """After a good end only reports count; after a retry elsewhere not even that is waited for."""
    fleet = TokenFleet()
    hits = fleet.picker.token_hits
    assert hits is not None
    reporting, retried, other = fleet.endpoints
    first, second = fleet.ask(subset={reporting.address}), fleet.ask(subset={retried.address})
    assert hits.held(TOKENS, [0, 1], fleet.now) == [992, 992]
    fleet.settle(first)
    fleet.settle(second, served=other.address, attempts=2)
    assert hits.held(TOKENS, [0, 1], fleet.now) == [992, 0]
    fleet.now += 1.0
    assert hits.held(TOKENS, [0, 1], fleet.now) == [0, 0]


def test_our_own_history_learns_only_from_its_own_predictions() -> None:
    """An engine whose reports were right or wrong says nothing of the size that we take its cache to have."""
    fleet = TokenFleet()
    fleet.resident.stored(fleet.endpoints[1].slot, TOKENS.chain.hashes)
    before = fleet.index.capacity(fleet.endpoints[1].slot)
    made = fleet.ask()
    fleet.settle(made, usage=Usage(prompt_tokens=1001, cached_tokens=0))
    assert fleet.index.capacity(fleet.endpoints[1].slot) == before
    by_text = fleet.ask(tokens=None)
    fleet.settle(by_text, usage=Usage(prompt_tokens=1001, cached_tokens=0))
    assert fleet.index.capacity(by_text.chosen.slot) < before


def _grown(capacity: int = 4_000) -> tuple[ObservedIndex, list[list[int]]]:
    """Make a slot that learnt three prompts of 1,000 tokens, one after the other."""
    index = ObservedIndex(lambda blocks: blocks * 100)
    index.add(0, capacity)
    chains = [[100 * number + block for block in range(1, 11)] for number in range(3)]
    for chain in chains:
        index.learn(0, chain)
    return index, chains


def test_what_is_older_than_what_was_missing_is_forgotten() -> None:
    """Engines evict what was not used for longest, so with one prompt all older ones are gone."""
    index, chains = _grown()
    used = index.used(0, chains[1][-1])
    stamp = index.learn(0, chains[1])
    index.missed(0, used, stamp)
    assert [index.depths(chain, (0,)) for chain in chains] == [[0], [10], [10]]


def test_what_was_used_just_before_says_nothing_of_eviction() -> None:
    """The twin of a prompt that is not computed yet misses the cache without any loss."""
    index, chains = _grown(capacity=100_000)
    used = index.used(0, chains[1][-1])
    index.missed(0, used, index.learn(0, chains[1]))
    assert [index.depths(chain, (0,)) for chain in chains] == [[10], [10], [10]]


@pytest.mark.parametrize(
    ("capacity", "left"),
    [
        pytest.param(3_000, 3_000, id="near the right size"),
        pytest.param(6_500, 5_600, id="far too large"),
        pytest.param(100_000, 100_000, id="used just before"),
    ],
)
def test_an_engine_that_evicts_far_too_early_is_believed_to_be_smaller(capacity: int, left: int) -> None:
    """After 2,002 new tokens it lacked a prompt: of 6,500 a fifth of the difference is given up, of 3,000 nothing."""
    index, chains = _grown(capacity)
    used = index.used(0, chains[1][-1])
    index.missed(0, used, used + 2_002)
    assert index.capacity(0) == pytest.approx(left, abs=1)


def test_an_engine_that_lost_a_prompt_is_not_believed_to_hold_older_ones() -> None:
    """The outcome of one request corrects what is believed of others."""
    fleet = Fleet(1, kv_tokens=4_000)
    for seed in ("old", "mid", "new"):
        fleet.serve(request(text(seed)), usage=Usage(prompt_tokens=1024, completion_tokens=1, cached_tokens=0))
    fleet.serve(request(text("mid")), usage=Usage(prompt_tokens=1024, completion_tokens=1, cached_tokens=0))
    assert fleet.pick(request(text("old"))).hit_tokens == 0
    assert fleet.pick(request(text("new"))).hit_tokens > 900
