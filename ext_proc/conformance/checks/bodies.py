"""Request bodies: what goes on is what came, however it is cut."""

from __future__ import annotations

import asyncio
import gzip
from typing import Final

from ext_proc.conformance.check import ENVOY, PROTO, PROTOCOL, Case, Failed, Level, check, demand, together
from ext_proc.conformance.exchange import Transcript, play
from ext_proc.conformance.messages import Request
from ext_proc.conformance.modes import DUPLEX, PIECES, WHOLE, Mode

MOST: Final = 62_000
"""Bytes of a body in one answer (llm-d-router, pkg/common/envoy/chunking.go)."""

CUTS: Final = "llm-d-router: 64 KiB is what data planes take for certain; Envoy 1.40 took 100,000 bytes"

_AT_ONCE: Final = 16
_SPLIT_TEXT: Final = "é\\\\"


def same(transcript: Transcript, kind: str, body: bytes) -> None:
    """Check that a body in full duplex goes on as it came, and ends once."""
    got, ends = transcript.body(kind), transcript.ends(kind)
    if got != body:
        raise Failed(f"{len(body)} bytes came, {len(got)} went on{_where(got, body)}; {transcript.said}")
    pieces = len(transcript.pieces(kind))
    demand(ends in ([], [pieces - 1]), f"the end was said at pieces {ends} of {pieces}")


def _where(got: bytes, wanted: bytes) -> str:
    if len(got) != len(wanted):
        return ""
    differ = (at for at, (one, other) in enumerate(zip(got, wanted, strict=True)) if one != other)
    return f", the first difference at {next(differ, 0)}"


def untouched(transcript: Transcript, body: bytes) -> None:
    """Check that no answer changes a body that Envoy holds itself."""
    for answer in transcript.answers:
        mutation = None if answer.common is None else answer.common.body_mutation
        changed = mutation is not None and (
            mutation.clear_body or (mutation.body is not None and mutation.body != body)
        )
        demand(not changed, f"the answer to {answer.kind} changes the body")


async def _gone_on(case: Case, request: Request) -> Transcript:
    seen = await play(case, request)
    seen.pick()
    if case.mode in DUPLEX:
        same(seen, "request_body", request.body)
        if request.trailers is None:
            demand(len(seen.ends("request_body")) == 1, "the end of the body was not said")
    else:
        untouched(seen, request.body)
    return seen


@check("body.same", f"{PROTOCOL}; {PROTO}: in full duplex the answers are the body")
async def unchanged(case: Case) -> str:
    """The body goes on byte for byte, and its end is said once."""
    odd = case.chat('  \\u00e9 é \\" ' + "x" * 500).replace(b",", b" ,\t")
    await _gone_on(case, case.request(odd))
    return f"{len(odd)} bytes unchanged"


@check("body.form", f"{PROTO}: streamed_response in full duplex and nowhere else; kubernetes-sigs/g-a-i-e#3035")
async def form(case: Case) -> str:
    """Pieces of a body are streamed responses in full duplex, and are none in any other mode."""
    seen = await play(case, case.request())
    for answer in seen.answers:
        mutation = None if answer.common is None else answer.common.body_mutation
        if mutation is None:
            continue
        streamed = mutation.streamed_response is not None
        demand(streamed == (case.mode in DUPLEX), f"body_mutation of the wrong form in the answer to {answer.kind}")
    return "of the right form"


@check("body.splits", "class: a body is cut where it pleases the network", modes=PIECES)
async def splits(case: Case) -> str:
    """A small body goes on unchanged, and gets one pick, when it is cut at any byte, and when each byte comes alone."""
    body = case.chat(_SPLIT_TEXT)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def cut(*pieces: bytes) -> None:
        async with turns:
            try:
                seen = await _gone_on(case, case.request(*pieces))
            except Failed as failure:
                raise Failed(f"cut in {len(pieces)} after {len(pieces[0])} bytes: {failure}") from None
            demand(len(seen.picks) == 1, f"cut after {len(pieces[0])} bytes: {len(seen.picks)} picks")

    halves = (cut(body[:at], body[at:]) for at in range(len(body) + 1))
    await together(*halves, cut(*(bytes((byte,)) for byte in body)))
    return f"cut at each of {len(body) + 1} places, and in single bytes"


