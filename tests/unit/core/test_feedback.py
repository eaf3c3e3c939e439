"""What outcomes teach."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ext_proc.core.health_states import HealthPolicy, HealthState
from ext_proc.core.load import Load
from ext_proc.core.model import Decision, Ending, Operation, Outcome, Usage
from ext_proc.core.prompts.framing import TOKENS
from ext_proc.core.rates import Scrape
from tests.unit.core.builders import CHAT, MODEL, Fleet, Notes, request, text

PROMPT = text("a")


@pytest.fixture
def fleet() -> Fleet:
    """Three idle equal endpoints."""
    return Fleet(3)


def _holders(fleet: Fleet) -> set[int]:
    slots = [endpoint.slot for endpoint in fleet.endpoints]
    depths = fleet.index.depths(fleet.hasher.chain(request(PROMPT)), slots)
    return {slot for slot, depth in zip(slots, depths, strict=True) if depth}


def _states(fleet: Fleet) -> list[str]:
    return [fleet.health.state(endpoint.slot) for endpoint in fleet.endpoints]


def test_an_outcome_settles_its_decision_once(fleet: Fleet) -> None:
    """The first outcome releases the lease and is observed; a second one finds nothing."""
    decision = fleet.pick(request(PROMPT))
    assert fleet.settle(decision)
    assert not fleet.settle(decision)
    assert len(fleet.ledger) == 0
    assert [finished.id for finished, _ in fleet.notes.finishes] == [decision.id]


def test_an_unknown_decision_teaches_nothing(fleet: Fleet) -> None:
    """An outcome of another process, or of nobody, is ignored."""
    assert not fleet.feedback.settle(Outcome(decision_id="x-1", ending=Ending.RESET), 0.0)
    assert not fleet.feedback.renew("x-1", 0.0)
    assert fleet.notes.finishes == []


def test_answers_teach_length_and_residence(fleet: Fleet) -> None:
    """A good answer moves the expectations for the next ones; a failed or a nearly free one does not."""
    before = (fleet.expectations.of(MODEL).output, fleet.expectations.of(MODEL).residence)
    fleet.settle(fleet.pick(), Ending.RESET, duration=500.0)
    fleet.serve(request(operation=Operation.LOOKUP), duration=0.001)
    assert (fleet.expectations.of(MODEL).output, fleet.expectations.of(MODEL).residence) == before
    fleet.serve(usage=Usage(completion_tokens=900), duration=30.0)
    assert fleet.expectations.of(MODEL).output > before[0]
    assert fleet.expectations.of(MODEL).residence > before[1]


@pytest.mark.parametrize(
    ("ending", "kept"),
    [
        (Ending.OK, True),
        (Ending.CUT, True),
        (Ending.TIMEOUT, True),
        (Ending.CLIENT_GONE, True),
        (Ending.RESET, False),
        (Ending.CONNECT_FAILURE, False),
        (Ending.SERVER_ERROR, False),
        (Ending.OVERLOADED, False),
        (Ending.CLIENT_ERROR, False),
        (Ending.LOCAL, False),
    ],
)
def test_the_index_believes_only_what_was_computed(fleet: Fleet, ending: Ending, *, kept: bool) -> None:
    """A prompt that an engine refused or never got is not believed to be cached there."""
    decision = fleet.pick(request(PROMPT))
    fleet.settle(decision, ending)
    assert _holders(fleet) == ({decision.chosen.slot} if kept else set())


def test_a_decision_that_reached_no_engine_leaves_no_prefix(fleet: Fleet) -> None:
    """If the client left before any engine was reached, no engine holds the prompt."""
    fleet.settle(fleet.pick(request(PROMPT)), Ending.CLIENT_GONE, served=None)
    assert _holders(fleet) == set()


def test_what_was_cached_before_a_failure_stays(fleet: Fleet) -> None:
    """A failed request takes back only what it added itself."""
    first = fleet.serve(request(PROMPT))
    second = fleet.pick(request(PROMPT + text("b")))
    fleet.settle(second, Ending.CLIENT_ERROR)
    assert second.chosen == first.chosen
    assert fleet.index.blocks(first.chosen.slot) == 10


def test_g21_what_another_endpoint_served_is_learnt_there(fleet: Fleet) -> None:
    """After Envoy's retry the prefix is believed at the endpoint that served, and the first one is marked."""
    decision = fleet.pick(request(PROMPT))
    first, second, _ = decision.endpoints
    fleet.settle(decision, served=second.address, attempts=2)
    assert _holders(fleet) == {second.slot}
    assert fleet.health.state(first.slot) is HealthState.EJECTED
    assert fleet.health.state(second.slot) is HealthState.READY
    assert [fleet.load(place).in_flight for place in range(3)] == [0, 0, 0]


