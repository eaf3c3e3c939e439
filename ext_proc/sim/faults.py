"""Faults on demand: parsed from a request header or an admin call, and drawn for each request."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from ext_proc.sim.errors import bad_request

USAGE_KINDS: Final = frozenset({"null", "missing", "strings", "partial", "negative", "huge"})
SSE_STYLES: Final = frozenset({"crlf", "comments", "no_space", "no_final_newline"})
FOREVER: Final = 86_400.0


@dataclasses.dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong with one request; the default is nothing.

    Attributes:
        reset_before_headers: the connection is reset in place of an answer.
        reset_after: the connection is reset after that many events of the body.
        fin_after: the connection is closed, without the end of the body, after that many events.
        stall: seconds that nothing is sent.
        stall_after: the stall begins after that many events; None puts it before the headers.
        status: the request is answered with an error of this HTTP status.
        retry_after: seconds for the Retry-After header of that error.
        slow_start: seconds that the first token is late.
        usage: one of `USAGE_KINDS`.
        sse: some of `SSE_STYLES`.
        error_after: a stream that began with 200 ends in an error after that many events.
        length_off: bytes by which the content-length of an answer that is no stream exceeds it; below 0 it falls short.
    """

    reset_before_headers: bool = False
    reset_after: int | None = None
    fin_after: int | None = None
    stall: float = 0.0
    stall_after: int | None = None
    status: int | None = None
    retry_after: float | None = None
    slow_start: float = 0.0
    usage: str | None = None
    sse: frozenset[str] = frozenset()
    error_after: int | None = None
    length_off: int = 0

    @property
    def marks(self) -> tuple[int, ...]:
        """Numbers of events after which something happens."""
        marks = (self.reset_after, self.fin_after, self.stall_after, self.error_after)
        return tuple(mark for mark in marks if mark is not None)


NO_FAULTS: Final = Faults()

_Parameters = Mapping[str, Any]


def _number(parameters: _Parameters, name: str, default: float, least: float = 0) -> float:
    try:
        value = float(parameters.get(name, default))
    except (TypeError, ValueError) as error:
        raise bad_request(f"fault parameter {name} must be a number") from error
    if not least <= value <= FOREVER:
        raise bad_request(f"fault parameter {name} must be between {least:.0f} and {FOREVER:.0f}")
    return value


def _choice(parameters: _Parameters, allowed: frozenset[str]) -> str:
    value = parameters.get("value")
    if value not in allowed:
        raise bad_request(f"the fault's value must be one of {', '.join(sorted(allowed))}")
    return str(value)


def _stall(faults: Faults, p: _Parameters) -> Faults:
    after = None if p.get("after") is None else int(_number(p, "after", 0))
    return dataclasses.replace(faults, stall=_number(p, "seconds", FOREVER), stall_after=after)


def _busy(faults: Faults, p: _Parameters) -> Faults:
    return dataclasses.replace(faults, status=503, retry_after=_number(p, "retry_after", 1))


def _status(faults: Faults, p: _Parameters) -> Faults:
    return dataclasses.replace(faults, status=int(_number(p, "value", 500)))


_KINDS: Final[Mapping[str, Callable[[Faults, _Parameters], Faults]]] = {
    "reset_before_headers": lambda f, _: dataclasses.replace(f, reset_before_headers=True),
    "reset_mid_stream": lambda f, p: dataclasses.replace(f, reset_after=int(_number(p, "after", 3))),
    "fin_mid_stream": lambda f, p: dataclasses.replace(f, fin_after=int(_number(p, "after", 3))),
    "stall": _stall,
    "error_500": lambda f, _: dataclasses.replace(f, status=500),
    "busy_503": _busy,
    "status": _status,
    "slow_start": lambda f, p: dataclasses.replace(f, slow_start=_number(p, "seconds", 1)),
    "usage": lambda f, p: dataclasses.replace(f, usage=_choice(p, USAGE_KINDS)),
    "sse": lambda f, p: dataclasses.replace(f, sse=f.sse | {_choice(p, SSE_STYLES)}),
    "wrong_length": lambda f, p: dataclasses.replace(f, length_off=int(_number(p, "by", 10, -FOREVER))),
    "error_in_stream": lambda f, p: dataclasses.replace(f, error_after=int(_number(p, "after", 3))),
}


