"""Filters: which endpoints may serve a request, what each filter removed, and the refusal if none is left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ext_proc.core.errors import ModelNotFound, ModelRequired, NoReadyEndpoint, Refusal, Saturated, SubsetEmpty
from ext_proc.core.generator import Generator
from ext_proc.core.model import Endpoint, FilterReport, InferenceRequest, Operation
from ext_proc.core.pool import Snapshot

MODELLESS = frozenset({Operation.LOOKUP, Operation.GENERATE, Operation.MEDIA})
"""Operations that may go to the default pool, or to any if there is none, when they name no model."""


CAPACITY = "capacity"
"""Name of the gate that leaves out endpoints at their caps: whom it leaves nobody may wait, all others may not."""


class Gate(Protocol):
    """A filter by the state of endpoints, which changes while they serve.

    Attributes:
        name: what the explanation of a decision calls it.
    """

    name: str

    def admit(
        self, candidates: Sequence[Endpoint], request: InferenceRequest, now: float, generator: Generator
    ) -> Sequence[Endpoint]:
        """Return who may be chosen now; the very same object if all may. Leaves no trace: it may be a dry run."""


def filtered(
    request: InferenceRequest,
    subset: Collection[str] | None,
    snapshot: Snapshot,
    gates: Sequence[Gate],
    now: float,
    generator: Generator,
) -> tuple[FilterReport, ...]:
    """Narrow the endpoints down, filter by filter; the last report holds the candidates, or none.

    Args:
        request: what was understood of the HTTP request.
        subset: the only addresses the data plane allows; None allows all.
        snapshot: the endpoints.
        gates: which of them may be chosen now, asked in this order until nobody is left.
        now: monotonic seconds.
        generator: for gates that let some requests through.
    """
    left: Sequence[Endpoint] = snapshot.candidates(request.model)
    if request.model is None and not left and request.operation in MODELLESS:
        left = snapshot.by_pool.get(snapshot.default_pool or "", snapshot.endpoints)
    after = len(left)
    reports: tuple[FilterReport, ...] = (FilterReport("model", len(snapshot.endpoints), after, left),)
    if subset is not None:
        before, left = after, [endpoint for endpoint in left if endpoint.address in subset]
        after = len(left)
        reports = (*reports, FilterReport("subset", before, after, left))
    for gate in gates:
        if not after:
            break
        before, left = after, gate.admit(left, request, now, generator)
        after = len(left)
        reports = (*reports, FilterReport(gate.name, before, after, left))
    return reports


def refusal(
    request: InferenceRequest,
    subset: Collection[str] | None,
    snapshot: Snapshot,
    filters: tuple[FilterReport, ...],
) -> Refusal:
    """Return what a client is told whose request no endpoint is left for."""
    if filters[-1].name == CAPACITY:
        return Saturated("All endpoints of the requested model are busy. Try again later.")
    if subset is not None and (not subset or filters[0].after):
        return SubsetEmpty("No endpoint that the gateway allows can serve this request.")
    if not snapshot.endpoints:
        return NoReadyEndpoint("No inference endpoint is available. Try again later.")
    if request.model is None:
        names = ", ".join(sorted(snapshot.models)[:10])
        return ModelRequired(f"The request must name a model in its 'model' field. Served here: {names}.")
    if snapshot.serves(request.model):
        return NoReadyEndpoint("No endpoint of the requested model is available. Try again later.")
    return ModelNotFound(f"The model '{_shown(request.model)}' does not exist or is not served here.")


def _shown(model: str) -> str:
    """Shorten a stranger's model name, for an error message."""
    printable = "".join(character if character.isprintable() else "?" for character in model[:100])
    return printable.encode("utf-8", "replace").decode()
