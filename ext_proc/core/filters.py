"""Filters: which endpoints may serve a request, what each filter removed, and the refusal if none is left."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import Protocol

from ext_proc.core.candidates import Candidates
from ext_proc.core.errors import Asleep, ModelNotFound, ModelRequired, NoReadyEndpoint, Refusal, Saturated, SubsetEmpty
from ext_proc.core.generator import Generator
from ext_proc.core.model import Endpoint, FilterReport, InferenceRequest, Operation, Unhashed
from ext_proc.core.sleepers import SLEEP
from ext_proc.core.snapshot import Snapshot

MODELLESS = frozenset({Operation.LOOKUP, Operation.GENERATE, Operation.MEDIA})
"""Operations that may go to the default pool, or to any if there is none, when they name no model."""


_UNREADABLE = frozenset({Unhashed.ENCODING_UNKNOWN, Unhashed.ENCODING_BROKEN, Unhashed.TOO_DEEP})

CAPACITY = "capacity"
"""Name of the gate that leaves out endpoints at their caps: whom it leaves nobody may wait, all others may not."""


_BY_STATE: Mapping[str, tuple[type[Saturated | Asleep], str]] = MappingProxyType(
    {CAPACITY: (Saturated, "busy"), SLEEP: (Asleep, "asleep")}
)
"""What to say where a gate has removed all that were left."""


class Gate(Protocol):
    """A filter by the state of endpoints, which changes while they serve.

    Attributes:
        name: what the explanation of a decision calls it.
        special: what it keeps of endpoints that it may leave out. It is not asked while all of that is empty.
    """

    name: str

    @property
    def special(self) -> Sequence[Sized]:
        """Always the same objects."""

    def admit(
        self, candidates: Sequence[Endpoint], request: InferenceRequest, now: float, generator: Generator
    ) -> Sequence[Endpoint]:
        """Return who may be chosen now; the very same object if all may. Leaves no trace: it may be a dry run."""


def is_unseen(request: InferenceRequest) -> bool:
    """Tell whether a model may be named where it was not seen: behind the part of the body that is read, or encoded."""
    return request.truncated or request.unhashed in _UNREADABLE


def meant(request: InferenceRequest, snapshot: Snapshot) -> Candidates:
    """Return the endpoints that may serve a request, in whatever state they are."""
    candidates = snapshot.candidates(request.model)
    if request.model is None and not candidates and (request.operation in MODELLESS or is_unseen(request)):
        return snapshot.by_pool.get(snapshot.default_pool or "", snapshot.endpoints)
    return candidates


class Filters:
    """Narrows the endpoints down to the candidates of a request.

    Where no gate removes anybody, as nearly always, the reports are those of the last request with these candidates.

    Args:
        gates: asked in this order, after model and subset, until nobody is left.
    """

    def __init__(self, gates: Sequence[Gate]) -> None:
        self._gates = tuple(gates)
        self._special = tuple([kept for gate in gates for kept in gate.special])
        self._snapshot: Snapshot | None = None
        self._unfiltered: dict[int, tuple[FilterReport, ...]] = {}

    def reports(
        self,
        request: InferenceRequest,
        subset: Collection[str] | None,
        snapshot: Snapshot,
        now: float,
        generator: Generator,
    ) -> tuple[FilterReport, ...]:
        """Return what each filter left; the last report holds the candidates, or none.

        Args:
            request: what was understood of the HTTP request.
            subset: the only addresses the data plane allows; None allows all.
            snapshot: the endpoints.
            now: monotonic seconds.
            generator: for gates that let some requests through.
        """
        whole = meant(request, snapshot)
        if subset is None and whole:
            if not any(self._special):
                return self._of_all(snapshot, whole)
            for place, gate in enumerate(self._gates):
                admitted = gate.admit(whole, request, now, generator)
                if admitted is not whole:
                    reports = (*self._of_all(snapshot, whole)[: place + 1], self._report(place, whole, admitted))
                    return self._narrowed(reports, place + 1, request, now, generator)
            return self._of_all(snapshot, whole)
        reports = (FilterReport("model", len(snapshot.endpoints), len(whole), whole),)
        if subset is not None:
            allowed = [endpoint for endpoint in whole if endpoint.address in subset]
            reports = (*reports, FilterReport("subset", len(whole), len(allowed), allowed))
        return self._narrowed(reports, 0, request, now, generator)

    def _narrowed(
        self,
        reports: tuple[FilterReport, ...],
        first: int,
        request: InferenceRequest,
        now: float,
        generator: Generator,
    ) -> tuple[FilterReport, ...]:
        """Return the reports on the filters so far and on the gates from a place on, as long as somebody is left."""
        left = reports[-1].left
        for place, gate in enumerate(self._gates[first:], first):
            if not left:
                break
            admitted = gate.admit(left, request, now, generator)
            reports = (*reports, self._report(place, left, admitted))
            left = admitted
        return reports

    def _report(self, place: int, before: Sequence[Endpoint], left: Sequence[Endpoint]) -> FilterReport:
        return FilterReport(self._gates[place].name, len(before), len(left), left)

    def _of_all(self, snapshot: Snapshot, left: Sequence[Endpoint]) -> tuple[FilterReport, ...]:
        """Return the reports on candidates of whom no gate removes any."""
        if snapshot is not self._snapshot:
            self._snapshot, self._unfiltered = snapshot, {}
        known = self._unfiltered.get(id(left))  # the snapshot, which is kept, holds them
        if known is None:
            count = len(left)
            first = FilterReport("model", len(snapshot.endpoints), count, left)
            known = (first, *(FilterReport(gate.name, count, count, left) for gate in self._gates))
            self._unfiltered[id(left)] = known
        return known


def refusal(
    request: InferenceRequest,
    subset: Collection[str] | None,
    snapshot: Snapshot,
    filters: tuple[FilterReport, ...],
) -> Refusal:
    """Return what a client is told whose request no endpoint is left for."""
    by_state = _BY_STATE.get(filters[-1].name)
    if by_state is not None:
        kind, what = by_state
        return kind(f"All endpoints of the requested model are {what}. Try again later.")
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
