"""Which answers come, and in which order."""

from __future__ import annotations

from typing import Final

from ext_proc.conformance import messages
from ext_proc.conformance.answers import EMPTY, REFUSAL, UNREADABLE
from ext_proc.conformance.check import ENVOY, PROTO, PROTOCOL, Case, Failed, Level, check, demand
from ext_proc.conformance.exchange import Transcript, play, request_messages
from ext_proc.conformance.messages import Response
from ext_proc.conformance.modes import DUPLEX, SERIAL
from ext_proc.conformance.stream import Stream

SPURIOUS: Final = f"{ENVOY}: anything else is spurious_message, 500"


def replied(transcript: Transcript, kind: str) -> str:
    """Check that each message of a kind was answered by an answer of that kind, and say so."""
    replies = [answer for asked, answer in transcript.replies if asked == kind]
    demand(transcript.unanswered != kind, f"no answer to {kind} in time")
    got = [REFUSAL if answer is None else answer.kind for answer in replies]
    wrong = [name for name in got if name not in (kind, REFUSAL)]
    demand(not wrong, f"{kind} was answered by {', '.join(wrong)}")
    return f"{len(got)} of {len(got)} answered by {kind}"


@check("order.headers", SPURIOUS, modes=SERIAL)
async def headers(case: Case) -> str:
    """Request headers are answered by one answer to request headers, or by an immediate response."""
    return replied(await play(case, case.request()), "request_headers")


@check("order.body", SPURIOUS, modes=SERIAL)
async def body(case: Case) -> str:
    """Each message of the request body is answered by one answer to a request body."""
    seen = await play(case, case.request(*_pieces(case)))
    gone = [kind for kind, answer in seen.replies if answer is None]
    demand(not gone or seen.status is None or seen.status.name == "OK", seen.said)
    return replied(seen, "request_body")


@check("order.trailers", SPURIOUS, modes=SERIAL)
async def trailers(case: Case) -> str:
    """Request trailers are answered by an answer to request trailers, unless the stream has ended by then."""
    request = case.request(*_pieces(case), trailers=(("x-checksum", b"1"),))
    return replied(await play(case, request), "request_trailers")


@check("order.duplex", f"{PROTOCOL}; {ENVOY}", modes=DUPLEX)
async def duplex(case: Case) -> str:
    """In full duplex the answers to headers, body and trailers come in this order, that to the headers once."""
    request = case.request(*_pieces(case), trailers=(("x-checksum", b"1"),))
    seen = await play(case, request)
    order = [kind for kind, before in zip(seen.kinds, ["", *seen.kinds], strict=False) if kind != before]
    wanted = ["request_headers", "request_body", "request_trailers"]
    demand(seen.kinds.count("request_headers") <= 1, f"{seen.kinds.count('request_headers')} answers to the headers")
    demand([kind for kind in order if kind in wanted] == [kind for kind in wanted if kind in order], " → ".join(order))
    return " → ".join(order)


@check("order.unasked", SPURIOUS)
async def unasked(case: Case) -> str:
    """Nothing is sent before the first message, and nothing that no message asks for."""
    async with case.stream() as stream:
        try:
            first = await stream.next(case.settings.silence_s)
        except TimeoutError:
            first = None
        demand(first is None, f"{first.kind if first else ''} before any message")
    seen = await play(case, case.request(), linger=True)
    demand(not seen.extra, f"{', '.join(answer.kind for answer in seen.extra)} after the last answer that was due")
    return f"{len(seen.answers)} answers, and no other"


@check("order.readable", PROTO)
async def readable(case: Case) -> str:
    """Every answer is a ProcessingResponse that answers something."""
    seen = await play(case, case.request(), Response(pieces=(b"{}",)))
    wrong = [kind for kind in seen.kinds if kind in (EMPTY, UNREADABLE)]
    demand(not wrong, f"{len(wrong)} of {len(seen.kinds)} answers are {wrong[0] if wrong else ''}")
    return f"{len(seen.kinds)} answers read"


@check("order.unknown", "Protocol Buffers: newer Envoys send fields that older pickers do not know", level=Level.SHOULD)
async def unknown(case: Case) -> str:
    """A message of an unknown kind is ignored, and so is an unknown field; the exchange goes on."""
    parts = request_messages(case.request(), case.mode)
    async with case.stream() as stream:
        await stream.send(messages.UNKNOWN)
        try:
            early = await stream.next(case.settings.silence_s)
        except TimeoutError:
            pass
        else:
            raise Failed(f"answered by {early.kind}" if early else f"the stream ended with {await _status(stream)}")
        for _, message in parts:
            await stream.send(message + messages.UNKNOWN)
            if case.mode not in DUPLEX and await stream.next() is None:
                raise Failed(f"the stream ended with {await _status(stream)}")
        if case.mode in DUPLEX:
            answer = await stream.next()
            demand(answer is not None and answer.kind == "request_headers", f"answered by {answer and answer.kind}")
    return "ignored, and the exchange went on"


@check("order.late-start", f"{ENVOY}: with request_header_mode SKIP that is the first message", level=Level.SHOULD)
async def late_start(case: Case) -> str:
    """A stream that begins with an engine's answer is answered in kind, or ends with OK."""
    async with case.stream() as stream:
        await stream.send(messages.first(messages.response_headers(Response(status=204)), case.mode))
        answer = await stream.next()
        if answer is None:
            status = await _status(stream)
            demand(status == "OK", f"the stream ended with {status}")
            return "ended with OK"
        demand(answer.kind == "response_headers", f"answered by {answer.kind}")
    return "answered in kind"


async def _status(stream: Stream) -> str:
    status = await stream.status()
    return "nothing" if status is None else str(status.name)


def _pieces(case: Case) -> tuple[bytes, ...]:
    body = case.chat()
    return body[:20], body[20:40], body[40:]


CHECKS: Final = (headers, body, trailers, duplex, unasked, readable, unknown, late_start)
