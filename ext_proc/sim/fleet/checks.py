"""Refuses workloads that a fleet could never serve, or that contradict themselves."""

from __future__ import annotations

from collections.abc import Sequence

from ext_proc.sim.fleet.engine import Engine
from ext_proc.sim.workload import Workload


class SimulationError(ValueError):
    """A workload that the fleet cannot serve, or that contradicts itself."""


def check(workload: Workload, engines: Sequence[Engine]) -> None:
    """Refuse what would not end.

    Raises:
        SimulationError: it says which request, and why.
    """
    size = workload.block_tokens
    for position, request in enumerate(workload.requests):
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise SimulationError(f"request {position} needs at least one prompt token and one output token")
        whole = (request.prompt_tokens + request.output_tokens) // size
        if len(request.blocks) > request.prompt_tokens // size or len(request.blocks + request.output_blocks) > whole:
            raise SimulationError(f"request {position} names more blocks of {size} tokens than it has tokens for")
        if request.after is not None and not 0 <= request.after < position:
            raise SimulationError(f"request {position} follows request {request.after}, which is not before it")
        for engine in engines:
            if not engine.fits(request):
                raise SimulationError(
                    f"request {position} has {request.prompt_tokens + request.output_tokens} tokens, and an engine "
                    f"({engine.preset.name}) holds {engine.preset.kv_tokens}"
                )
