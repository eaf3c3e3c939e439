"""Small workloads and engines for tests of the fleet simulation."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from ext_proc.sim.fleet.presets import PRESETS, EnginePreset
from ext_proc.sim.workload import SimRequest, Workload

H100 = PRESETS["h100-8b"]


def preset(**fields: Any) -> EnginePreset:
    """Return an H100 with some numbers changed."""
    return msgspec.structs.replace(H100, **fields)


def request(at: float = 0.0, prompt: int = 100, output: int = 10, blocks: tuple[int, ...] = (), **fields: Any) -> Any:
    """Make a request."""
    return SimRequest(at, prompt, output, blocks, **fields)


def workload(*requests: SimRequest, block_tokens: int = 16) -> Workload:
    """Make a workload."""
    return Workload("test", block_tokens, requests)


@st.composite
def workloads(draw: st.DrawFn, *, block_tokens: int = 16, most_tokens: int = 400) -> Workload:
    """Draw requests that share prefixes of a few families, arrive close together and sometimes follow each other."""
    requests: list[SimRequest] = []
    for position in range(draw(st.integers(1, 14))):
        prompt = draw(st.integers(1, most_tokens - 60))
        output = draw(st.integers(1, 60))
        family = draw(st.integers(1, 3))
        shared = draw(st.integers(0, 12))
        whole = prompt // block_tokens
        own = [1000 * (position + 1) + place for place in range(whole + output)]
        blocks = [family * 100 + place if place < shared else own[place] for place in range(whole)]
        filled = (prompt + output) // block_tokens
        after = draw(st.none() | st.integers(0, position - 1)) if position else None
        requests.append(
            SimRequest(draw(st.floats(0, 0.3)), prompt, output, tuple(blocks), tuple(own[whole:filled]), "", after)
        )
    return Workload("drawn", block_tokens, tuple(requests))
