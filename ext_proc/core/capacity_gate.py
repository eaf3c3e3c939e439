"""The gate `capacity`: leaves out the endpoints that hold as many requests or tokens as they may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized

from ext_proc.core.caps import NO_CAPS, Caps
from ext_proc.core.expectations import Expectations
from ext_proc.core.filters import CAPACITY
from ext_proc.core.generator import Generator
from ext_proc.core.ledger import Ledger
from ext_proc.core.model import GENERATING, NEARLY_FREE, Endpoint, InferenceRequest
from ext_proc.core.pool import Registry


class CapacityGate:
    """Compares what is in flight at each endpoint with its caps; costs next to nothing where there are none.

    A request that is larger than a cap on tokens by itself may go to an endpoint that holds nothing.

    Args:
        registry: the endpoints, with caps of their own.
        ledger: work in flight.
        expectations: how long answers will be.

    Attributes:
        name: of the gate.
        is_suspended: True while ends of requests are not heard of. What is in flight then only grows, and nobody would
            find a place: engines queue by themselves, which is better than no answer.
    """

    name = CAPACITY

    def __init__(self, registry: Registry, ledger: Ledger, expectations: Expectations) -> None:
        self._registry = registry
        self._ledger = ledger
        self._expectations = expectations
        self._pools: Mapping[str, Caps] = {}
        self._caps: dict[int, Caps] = {}
        self.is_suspended = False
        registry.subscribe(self._read)
        self._read()

    def configure(self, pools: Mapping[str, Caps]) -> None:
        """Set the caps of endpoints that have none of their own, by pool."""
        self._pools = pools
        self._read()

    @property
    def special(self) -> Sequence[Sized]:
        """The caps that there are."""
        return (self._caps,)

    def admit(
        self,
        candidates: Sequence[Endpoint],
        request: InferenceRequest,
        now: float,  # noqa: ARG002  the gate protocol
        generator: Generator,  # noqa: ARG002  as above
    ) -> Sequence[Endpoint]:
        """Return the endpoints with room for the request."""
        if not self._caps or self.is_suspended or request.operation in NEARLY_FREE:
            return candidates
        claim = self.claim(request)
        left = [endpoint for endpoint in candidates if self._has_room(endpoint.slot, claim)]
        return candidates if len(left) == len(candidates) else left

    def caps(self, slot: int) -> Caps:
        """Return the caps that hold at a slot."""
        return self._caps.get(slot, NO_CAPS)

    def claim(self, request: InferenceRequest) -> float:
        """Return the tokens that a request will hold: its prompt, and its answer as far as that can be expected."""
        expected = self._expectations.of(request.model or self._registry.snapshot.sole_model)
        answer = expected.output_within(request.output_tokens) if request.operation in GENERATING else 0.0
        return request.prompt_tokens * expected.scale + answer

    def counts_tokens(self, slots: Sequence[int]) -> bool:
        """Tell whether a cap on tokens holds at any of the slots."""
        return any(self._caps[slot].tokens is not None for slot in slots if slot in self._caps)

    def _has_room(self, slot: int, claim: float) -> bool:
        caps = self._caps.get(slot)
        if caps is None:
            return True
        load = self._ledger.load(slot)
        if caps.requests is not None and load.in_flight >= caps.requests:
            return False
        return caps.tokens is None or not load.tokens or load.tokens + claim <= caps.tokens

    def _read(self) -> None:
        self._caps.clear()
        for endpoint in self._registry.snapshot.endpoints:
            caps = endpoint.caps.over(self._pools.get(endpoint.pool, NO_CAPS))
            if caps != NO_CAPS:
                self._caps[endpoint.slot] = caps