def test_b15_a_cut_stream_speaks_against_the_engine(fleet: Fleet) -> None:
    """Streams that break in the middle are illness of the engine and are released once each."""
    decisions = [fleet.pick(subset={"10.0.0.11:8000"}) for _ in range(2)]
    for decision in decisions * 2:
        fleet.settle(decision, Ending.CUT)
    assert _states(fleet) == ["ejected", "ready", "ready"]
    assert fleet.load(0).in_flight == 0


def test_streams_of_before_an_ejection_do_not_repeat_it(fleet: Fleet) -> None:
    """When an engine comes back, the late ends of what it lost do not take it out again."""
    lost = [fleet.pick(subset={"10.0.0.11:8000"}) for _ in range(6)]
    fleet.now += 1.0
    for decision in lost[:2]:
        fleet.settle(decision, Ending.CUT)
    fleet.now += 10.0
    fleet.settle(fleet.pick(subset={"10.0.0.11:8000"}))
    for decision in lost[2:]:
        fleet.settle(decision, Ending.TIMEOUT)
    assert _states(fleet) == ["ready"] * 3


def test_b17_errors_of_clients_keep_an_engine_in_rotation(fleet: Fleet) -> None:
    """60 prompts that are too long do not eject the endpoint that says so."""
    for _ in range(60):
        fleet.settle(fleet.pick(subset={"10.0.0.11:8000"}), Ending.CLIENT_ERROR)
    assert _states(fleet) == ["ready"] * 3


def test_f12_a_repeated_request_leaves_the_engine_that_resets(fleet: Fleet) -> None:
    """A prefix that an engine holds does not outweigh that it just failed twice (F12)."""
    first = fleet.serve(request(PROMPT)).chosen
    picked = []
    for _ in range(3):
        decision = fleet.pick(request(PROMPT))
        picked.append(decision.chosen)
        fleet.now += 0.3
        fleet.settle(decision, Ending.RESET if decision.chosen is first else Ending.OK)
    assert picked[0] is first
    assert picked[2] is not first


def test_all_attempts_in_vain_mark_all_that_were_tried(fleet: Fleet) -> None:
    """If no engine was reached, each endpoint that Envoy tried is marked, and no other."""
    fleet.health.configure(HealthPolicy(max_ejected=1.0), probing=False)
    decision = fleet.pick()
    fleet.settle(decision, Ending.CONNECT_FAILURE, served=None, attempts=2)
    marked = [fleet.health.state(endpoint.slot) for endpoint in decision.endpoints]
    assert marked == ["ejected", "ejected", "ready"]


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_reply_of_envoy_itself_marks_nobody(fleet: Fleet, attempts: int) -> None:
    """Without an attempt there is nothing to say of any endpoint."""
    fleet.settle(fleet.pick(), Ending.LOCAL, served=None, attempts=attempts)
    assert _states(fleet) == ["ready"] * 3


def test_who_served_at_last_is_not_marked_for_a_first_try(fleet: Fleet) -> None:
    """An endpoint that served on a second attempt of its own stays in rotation."""
    fleet.settle(fleet.pick(), attempts=2)
    assert _states(fleet) == ["ready"] * 3