@check("body.pieces", CUTS, level=Level.SHOULD, modes=DUPLEX)
async def pieces(case: Case) -> str:
    """A long body goes on in pieces of 62,000 bytes at most."""
    body = case.chat("x" * 200_000)
    seen = await _gone_on(case, case.request(body))
    longest = max(len(piece.body) for piece in seen.pieces("request_body"))
    demand(longest <= MOST, f"a piece of {longest:,} bytes")
    return f"{len(body):,} bytes in pieces of {longest:,} at most"


@check("body.cut", f"{ENVOY}: nothing follows what BUFFERED_PARTIAL sent of a long body", modes=(Mode.LEAN,))
async def cut_off(case: Case) -> str:
    """The beginning of a long body, which is not marked as the end, is answered with a pick and left as it is."""
    body = case.chat("x" * 5000)[:3000]
    seen = await play(case, case.request(body, last=False))
    seen.pick()
    untouched(seen, body)
    return "picked by its beginning"


@check("body.empty-end", f"{ENVOY}: the usual end in full duplex is an empty last piece", modes=PIECES)
async def empty_end(case: Case) -> str:
    """A body may end with an empty piece."""
    await _gone_on(case, case.request(case.chat(), b""))
    return "taken as the end"


@check("body.duplicate-end", "envoyproxy/envoy#46237: Envoy 1.35 to 1.37 send the last piece twice", modes=DUPLEX)
async def duplicate_end(case: Case) -> str:
    """What comes after the end of the body is ignored: one pick, the body once, one end."""
    body = case.chat("x" * 2000)
    request = case.request(body[:1500], body[1500:])
    seen = await play(case, request, twice=True, linger=True)
    seen.pick()
    same(seen, "request_body", body)
    demand(len(seen.picks) == 1, f"{len(seen.picks)} picks")
    return "ignored"


@check("body.trailers", f"{ENVOY}: with trailers no piece is the last one", modes=DUPLEX)
async def trailers(case: Case) -> str:
    """A body that trailers end gets its pick, goes on without an end of its own, and the trailers go on unchanged."""
    request = case.request(trailers=(("x-checksum", b"1"),))
    seen = await _gone_on(case, request)
    demand(not seen.ends("request_body"), "the body was ended before its trailers")
    answers = [answer for answer in seen.answers if answer.kind == "request_trailers"]
    demand(len(answers) == 1, f"{len(answers)} answers to the trailers")
    changed = [
        answer for answer in answers if answer.set_headers or (answer.mutation and answer.mutation.remove_headers)
    ]
    demand(not changed, "the trailers were changed")
    return "pick, body, trailers"


@check("body.empty", f"{ENVOY}: a chunked request without data")
async def empty(case: Case) -> str:
    """A body that turns out to be empty is answered, with a pick or with the client's error."""
    seen = await play(case, case.request(b""))
    client = 400 <= seen.refused < 500  # noqa: PLR2004  HTTP
    demand(not seen.unanswered and (client or bool(seen.picks)), seen.said)
    return seen.said


@check("body.encoded", "agentgateway#2402: clients compress their bodies", level=Level.SHOULD)
async def encoded(case: Case) -> str:
    """A compressed body gets a pick, and goes on compressed as it came."""
    body = gzip.compress(case.chat(), mtime=0)
    await _gone_on(case, case.request(body, headers=(("content-encoding", b"gzip"),)))
    return "picked, and unchanged"


@check("body.large-message", f"{ENVOY}: Envoy buffers as much as it is told; gRPC takes 4 MiB by default", modes=WHOLE)
async def large_message(case: Case) -> str:
    """A buffered body beyond 4 MiB is taken in one message."""
    body = case.chat("x " * (case.settings.huge_bytes // 2))
    seen = await play(case, case.request(body))
    seen.pick()
    return f"{len(body):,} bytes"


CHECKS: Final = (
    unchanged,
    form,
    splits,
    pieces,
    cut_off,
    empty_end,
    duplicate_end,
    trailers,
    empty,
    encoded,
    large_message,
)
