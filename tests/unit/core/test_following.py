"""State per endpoint comes and goes with the endpoints."""

from __future__ import annotations

from ext_proc.core.hashing import PromptHasher
from tests.unit.core.builders import Fleet, request


def test_state_comes_and_goes_with_the_endpoint() -> None:
    """An endpoint that went is forgotten by the ledger and the index."""
    fleet = Fleet(1)
    (gone,) = fleet.endpoints
    fleet.pick()
    chain = PromptHasher().chain(request(b"x" * 4096))
    fleet.index.learn(gone.slot, chain)
    assert fleet.ledger.load(gone.slot).in_flight == 1
    assert fleet.index.depths(chain, [gone.slot]) == [len(chain)]
    fleet.fill("p")
    assert fleet.ledger.load(gone.slot).in_flight == 0
    assert fleet.index.depths(chain, [gone.slot]) == [0]