def test_more_attempts_than_names_are_understood(fleet: Fleet) -> None:
    """Envoy that begins the list again does not put the blame on anybody twice or out of range."""
    fleet.health.configure(HealthPolicy(max_ejected=1.0), probing=False)
    fleet.settle(fleet.pick(), Ending.CONNECT_FAILURE, served=None, attempts=1_000_000)
    assert _states(fleet) == ["ejected"] * 3


def test_an_endpoint_that_envoy_chose_itself_is_credited() -> None:
    """If Envoy's fallback policy served, prefix and response belong to the endpoint that it took."""
    fleet = Fleet(3, fallbacks=0)
    decision = fleet.pick(request(PROMPT))
    other = next(endpoint for endpoint in fleet.endpoints if endpoint != decision.chosen)
    fleet.settle(decision, served=other.address, response_id="r")
    assert _holders(fleet) == {other.slot}
    assert fleet.pick(request(previous_response="r")).chosen == other


def test_a_stranger_that_served_teaches_nothing(fleet: Fleet) -> None:
    """An address that is no endpoint of ours gets no credit, and the chosen one is not believed to hold the prompt."""
    decision = fleet.pick(request(PROMPT))
    assert fleet.settle(decision, served="10.9.9.9:1", response_id="r")
    assert _holders(fleet) == set()
    assert fleet.pick(request(previous_response="r")).reason != "previous_response"


def test_an_endpoint_that_is_gone_learns_nothing(fleet: Fleet) -> None:
    """E04: an outcome that comes after its endpoint's removal touches neither its successor's index nor its health."""
    decision = fleet.pick(request(PROMPT), subset={"10.0.0.11:8000"})
    fleet.fill("p", "10.0.0.21:8000", models=decision.chosen.models)
    fleet.fill("p", "10.0.0.21:8000", "10.0.0.11:8000", models=decision.chosen.models)
    fleet.settle(decision, Ending.CONNECT_FAILURE)
    assert _states(fleet) == ["ready", "ready"]
    assert (_holders(fleet), fleet.load(0)) == (set(), Load())


def test_lost_outcomes_release_and_are_observed(fleet: Fleet) -> None:
    """A decision whose log entry never comes ends as lost, teaches nothing and leaks nothing."""
    decision = fleet.pick(request(PROMPT))
    assert fleet.feedback.expire(fleet.now + 10_000.0) == 1
    assert [outcome.ending for _, outcome in fleet.notes.finishes] == [Ending.LOST]
    assert len(fleet.ledger) == 0
    assert _states(fleet) == ["ready"] * 3
    assert not fleet.settle(decision)


