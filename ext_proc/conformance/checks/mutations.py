"""What an answer may do to a request, within the rules of Envoy."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Iterable
from typing import Final

from envoy_data_plane.envoy.config.core import v3 as core

from ext_proc.conformance.answers import PATIENCE, Answer, name, value
from ext_proc.conformance.check import ENVOY, PROTO, Case, Level, check, demand
from ext_proc.conformance.exchange import Transcript, play
from ext_proc.conformance.messages import Response
from ext_proc.conformance.modes import Mode

FRAMING: Final = ("content-length", "transfer-encoding", "host", ":method", ":path", ":authority", ":scheme", ":status")
"""Headers by which a request is cut out of its connection, or sent elsewhere."""

_CLIENTS: Final = (
    ("x-tag", b"a"),
    ("x-tag", b"b"),
    ("cookie", b"a=1"),
    ("authorization", b"Bearer x"),
    ("content-length", b"91"),
)
_NAME: Final = re.compile(r":?[a-z0-9!#$%&'*+.^_`|~-]+")
_BAD: Final = re.compile(rb"[\r\n\0]")
_MOST: Final = 60 * 1024
_FULL: Final = (4, 5)
"""FULL_DUPLEX_STREAMED and GRPC."""

_BUFFERED: Final = (2, 3)


def faults(options: Iterable[core.HeaderValueOption]) -> list[str]:
    """Return what is wrong with headers that are set, for Envoy."""
    found = []
    for option in options:
        header = option.header
        if header is None or not _NAME.fullmatch(header.key):
            found.append(f"header name {name(option)!r}")
        elif header.value and header.raw_value:
            found.append(f"{header.key} has both value and raw_value")
        elif _BAD.search(value(option)):
            found.append(f"{header.key} holds a line break or NUL")
    return found


async def _all(case: Case) -> Transcript:
    """Have a request with the headers of a client answered, and the engine's answer too."""
    return await play(case, case.request(headers=_CLIENTS), Response(pieces=(b"{}",)))


def _set(answers: Iterable[Answer]) -> list[core.HeaderValueOption]:
    return [option for answer in answers for option in answer.set_headers]


@check("mutation.framing", f"{ENVOY}: a wrong content-length makes the rest of the body the next request")
async def framing(case: Case) -> str:
    """No answer sets or removes content-length, transfer-encoding, host, :method, :path, :authority, or x-envoy-*."""
    seen = await _all(case)
    names = [name(option).lower() for option in _set(seen.answers)]
    removed = [one.lower() for answer in seen.answers if answer.mutation for one in answer.mutation.remove_headers]
    wrong = [one for one in (*names, *removed) if one in FRAMING or one.startswith("x-envoy-")]
    demand(not wrong, f"names {', '.join(dict.fromkeys(wrong))}")
    return f"sets {', '.join(dict.fromkeys(names)) or 'nothing'}"


@check(
    "mutation.own",
    "kubernetes-sigs/g-a-i-e#2935: headers that are written again lose their doubles",
    level=Level.SHOULD,
)
async def own(case: Case) -> str:
    """No answer sets or removes a header of the client."""
    seen = await _all(case)
    clients = {client for client, _ in _CLIENTS} - set(FRAMING)
    names = {name(option).lower() for option in _set(seen.answers)}
    names |= {one.lower() for answer in seen.answers if answer.mutation for one in answer.mutation.remove_headers}
    demand(not names & clients, f"touches {', '.join(sorted(names & clients))}")
    return "none"


@check("mutation.valid", f"{ENVOY}: else the request ends with 500, even where Envoy fails open")
async def valid(case: Case) -> str:
    """Headers that are set have valid names and values, in raw_value or value but not both, and are not too long."""
    options = _set((await _all(case)).answers)
    found = faults(options)
    demand(not found, "; ".join(found))
    size = sum(len(name(option)) + len(value(option)) for option in options)
    demand(size < _MOST, f"{size:,} bytes of headers")
    return f"{len(options)} headers"


@check("mutation.route-cache", f"{ENVOY}: ignored without a header mutation in the same answer", level=Level.SHOULD)
async def route_cache(case: Case) -> str:
    """clear_route_cache is asked for only together with a header mutation of a request."""
    seen = await _all(case)
    asking = [answer for answer in seen.answers if answer.common is not None and answer.common.clear_route_cache]
    wrong = [answer.kind for answer in asking if not answer.set_headers or not answer.kind.startswith("request")]
    demand(not wrong, f"in the answer to {', '.join(wrong)}, which sets nothing")
    return f"asked for {len(asking)} times"


@check("mutation.replace", f"{ENVOY}: CONTINUE_AND_REPLACE loses the body in full duplex, and ends with 500")
async def replace(case: Case) -> str:
    """No answer replaces the message or adds trailers."""
    seen = await _all(case)
    for answer in seen.answers:
        common = answer.common
        demand(common is None or int(common.status) == 0, f"CONTINUE_AND_REPLACE in the answer to {answer.kind}")
        demand(common is None or common.trailers is None, f"trailers in the answer to {answer.kind}")
    return "none"


@check("mutation.mode", "envoyproxy/envoy#40340, ai-gateway#494: both break bodies")
async def mode_override(case: Case) -> str:
    """A mode override stands in answers to headers, never switches to full duplex, never buffers an engine's answer."""
    seen = await _all(case)
    for answer in seen.answers:
        override = answer.message.mode_override
        if override is None:
            continue
        demand(answer.kind in ("request_headers", "response_headers"), f"in the answer to {answer.kind}")
        modes = (int(override.request_body_mode), int(override.response_body_mode))
        full = [mode for mode in modes if mode in _FULL and case.mode is not Mode.DUPLEX]
        demand(not full, "asks for full duplex")
        demand(modes[1] not in _BUFFERED, "asks for buffered answers")
    return "within the rules"


@check("mutation.patience", f"{PROTO}; Envoy 1.40 ignores any other", level=Level.SHOULD)
async def patience(case: Case) -> str:
    """override_message_timeout is sent at most once for each message, alone, and asks for 1 ms at least."""
    seen = await _all(case)
    asking = [answer for answer in seen.answers if answer.message.override_message_timeout is not None]
    alone = [answer for answer in asking if answer.kind != PATIENCE]
    demand(not alone, f"in the answer to {alone[0].kind}" if alone else "")
    twice = any(one.kind == PATIENCE == other.kind for one, other in itertools.pairwise(seen.answers))
    demand(not twice, f"{len(asking)} times")
    short = [
        a for a in asking if (a.message.override_message_timeout or dt.timedelta(0)) < dt.timedelta(milliseconds=1)
    ]
    demand(not short, "less than 1 ms")
    return f"{len(asking)} times"


@check("mutation.one-value", f"{ENVOY}: of two values the later one counts, unless it is appended", level=Level.SHOULD)
async def one_value(case: Case) -> str:
    """The destination header is set once in one answer, and not removed in the same."""
    for answer in (await _all(case)).answers:
        demand(len(answer.destinations) <= 1, f"{len(answer.destinations)} values in the answer to {answer.kind}")
    return "one"


CHECKS: Final = (framing, own, valid, route_cache, replace, mode_override, patience, one_value)
