"""A decision and its outcome, whose secrets must not be seen anywhere."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ext_proc.core.model import (
    Api,
    CostTerms,
    Decision,
    Ending,
    Endpoint,
    FilterReport,
    InferenceRequest,
    Operation,
    Outcome,
    Usage,
)

E1 = Endpoint(address="10.0.0.11:8000", pool="chat", slot=0, models=frozenset({"acme/chat-8b"}))
E2 = Endpoint(address="[fd00::12]:8000", pool="chat", slot=1, labels={"gpu": "h100"})


@pytest.fixture
def request_() -> InferenceRequest:
    """A chat request with a secret in its prompt and in what separates its cache."""
    return InferenceRequest(
        operation=Operation.CHAT,
        api=Api.OPENAI,
        model="acme/chat-8b",
        prompt=b"SECRET",
        prompt_tokens=1000,
        namespace=("SECRET",),
        session="SECRET",
    )


@pytest.fixture
def decision(request_: InferenceRequest) -> Decision:
    """A decision for E1 before E2."""
    return Decision(
        id="d-1",
        endpoints=(E1, E2),
        request=request_,
        chain_length=8,
        hit_tokens=512,
        reason="prefix",
        strategy="least-wait",
        terms=(
            CostTerms(E2, 0.25, 64, 0.1, 0.15, in_seconds=True),
            CostTerms(E1, 0.0725, 512, 0.02, 0.03, 0.0125, 3, 0.006, 0.004, in_seconds=True),
        ),
        filters=(FilterReport("model", 4, 2),),
        decided_at=1.0,
        fallback_hits=(64,),
    )


@pytest.fixture
def outcome_of() -> Callable[..., Outcome]:
    """Make the outcome of the decision, with any field changed."""
    usual = Outcome(
        decision_id="d-1",
        ending=Ending.OK,
        status=200,
        served=E1.address,
        duration=1.5,
        first_byte=0.25,
        usage=Usage(prompt_tokens=990, completion_tokens=70, cached_tokens=480),
        request_id="r-1",
    )

    def make(**changes: Any) -> Outcome:
        return msgspec.structs.replace(usual, **changes)

    return make