class Broken(Notes):
    """Fails at every end of a request."""

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Fail."""
        raise RuntimeError


def test_f07_an_observer_that_raises_leaks_no_lease() -> None:
    """What is in flight is released before anything else may fail."""
    fleet = Fleet(3, notes=Broken())
    with pytest.raises(RuntimeError):
        fleet.settle(fleet.pick())
    assert [fleet.load(place).in_flight for place in range(3)] == [0, 0, 0]


def _talk(fleet: Fleet, rate: float, count: int = 200) -> None:
    """Let one endpoint after the other answer prompts of its own, each with a first token after its prefill."""
    for number in range(count):
        decision = fleet.pick(request(text(number)))
        fleet.now += 1024 / rate
        fleet.feedback.first_token(decision.id, fleet.now)
        fleet.settle(decision)


def test_first_tokens_teach_how_fast_endpoints_are(fleet: Fleet) -> None:
    """The predicted prefill comes to be what first tokens show, far from the default."""
    _talk(fleet, 1_000.0)
    decision = fleet.pick(request(text("next")))
    assert decision.terms[0].prefill == pytest.approx(1024 / 1_000, rel=0.1)


def test_first_tokens_of_unknown_decisions_say_nothing(fleet: Fleet) -> None:
    """A first token that comes after the end, twice or of another process changes nothing."""
    decision = fleet.pick(request(PROMPT))
    fleet.settle(decision)
    for name in (decision.id, "x-1"):
        fleet.feedback.first_token(name, fleet.now + 5)
    assert [fleet.rates.rate(endpoint.slot) for endpoint in fleet.endpoints] == [None] * 3


def test_reported_hits_correct_what_is_believed_to_fit(fleet: Fleet) -> None:
    """An engine that reports nothing cached where much was predicted is believed to hold less."""
    first = fleet.serve(request(PROMPT))
    before = fleet.index.capacity(first.chosen.slot)
    second = fleet.serve(request(PROMPT), usage=Usage(prompt_tokens=1024, completion_tokens=5, cached_tokens=0))
    assert (second.chosen, second.hit_tokens) == (first.chosen, 1024)
    assert fleet.index.capacity(first.chosen.slot) == int(before * 0.9)


@pytest.mark.parametrize(
    ("outcome", "fits"),
    [
        ({"usage": Usage(prompt_tokens=1024, completion_tokens=100)}, True),
        ({"usage": Usage(prompt_tokens=1024, completion_tokens=400)}, False),
        ({"usage": Usage(prompt_tokens=1024)}, False),
        ({"ending": Ending.CLIENT_GONE}, False),
    ],
)
def test_answers_take_their_share_of_memory(outcome: dict[str, Any], *, fits: bool) -> None:
    """As many tokens as were generated, or as many as are expected where nobody says, evict what is oldest."""
    fleet = Fleet(1, kv_tokens=2300)
    fleet.serve(request(text("old")), usage=Usage(prompt_tokens=1024, completion_tokens=1))
    fleet.serve(request(PROMPT), **outcome)
    assert (fleet.pick(request(text("old"))).hit_tokens > 0) is fits


def test_an_engine_that_still_holds_what_was_believed_gone_is_larger(fleet: Fleet) -> None:
    """The reported hit is held against the last use of the block that was believed to have expired."""
    fleet = Fleet(1, kv_tokens=2100)
    one = Usage(prompt_tokens=1024, completion_tokens=1, cached_tokens=0)
    for seed in ("a", "b", "c"):
        fleet.serve(request(text(seed)), usage=one)
    before = fleet.index.capacity(fleet.endpoints[0].slot)
    decision = fleet.serve(request(text("a")), usage=Usage(prompt_tokens=1024, completion_tokens=1, cached_tokens=1000))
    assert decision.hit_tokens == 0
    assert fleet.index.capacity(fleet.endpoints[0].slot) > 1.15 * before


def test_a_prompt_seen_in_part_corrects_nothing(fleet: Fleet) -> None:
    """Of a body that was cut neither the length nor the cached share can be compared."""
    usage = Usage(prompt_tokens=9000, completion_tokens=5, cached_tokens=8000)
    decision = fleet.serve(request(PROMPT, truncated=True), usage=usage)
    assert fleet.expectations.of(MODEL).scale == 1.0
    assert fleet.index.capacity(decision.chosen.slot) == 400_000


def test_engines_teach_how_many_tokens_a_text_has(fleet: Fleet) -> None:
    """Where text has twice the tokens that were estimated, lengths and hits are counted twice as high."""
    for number in range(300):
        fleet.serve(request(text(number)), usage=Usage(prompt_tokens=2048, completion_tokens=5))
    first = fleet.serve(request(PROMPT))
    second = fleet.pick(request(PROMPT))
    assert first.request.prompt_tokens == pytest.approx(2048, rel=0.02)
    assert second.hit_tokens == pytest.approx(2048, rel=0.02)
    assert fleet.load(fleet.endpoints.index(second.chosen)).tokens == pytest.approx(2048 + 5, rel=0.1)


def test_scrapes_teach_the_rate_and_the_queue(fleet: Fleet) -> None:
    """Where no first tokens come, sums of a scrape teach the rate, and the engine's queue outranks the virtual one."""
    first = fleet.endpoints[0]
    fleet.feedback.scraped(first, Scrape(waiting=0), fleet.now)
    made = fleet.occupy(0, 10, tokens=8_000)
    assert fleet.load(0).busy_until > fleet.now + 10
    fleet.feedback.scraped(first, Scrape(waiting=0, running=10), fleet.now)
    assert fleet.load(0).busy_until == pytest.approx(fleet.now + made[-1].terms[0].prefill)
    fleet.feedback.scraped(first, Scrape(30.0, 10, waiting=4, running=6), fleet.now)
    assert fleet.load(0).busy_until == pytest.approx(fleet.now + 4.5 * made[-1].terms[0].prefill)
    assert fleet.rates.rate(first.slot) is not None


