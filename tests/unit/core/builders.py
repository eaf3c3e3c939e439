"""A small fleet around a picker, with a clock that a test moves and an observer that takes notes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from ext_proc.core.errors import Refusal
from ext_proc.core.expectations import Expectations
from ext_proc.core.feedback import Feedback
from ext_proc.core.following import follow
from ext_proc.core.hashing import PromptHasher
from ext_proc.core.health import HealthMonitor
from ext_proc.core.ledger import Ledger
from ext_proc.core.lifecycle import Lifecycle
from ext_proc.core.load import Load
from ext_proc.core.model import Api, Decision, Ending, Endpoint, InferenceRequest, Operation, Outcome
from ext_proc.core.observer import NoObserver
from ext_proc.core.picker import EndpointPicker, Rejection
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.core.prefix_index import ObservedIndex
from ext_proc.core.rates import RateLearner
from ext_proc.core.sleepers import Sleepers
from ext_proc.core.strategies import Context, Strategy
from ext_proc.core.strategies.least_wait import LeastWait

MODEL = "acme/chat-8b"
CHAT = frozenset({MODEL})


class Notes(NoObserver):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.finishes: list[tuple[Decision, Outcome]] = []
        self.first_tokens: list[tuple[Decision, float]] = []
        self.failures: list[tuple[str, BaseException]] = []
        self.states: list[tuple[str, str]] = []

    def first_token(self, decision: Decision, seconds: float) -> None:
        """Keep it."""
        self.first_tokens.append((decision, seconds))

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Keep it."""
        self.finishes.append((decision, outcome))

    def strategy_failed(self, strategy: str, error: BaseException) -> None:
        """Keep it."""
        self.failures.append((strategy, error))

    def health_changed(self, endpoint: Endpoint, state: str, evidence: str, reason: str = "") -> None:
        """Keep it."""
        self.states.append((endpoint.address, state))


class Fleet:
    """Pool `p` with `count` endpoints named 10.0.0.11:8000 and on; more pools by `fill`."""

    def __init__(
        self,
        count: int = 3,
        strategy: Strategy | None = None,
        *,
        fallbacks: int = 2,
        default_pool: str | None = None,
        notes: Notes | None = None,
        **spec: Any,
    ) -> None:
        self.now = 1000.0
        self.notes = notes or Notes()
        self.registry = Registry(default_pool)
        self.ledger = Ledger()
        self.hasher = PromptHasher()
        self.index = ObservedIndex(self.hasher.tokens)
        self.health = HealthMonitor(observer=self.notes)
        self.sleepers = Sleepers()
        self.lifecycle = Lifecycle(self.ledger.load, asleep=self.sleepers)
        self.sleepers.barred = lambda: self.lifecycle.out
        self.generator = random.Random(7)
        self.rates, self.expectations = RateLearner(), Expectations()
        parts: dict[str, Any] = {
            "registry": self.registry,
            "ledger": self.ledger,
            "index": self.index,
            "health": self.health,
            "rates": self.rates,
            "expectations": self.expectations,
        }
        self.picker = EndpointPicker(
            **parts,
            hasher=self.hasher,
            strategies={"p": ("tried", strategy or LeastWait())},
            observer=self.notes,
            instance="test",
            fallbacks=fallbacks,
            gates=(self.lifecycle, self.sleepers, self.health),
        )
        self.feedback = Feedback(**parts, picker=self.picker, observer=self.notes)
        self.fill("p", *[f"10.0.0.{11 + place}:8000" for place in range(count)], **({"models": CHAT} | spec))

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints as they are."""
        return self.registry.snapshot.endpoints

    def fill(self, pool: str, *addresses: str, **spec: Any) -> None:
        """Make addresses the content of a pool, and state for what came."""
        change = self.registry.replace(pool, [EndpointSpec(address=address, **spec) for address in addresses])
        memories = (self.health, self.rates, self.sleepers)
        follow(change, ledger=self.ledger, index=self.index, memories=memories, greeters=(self.health,))

    def pick(self, asked: InferenceRequest | None = None, *, subset: set[str] | None = None) -> Decision:
        """Pick, and expect a decision."""
        made = self.picker.pick(asked or request(), self.now, self.generator, subset)
        assert isinstance(made, Decision)
        return made

    def refusal(self, asked: InferenceRequest | None = None, *, subset: set[str] | None = None) -> Refusal:
        """Pick, and expect a rejection."""
        made = self.picker.pick(asked or request(), self.now, self.generator, subset)
        assert isinstance(made, Rejection)
        return made.refusal

    def settle(self, decision: Decision, ending: Ending = Ending.OK, **outcome: Any) -> bool:
        """Let an outcome come; the chosen endpoint served unless the test says otherwise."""
        fields = {"served": decision.chosen.address} | outcome
        return self.feedback.settle(Outcome(decision_id=decision.id, ending=ending, **fields), self.now)

    def serve(self, asked: InferenceRequest | None = None, *, seconds: float = 1.0, **outcome: Any) -> Decision:
        """Pick and let the request end well, `seconds` later."""
        decision = self.pick(asked)
        self.now += seconds
        self.settle(decision, **outcome)
        return decision

    def load(self, place: int) -> Load:
        """Return what is in flight at the endpoint in that place."""
        return self.ledger.load(self.endpoints[place].slot)

    def occupy(self, place: int, requests: int, *, tokens: int = 100, seconds: float = 0.0) -> list[Decision]:
        """Put requests on one endpoint, each with some prefill tokens, and let time pass."""
        address = self.endpoints[place].address
        made = [self.pick(request(prompt_tokens=tokens), subset={address}) for _ in range(requests)]
        self.now += seconds
        return made


def request(prompt: bytes = b"", **fields: Any) -> InferenceRequest:
    """Make a chat request; the prompt's tokens are estimated as elsewhere."""
    usual = {"operation": Operation.CHAT, "api": Api.OPENAI, "model": MODEL, "prompt_tokens": len(prompt) // 4}
    return InferenceRequest(prompt=prompt, **(usual | fields))


def text(seed: object, size: int = 4096) -> bytes:
    """Make a prompt that shares nothing with that of another seed."""
    return random.Random(repr(seed)).randbytes(size)


def context(
    loads: list[Load], hits: list[int] | None = None, *, now: float = 0.0, turn: int = 1, **fields: Any
) -> Context:
    """Make what a strategy looks at, one load per candidate."""
    usual = {"output": 300.0, "residence": 10.0} | fields
    generator = random.Random(7)
    return Context(now=now, generator=generator, loads=loads, hits=hits or [0] * len(loads), turn=turn, **usual)


def endpoints(count: int, **fields: Any) -> tuple[Endpoint, ...]:
    """Make candidates without a registry."""
    return tuple(Endpoint(address=f"10.0.0.{place}:8000", pool="p", slot=place, **fields) for place in range(count))


def shares(decisions: list[Decision]) -> Counter[str]:
    """Count how often each address was chosen."""
    return Counter(decision.chosen.address for decision in decisions)
