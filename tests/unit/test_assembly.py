"""The parts of the decision fit together."""

from __future__ import annotations

import random

from ext_proc.assembly import build_core
from ext_proc.config import Config, PoolConfig
from ext_proc.core.model import Decision, Ending, Outcome
from ext_proc.core.observer import NoObserver
from ext_proc.core.pool import EndpointSpec
from tests.unit.core.builders import CHAT, request, text


def test_a_system_prompt_is_held_once_by_those_that_share_it() -> None:
    """Requests with a long common beginning pin its tokens, as the hasher measures them, once; at the end none."""
    core = build_core(Config(pools={"p": PoolConfig()}), NoObserver())
    core.follow(core.registry.replace("p", [EndpointSpec(address="10.0.0.1:8000", kv_tokens=2000)], CHAT))
    decided: list[Decision] = []
    for name in range(20):
        asked = request(text("system", 8192) + text(name, 400))
        made = core.picker.pick(asked, 1.0, random.Random(1))
        assert isinstance(made, Decision)
        decided.append(made)
    load = core.ledger.load(core.registry.snapshot.endpoints[0].slot)
    assert load.tokens == 20 * (2048 + 100 + 300)
    assert load.tokens - load.pinned == 19 * 2048 + 20 * 300 / 2  # and half of each answer is not there yet
    for decision in decided:
        core.feedback.settle(Outcome(decision_id=decision.id, ending=Ending.OK, served="10.0.0.1:8000"), 2.0)
    assert (load.tokens, load.pinned) == (0, 0)