def test_first_tokens_outrank_scrapes(fleet: Fleet) -> None:
    """While first tokens are heard of, neither rate nor queue follows a scrape."""
    _talk(fleet, 1_000.0)
    first = fleet.endpoints[0]
    rate = fleet.rates.rate(first.slot)
    fleet.occupy(0, 3, tokens=8_000)
    busy = fleet.load(0).busy_until
    for _ in range(3):
        fleet.feedback.scraped(first, Scrape(99.0, 1, waiting=0, running=0), fleet.now)
    assert (fleet.rates.rate(first.slot), fleet.load(0).busy_until) == (rate, busy)


def test_scrapes_of_an_endpoint_that_is_gone_say_nothing(fleet: Fleet) -> None:
    """What a scrape brings after its endpoint was replaced is not the successor's."""
    gone = fleet.endpoints[0]
    fleet.fill("p", "10.0.0.99:8000", models=CHAT)
    for _ in range(3):
        fleet.feedback.scraped(gone, Scrape(9.0, 1, waiting=3), fleet.now)
    assert fleet.rates.rate(fleet.endpoints[0].slot) is None


def test_an_answer_says_that_all_before_it_is_prefilled(fleet: Fleet) -> None:
    """However wrong the assumed rate, the virtual queue never holds what must be done."""
    made = fleet.occupy(0, 3, tokens=80_000)
    fleet.settle(made[1])
    assert fleet.load(0).busy_until == pytest.approx(fleet.now + made[2].terms[0].prefill)


def test_the_first_token_is_told_with_the_outcome(fleet: Fleet) -> None:
    """The time counts from the decision, is observed at once, and belongs to the outcome, or to the lost one."""
    settled, lost = fleet.pick(), fleet.pick()
    fleet.now += 0.25
    fleet.feedback.first_token(settled.id, fleet.now)
    fleet.feedback.first_token(lost.id, fleet.now, "10.0.0.13:8000")
    assert [seconds for _, seconds in fleet.notes.first_tokens] == [0.25, 0.25]
    fleet.settle(settled)
    fleet.feedback.expire(fleet.now + 10_000)
    told = [(outcome.ending, outcome.first_token) for _, outcome in fleet.notes.finishes]
    assert told == [(Ending.OK, 0.25), (Ending.LOST, 0.25)]
    assert fleet.notes.finishes[1][1].served == "10.0.0.13:8000"


def test_only_the_first_token_counts(fleet: Fleet) -> None:
    """A second one, and one of a decision that is unknown or settled, is not observed."""
    decision = fleet.pick()
    fleet.feedback.first_token(decision.id, fleet.now + 1)
    fleet.feedback.first_token(decision.id, fleet.now + 2)
    fleet.settle(decision)
    for name in (decision.id, "x-1"):
        fleet.feedback.first_token(name, fleet.now + 3)
    assert [seconds for _, seconds in fleet.notes.first_tokens] == [1.0]


