"""A dry run: what would become of a request now, by the very picker that serves, without a trace of it.

Nothing is booked or learnt, no turn passes, and ties are broken by the caller's own generator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from ext_proc.core.errors import KvpickerError
from ext_proc.core.exchange_messages import RequestHeaders
from ext_proc.core.generator import Generator
from ext_proc.core.model import Decision, Endpoint, FilterReport, InferenceRequest
from ext_proc.core.observer import NoObserver
from ext_proc.core.picker import EndpointPicker, Rejection
from ext_proc.core.prompts import RequestHead, classify, parse, parse_head
from ext_proc.core.token_hits import TokenPrompt
from ext_proc.core.unknown_paths import BY_MODEL, heeded, route_unknown

UNKNOWN_PATH = "unknown_path"


class Asked(msgspec.Struct, frozen=True):
    """A request as a client would send it.

    Attributes:
        path: path with query string.
        body: the body's bytes; empty for a request without one.
        headers: by lower-case name.
        method: HTTP method.
    """

    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}
    method: str = "POST"

    @property
    def head(self) -> RequestHead:
        """What the headers say."""
        return RequestHead.of({**self.headers, ":path": self.path})


class Removal(msgspec.Struct, frozen=True):
    """The endpoints that a filter took away."""

    filter: str
    endpoints: tuple[Endpoint, ...]


class Rehearsal(msgspec.Struct, frozen=True):
    """What would become of a request.

    Attributes:
        made: the decision or the rejection; None if the request would be left to Envoy's own choice.
        request: what was understood of it; None for a path that kvpicker does not know.
        removals: what each filter took away, in order; those that took nothing are left out.
        failures: a line for each strategy that failed and was replaced.
    """

    made: Decision | Rejection | None
    request: InferenceRequest | None = None
    removals: tuple[Removal, ...] = ()
    failures: tuple[str, ...] = ()


class _Failures(NoObserver):
    """Notes strategies that fail."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def strategy_failed(self, strategy: str, error: BaseException) -> None:
        why = str(error) if isinstance(error, KvpickerError) else type(error).__name__
        self.lines.append(f"{strategy} failed ({why}) and was replaced by least-request")


def rehearse(
    picker: EndpointPicker,
    asked: Asked,
    now: float,
    generator: Generator,
    *,
    inspect_bytes: int,
    subset: Collection[str] | None = None,
    tokens: TokenPrompt | None = None,
) -> Rehearsal:
    """Tell what would become of a request.

    Args:
        picker: the one whose decision is wanted; it is left as it is.
        asked: the request.
        now: monotonic seconds.
        generator: breaks ties; not the one that serves.
        inspect_bytes: bound on what is read of the body.
        subset: the only addresses the data plane would allow; None allows all.
        tokens: the prompt by its tokens; None where they are not known.
    """
    request = understood(asked, inspect_bytes, picker)
    if request is None:
        return Rehearsal(None)
    failures = _Failures()
    choice = picker.twin(failures).choose(request, now, generator, subset, tokens)
    made = choice if isinstance(choice, Rejection) else choice.decision
    removals = _removals(picker.endpoints, made.filters)
    return Rehearsal(made, msgspec.structs.replace(request, prompt=b""), removals, tuple(failures.lines))


def understood(asked: Asked, inspect_bytes: int, picker: EndpointPicker | None = None) -> InferenceRequest | None:
    """Read a request as an exchange with a whole body does; None for one that is left to Envoy's own choice.

    Args:
        asked: the request.
        inspect_bytes: bound on what is read of the body.
        picker: tells what is done on paths that are not known; None leaves them to Envoy.
    """
    head = asked.head
    route = classify(asked.method, asked.path)
    if route is None and picker is not None:
        route = route_unknown(RequestHeaders(method=asked.method, head=head), picker)
    if route is None:
        return None
    if not asked.body or not route.wants_body:
        return parse_head(route, head)
    request = parse(route, head, asked.body, complete=True, inspect_bytes=inspect_bytes)
    return heeded(request, picker) if picker is not None and route is BY_MODEL else request


def _removals(before: Sequence[Endpoint], filters: Sequence[FilterReport]) -> tuple[Removal, ...]:
    made = []
    for report in filters:
        if report.skipped or (report.after and not report.left):  # not obeyed, or one that does not say which it left
            continue
        kept = {endpoint.address for endpoint in report.left}
        gone = tuple(endpoint for endpoint in before if endpoint.address not in kept)
        if gone:
            made.append(Removal(report.name, gone))
        before = report.left
    return tuple(made)
