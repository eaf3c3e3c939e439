"""A state written down and put back decides as the one it was taken from."""

from __future__ import annotations

import msgspec
import pytest

from ext_proc.core.caps import Caps
from ext_proc.core.expectations import Expectation
from ext_proc.core.following import follow
from ext_proc.core.model import Decision, Ending, InferenceRequest
from ext_proc.core.pool import Change
from ext_proc.core.rates import RateSource
from ext_proc.core.state import State, put_back, take
from tests.unit.core.builders import CHAT, MODEL, Fleet, request, text


class Kept(Fleet):
    """A fleet as a holder of state."""

    def follow(self, change: Change) -> None:
        """Give state to endpoints that came and take it from those that went."""
        follow(
            change, ledger=self.ledger, index=self.index, memories=(self.health, self.rates), greeters=(self.health,)
        )


def written(fleet: Kept, blocks: int = 1000) -> State:
    """Write a state down and read it again."""
    page = msgspec.json.encode(take(fleet, {}, "1.2.3", fleet.now, blocks))
    return msgspec.json.decode(page, type=State)


def restored(state: State, models: frozenset[str] = CHAT) -> Kept:
    """Put a state into a new fleet, at another time."""
    fleet = Kept(0)
    fleet.now = 5.0
    put_back(state, fleet, {"p": models, "q": frozenset()}, fleet.now)
    return fleet


def busy() -> Kept:
    """Make a fleet with everything that a decision looks at."""
    fleet = Kept(4, kv_tokens=20_000)
    for number in range(3):
        fleet.serve(request(text(number)))
    fleet.occupy(1, 3, tokens=2000)
    fleet.settle(fleet.pick(subset={"10.0.0.14:8000"}), Ending.CONNECT_FAILURE)
    fleet.rates.assume(fleet.endpoints[0].slot, 3000.0, RateSource.SCRAPE)
    fleet.rates.assume_attention("p", 12_000.0)
    fleet.expectations.assume(Expectation(100.0, 2.0), {MODEL: Expectation(500.0, 7.0)})
    fleet.now += 1  # views of rates are made anew
    return fleet


@pytest.mark.parametrize("asked", [request(text(1)), request(text("new")), request(prompt_tokens=20_000)])
def test_the_next_decision_is_the_same(asked: InferenceRequest) -> None:
    """Candidates, filters and every term come out as they would have, though the clock is another."""
    fleet = busy()
    again = restored(written(fleet))
    expected, made = fleet.pick(asked), again.pick(asked)
    assert (made.chosen.address, made.filters, made.reason) == (
        expected.chosen.address,
        expected.filters,
        expected.reason,
    )
    assert _costs(made) == pytest.approx(_costs(expected))
    assert [terms.hit_tokens for terms in made.terms] == [terms.hit_tokens for terms in expected.terms]


def _costs(decision: Decision) -> list[float]:
    return [number for terms in decision.terms for number in (terms.cost, terms.queue, terms.prefill, terms.memory)]


def test_taking_changes_nothing() -> None:
    """Two states taken one after the other are equal."""
    fleet = busy()
    assert written(fleet) == written(fleet)


def test_blocks_are_bounded_and_of_the_last_prompts() -> None:
    """With few blocks the latest prompt is still found from its beginning, and older ones are not."""
    fleet = Kept(1)
    prompts = [request(text(number, 2048)) for number in range(20)]
    for prompt in prompts:
        fleet.serve(prompt)
    state = written(fleet, blocks=9)
    (endpoint,) = state.endpoints
    assert len(endpoint.newest_blocks) == 9 < endpoint.blocks
    again = restored(state)
    assert again.pick(prompts[-1]).hit_tokens == fleet.pick(prompts[-1]).hit_tokens > 0
    assert again.pick(prompts[0]).hit_tokens == 0


def test_blocks_that_have_expired_are_not_counted() -> None:
    """The index sweeps them away later; whoever compares the numbers shall not look for blocks that nobody holds."""
    fleet = Kept(1, kv_tokens=2_000)
    for number in range(20):
        fleet.serve(request(text(number, 2048)))
    (endpoint,) = written(fleet).endpoints
    assert len(endpoint.newest_blocks) == endpoint.blocks < fleet.index.blocks(fleet.endpoints[0].slot)


def test_memory_in_flight_is_put_back() -> None:
    """What requests share, and what is not there yet of their answers, is left out of it as it was."""
    fleet = Kept(2, kv_tokens=20_000)
    for _ in range(9):
        fleet.pick(request(text("same", 8000)), subset={"10.0.0.11:8000"})
    load = fleet.load(0)
    assert load.sharing is not None
    assert load.pinned < load.tokens - load.later
    again = restored(written(fleet))
    assert [(again.load(place).tokens, again.load(place).pinned) for place in range(2)] == [
        (load.tokens, load.pinned),
        (0, 0),
    ]


def test_ranks_are_put_back() -> None:
    """They drain the queue elsewhere as they do here."""
    fleet = Kept(2, ranks=4)
    for number in range(40):
        fleet.pick(request(text(number, 8000)), subset={"10.0.0.11:8000"})
    again = restored(written(fleet))
    assert [endpoint.ranks for endpoint in again.endpoints] == [4, 4]
    asked = request(text(99, 8000))
    assert _costs(again.pick(asked)) == pytest.approx(_costs(fleet.pick(asked)))


def test_no_block_may_be_wanted() -> None:
    """Without blocks there are no hashes of prompts in the state."""
    assert all(endpoint.newest_blocks == () for endpoint in written(busy(), blocks=0).endpoints)


def test_learnt_models_stay_learnt() -> None:
    """An adapter that an engine named does not become a base model, so requests without a model still find theirs."""
    fleet = Kept(1, models=frozenset())
    (endpoint,) = fleet.endpoints
    fleet.registry.learn(endpoint.address, endpoint.generation, frozenset({"base", "lora"}), frozenset({"lora"}))
    again = restored(written(fleet), frozenset())
    assert again.registry.snapshot.sole_model == "base"
    assert again.endpoints[0].models == {"base", "lora"}


def test_endpoints_taken_out_stay_out() -> None:
    """An explanation elsewhere knows what an operator said."""
    fleet = Kept(2)
    first, second = fleet.endpoints
    fleet.lifecycle.drain(first, fleet.now, 60.0)
    state = written(fleet)
    assert [endpoint.lifecycle for endpoint in state.endpoints] == ["draining", "active"]
    assert {restored(state).pick().chosen.address for _ in range(10)} == {second.address}


def test_a_state_of_another_format_is_refused() -> None:
    """A file from a kvpicker that writes otherwise is not misread."""
    page = msgspec.json.encode(take(Kept(1), {}, "1.2.3", 0.0, 0)).replace(b"kvpicker-state/1", b"kvpicker-state/2")
    with pytest.raises(msgspec.ValidationError, match="kvpicker-state/2"):
        msgspec.json.decode(page, type=State)


def test_caps_of_single_endpoints_are_kept() -> None:
    """Those of pools are in the configuration; without these another one would seem to have room."""
    fleet = Kept(2, caps=Caps(requests=3, tokens=9_000))
    again = restored(written(fleet))
    assert [endpoint.caps for endpoint in again.endpoints] == [Caps(requests=3, tokens=9_000)] * 2