def test_tokens_of_another_endpoint_teach_nothing_of_the_chosen_one(fleet: Fleet) -> None:
    """After a retry neither the queue nor the rate of the endpoint that was not reached is corrected."""
    for number in range(50):
        decision = fleet.pick(request(text(number)))
        place = fleet.endpoints.index(decision.chosen)
        before = fleet.load(place).busy_until
        other = fleet.endpoints[(place + 1) % 3].address
        fleet.now += 5
        fleet.feedback.first_token(decision.id, fleet.now, other)
        assert fleet.load(place).busy_until == before
        fleet.settle(decision, served=other)
    assert [fleet.rates.rate(endpoint.slot) for endpoint in fleet.endpoints] == [None] * 3


def test_a_restarted_engine_holds_no_prefix(fleet: Fleet) -> None:
    """What an engine held is forgotten when its process began anew, and a successor's memory is left alone (E06)."""
    first = fleet.serve(request(PROMPT))
    gone = msgspec.structs.replace(first.chosen, generation=-1)
    fleet.feedback.restarted(gone)
    assert _holders(fleet) == {first.chosen.slot}
    fleet.feedback.restarted(first.chosen)
    assert _holders(fleet) == set()


def test_token_ids_are_counted_and_not_estimated(fleet: Fleet) -> None:
    """What is learnt of text neither changes the length of a prompt of token ids nor is learnt from it."""
    for number in range(300):
        fleet.serve(request(text(number)), usage=Usage(prompt_tokens=2048, completion_tokens=5))
    before = fleet.expectations.of(MODEL).scale
    ids = TOKENS + text("ids", 4000)
    decision = fleet.serve(request(ids, prompt_tokens=1000), usage=Usage(prompt_tokens=1000, completion_tokens=5))
    assert decision.request.prompt_tokens == 1000
    assert fleet.expectations.of(MODEL).scale == before == pytest.approx(2, rel=0.02)


def test_the_index_hears_how_engines_count_tokens(fleet: Fleet) -> None:
    """Where texts are twice the tokens that are estimated, half as much text fits in a cache."""
    for number in range(100):
        decision = fleet.serve(request(text(number)), usage=Usage(prompt_tokens=2048, completion_tokens=5))
    held = fleet.index._slots[decision.chosen.slot]
    assert held.room == pytest.approx(held.capacity / 2, rel=0.05)


def test_an_engine_that_counts_finer_than_blocks_is_believed(fleet: Fleet) -> None:
    """Reports that lie within the block behind the prediction leave the capacity as it is."""
    fleet.serve(request(text("a")))
    for number in range(50):
        shared = text("a")[:2300] + text(number, 1796)
        cached = Usage(prompt_tokens=1024, completion_tokens=5, cached_tokens=575)
        decision = fleet.serve(request(shared), usage=cached)
        assert decision.hit_tokens == 512
    assert fleet.index.capacity(decision.chosen.slot) < 400_000 * 1.03


def test_another_endpoints_answer_drains_no_queue(fleet: Fleet) -> None:
    """What Envoy sent elsewhere in its first attempt leaves the chosen endpoint's queue but for itself."""
    made = fleet.occupy(0, 3, tokens=80_000)
    before = fleet.load(0).busy_until
    fleet.settle(made[2], served=fleet.endpoints[1].address)
    assert fleet.load(0).busy_until == pytest.approx(before - made[2].terms[0].prefill)


def test_a_refused_prompt_waits_in_no_queue(fleet: Fleet) -> None:
    """A long prompt that an engine turned away does not keep others from it."""
    fleet.occupy(0, 1, tokens=100)
    before = fleet.load(0).busy_until
    (refused,) = fleet.occupy(0, 1, tokens=100_000)
    fleet.settle(refused, Ending.OVERLOADED)
    assert fleet.load(0).busy_until == pytest.approx(before)