def apply(faults: Faults, kind: str, parameters: _Parameters) -> Faults:
    """Add one fault.

    Raises:
        ApiError: no such fault, or a parameter that it cannot use (400).
    """
    change = _KINDS.get(kind)
    if change is None:
        raise bad_request(f"no fault is called {kind!r}; there are refuse, {', '.join(sorted(_KINDS))}")
    return change(faults, parameters)


def parse_header(text: str) -> Faults:
    """Faults of an `x-sim-fault` header: `kind[=value][;key=value…]`, several separated by commas.

    Raises:
        ApiError: no such fault, or a parameter that it cannot use (400).
    """
    faults = NO_FAULTS
    for one in text.split(","):
        head, *rest = (part.strip() for part in one.split(";"))
        kind, parameters = split_kind(head)
        parameters |= dict(part.partition("=")[::2] for part in rest)
        faults = apply(faults, kind, parameters)
    return faults


def split_kind(text: str) -> tuple[str, dict[str, Any]]:
    """`kind=value` as the kind and its parameters."""
    kind, equals, value = text.partition("=")
    return kind, ({"value": value} if equals else {})


@dataclasses.dataclass(slots=True)
class StandingFault:
    """A fault that an admin call set up for requests to come.

    Attributes:
        kind: which fault.
        parameters: its parameters.
        count: requests that it will still hit; None for all.
        probability: share of the requests that it hits.
        path: it hits requests whose path begins so; empty for all inference requests.
    """

    kind: str
    parameters: dict[str, Any]
    count: int | None = None
    probability: float = 1.0
    path: str = ""


class FaultBook:
    """The standing faults of an engine."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self.standing: list[StandingFault] = []

    def add(self, data: Mapping[str, Any]) -> StandingFault:
        """Set up a fault described by an admin call: `kind`, `count`, `probability`, `path`, other parameters.

        Raises:
            ApiError: no such fault, or a parameter that it cannot use (400).
        """
        rest = {name: value for name, value in data.items() if name not in {"kind", "count", "probability", "path"}}
        kind, parameters = split_kind(str(data.get("kind")))
        count = data.get("count")
        if count is not None and not isinstance(count, int):
            raise bad_request("count must be an integer or null")
        probability = data.get("probability")
        fault = StandingFault(
            kind,
            parameters | rest,
            count,
            1.0 if probability is None else _number(data, "probability", 1),
            str(data.get("path") or ""),
        )
        apply(NO_FAULTS, fault.kind, fault.parameters)
        self.standing.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all standing faults."""
        self.standing.clear()

    def draw(self, path: str, header: str | None, *, inference: bool) -> Faults:
        """The faults that hit one request.

        Raises:
            ApiError: the header names a fault that does not exist, or a parameter that it cannot use (400).
        """
        faults = parse_header(header) if header else NO_FAULTS
        for fault in self.standing:
            hit = path.startswith(fault.path) if fault.path else inference
            if hit and (fault.probability >= 1 or self._generator.random() < fault.probability):
                faults = apply(faults, fault.kind, fault.parameters)
                if fault.count is not None:
                    fault.count -= 1
        if self.standing:
            self.standing = [fault for fault in self.standing if fault.count is None or fault.count > 0]
        return faults


_ODD_NUMBERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "strings": str,
    "negative": lambda _: -3,
    "huge": lambda _: 1e30,
}


def odd_usage(kind: str, usage: dict[str, Any]) -> dict[str, Any]:
    """The entry that a faulty engine has in place of `{"usage": usage}`."""
    if kind == "missing":
        return {}
    if kind == "null":
        return {"usage": None}
    if kind == "partial":
        output = ("completion_tokens", "output_tokens")
        return {"usage": {name: count for name, count in usage.items() if name in output}}
    return {"usage": _each_number(usage, _ODD_NUMBERS[kind])}


def _each_number(usage: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    return {
        name: _each_number(value, change) if isinstance(value, dict) else change(value) for name, value in usage.items()
    }
