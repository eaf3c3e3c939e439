"""Filters: which endpoints may serve a request, what each filter removed, and the refusal if none is left."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ext_proc.core.errors import ModelNotFound, ModelRequired, NoReadyEndpoint, Refusal, SubsetEmpty
from ext_proc.core.health import HealthMonitor
from ext_proc.core.model import Endpoint, FilterReport, InferenceRequest, Operation
from ext_proc.core.pool import Snapshot

MODELLESS = frozenset({Operation.LOOKUP, Operation.GENERATE, Operation.MEDIA})
"""Operations that may go to the default pool, or to any if there is none, when they name no model."""


def filtered(
    request: InferenceRequest, subset: Collection[str] | None, snapshot: Snapshot, health: HealthMonitor, now: float
) -> tuple[FilterReport, ...]:
    """Narrow the endpoints down, filter by filter; the last report holds the candidates, or none.

    Args:
        request: what was understood of the HTTP request.
        subset: the only addresses the data plane allows; None allows all.
        snapshot: the endpoints.
        health: which of them may be chosen.
        now: monotonic seconds.
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
    if not after:
        return reports
    well = health.eligible(left, now)
    return (*reports, FilterReport("health", after, len(well), well))


def refusal(
    request: InferenceRequest,
    subset: Collection[str] | None,
    snapshot: Snapshot,
    filters: tuple[FilterReport, ...],
) -> Refusal:
    """Return what a client is told whose request no endpoint is left for."""
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