def test_scrapes_are_held_against_requests_that_the_engine_counts() -> None:
    """Requests that fail, and those that generate nothing, do not shift the comparison of times to first token."""
    fleet = Fleet(1)
    endpoint = fleet.endpoints[0]
    fleet.feedback.scraped(endpoint, Scrape(), fleet.now)
    for number in range(400):
        fleet.serve(request(operation=Operation.EMBEDDING, prompt_tokens=500), seconds=0.01)
        fleet.settle(fleet.pick(request(text(f"x{number}"))), Ending.OVERLOADED)
        decision = fleet.pick(request(text(number)))
        fleet.now += 1024 / 4_000
        fleet.settle(decision)
        fleet.feedback.scraped(endpoint, Scrape(1024 / 4_000, 1), fleet.now)
    assert fleet.rates.rate(endpoint.slot) == pytest.approx(4_000, rel=0.1)


def _through_a_sleep(fleet: Fleet, decision: Decision) -> None:
    """Let the engine of a request sleep for an hour before it answers."""
    fleet.health.slept(decision.chosen)
    fleet.now += 3600.0
    fleet.health.woke(decision.chosen, fleet.now)
    fleet.now += 1.0
    fleet.feedback.first_token(decision.id, fleet.now)
    usage = Usage(prompt_tokens=1024, completion_tokens=5, cached_tokens=0)
    fleet.settle(decision, duration=3601.0, first_byte=3601.0, usage=usage)


def test_what_waited_for_its_engine_to_wake_teaches_nothing(fleet: Fleet) -> None:
    """An hour of sleep is neither prefill nor a usual stay, and what it cost the cache says nothing of its size."""
    _talk(fleet, 1_000.0)
    fleet.serve(request(PROMPT), duration=1.0, usage=Usage(prompt_tokens=1024, completion_tokens=5, cached_tokens=0))
    decision = fleet.pick(request(PROMPT))
    slot = decision.chosen.slot
    assert decision.hit_tokens
    before = fleet.rates.rate(slot), fleet.expectations.of(MODEL).residence, fleet.index.capacity(slot)
    _through_a_sleep(fleet, decision)
    assert (fleet.rates.rate(slot), fleet.expectations.of(MODEL).residence, fleet.index.capacity(slot)) == before
    later = fleet.pick(request(text("later")), subset={decision.chosen.address})
    fleet.now += 60.0
    fleet.feedback.first_token(later.id, fleet.now)
    assert fleet.rates.rate(slot) != before[0], "what is sent after it woke counts again"


@pytest.mark.parametrize(("ending", "kept"), [(Ending.OK, True), (Ending.CUT, False), (Ending.CLIENT_GONE, False)])
def test_what_a_sleep_cut_off_is_held_no_more(fleet: Fleet, ending: Ending, *, kept: bool) -> None:
    """Its prompt went with the cache, though the outcome comes later; one that was answered was computed after it."""
    decision = fleet.pick(request(PROMPT))
    fleet.health.slept(decision.chosen)
    fleet.index.clear(decision.chosen.slot)
    fleet.settle(decision, ending)
    assert bool(_holders(fleet)) is kept


def test_sums_of_first_tokens_over_a_wake_teach_nothing() -> None:
    """Metrics add the requests that waited for it to those before and after; so the whole reading is left out."""
    fleet = Fleet(1)
    endpoint = fleet.endpoints[0]
    fleet.feedback.scraped(endpoint, Scrape(seconds=1.0), fleet.now)
    for number in range(20):
        fleet.settle(fleet.pick(request(text(number))))
        fleet.now += 1.0
        fleet.feedback.scraped(endpoint, Scrape(0.25, 1, seconds=1.0), fleet.now)
    before = fleet.rates.rate(endpoint.slot)
    _through_a_sleep(fleet, fleet.pick(request(text("hung"))))
    fleet.feedback.scraped(endpoint, Scrape(3600.0, 1, seconds=5.0), fleet.now)
    assert fleet.rates.rate(endpoint.slot) == before
    fleet.now += 5.0
    fleet.settle(fleet.pick(request(text("later"))))
    fleet.feedback.scraped(endpoint, Scrape(9.0, 1, seconds=1.0), fleet.now)
    assert fleet.rates.rate(endpoint.slot) != before
