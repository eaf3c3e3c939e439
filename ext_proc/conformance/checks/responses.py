"""The way back: what a picker does while an engine's answer passes."""

from __future__ import annotations

from typing import Final

from ext_proc.conformance import messages
from ext_proc.conformance.answers import Answer
from ext_proc.conformance.check import ENVOY, PROTO, PROTOCOL, Case, Failed, Level, check, demand
from ext_proc.conformance.checks.bodies import CUTS, MOST, same
from ext_proc.conformance.exchange import Transcript, play, request_messages
from ext_proc.conformance.messages import Response
from ext_proc.conformance.modes import DUPLEX, PIECES

EVENTS: Final = (("content-type", b"text/event-stream"),)
_TOKENS: Final = tuple(
    f'data: {{"choices":[{{"index":0,"delta":{{"content":"é{number}"}}}}]}}\n\n'.encode() for number in range(12)
)
_DONE: Final = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12}}\n\ndata: [DONE]\n\n'
_ENDED: Final = "the stream had ended in good order, so Envoy goes on alone"
_ODD_USAGE: Final = (
    b'{"choices":[],"usage":"oops"}',
    b'{"choices":[],"usage":{"prompt_tokens":"9","completion_tokens":null,"prompt_tokens_details":[]}}',
    b'{"choices":[],"usage":{"prompt_tokens":-1e400,"prompt_tokens_details":{"cached_tokens":{}}}}',
    b'{"usage":[[[[[[',
    b"\xff\xfe\x00",
)


async def _answered(case: Case, response: Response) -> Transcript:
    seen = await play(case, case.request(), response)
    seen.pick()
    demand(not seen.unanswered, seen.said)
    return seen


async def _echoed(case: Case, response: Response) -> Transcript:
    seen = await _answered(case, response)
    same(seen, "response_body", response.body)
    if response.trailers is None:
        demand(len(seen.ends("response_body")) == 1, "the end of the answer was not said")
    return seen


def _passed(seen: Transcript) -> str:
    """Check that the answer's messages got answers of their kind, or that the stream was over."""
    for kind, answer in seen.replies:
        if kind.startswith("response"):
            demand(answer is None or answer.kind == kind, f"{kind} was answered by {answer and answer.kind}")
    return "answered in kind" if not seen.ended else _ENDED


@check("response.echo", f"{PROTO}: in full duplex the answers are the body", modes=DUPLEX)
async def echo(case: Case) -> str:
    """The answer goes on byte for byte, headers first, and its end is said once."""
    response = Response(headers=EVENTS, pieces=(*_TOKENS, _DONE, b""))
    seen = await _echoed(case, response)
    kinds = [kind for kind in seen.kinds if kind.startswith("response")]
    demand(kinds[0] == "response_headers", f"{kinds[0]} came first")
    return f"{len(response.body)} bytes unchanged"


@check("response.splits", "class: an event is cut where it pleases the network", modes=DUPLEX)
async def splits(case: Case) -> str:
    """An answer goes on unchanged when each byte comes alone."""
    body = _TOKENS[0] + _DONE
    await _echoed(case, Response(headers=EVENTS, pieces=tuple(bytes((byte,)) for byte in body)))
    return f"{len(body)} single bytes"


@check("response.pieces", CUTS, level=Level.SHOULD, modes=DUPLEX)
async def pieces(case: Case) -> str:
    """A long piece of an answer goes on in pieces of 62,000 bytes at most."""
    seen = await _echoed(case, Response(pieces=(b'{"a":"' + b"x" * 200_000, b'"}')))
    longest = max(len(piece.body) for piece in seen.pieces("response_body"))
    demand(longest <= MOST, f"a piece of {longest:,} bytes")
    return f"pieces of {longest:,} bytes at most"


@check("response.at-once", "class: tokens are read as they come", modes=DUPLEX)
async def at_once(case: Case) -> str:
    """Each piece of a stream of events goes on before the next one comes."""
    async with case.stream() as stream:
        for _, message in request_messages(case.request(), case.mode):
            await stream.send(message)
        await stream.send(messages.response_headers(Response(headers=EVENTS, pieces=_TOKENS)))
        for number, token in enumerate(_TOKENS[:3], 1):
            await stream.send(messages.response_body(token, last=False))
            got = b""
            while got != token:
                try:
                    answer = await stream.next(case.settings.patience_s / 2)
                except TimeoutError:
                    raise Failed(f"event {number} was held back") from None
                demand(answer is not None, f"the stream ended at event {number}")
                got += _piece(answer)
    return "three events, each before the next"


def _piece(answer: Answer | None) -> bytes:
    if answer is None or answer.kind != "response_body" or answer.piece is None:
        return b""
    return answer.piece.body


@check("response.trailers", f"{ENVOY}: with trailers no piece is the last one", modes=DUPLEX)
async def trailers(case: Case) -> str:
    """An answer that trailers end goes on without an end of its own, and the trailers are answered."""
    seen = await _echoed(case, Response(pieces=(b"{}",), trailers=(("grpc-status", b"0"),)))
    demand(not seen.ends("response_body"), "the answer was ended before its trailers")
    demand(seen.kinds.count("response_trailers") == 1, f"{seen.kinds.count('response_trailers')} answers to trailers")
    return "body, then trailers"


@check("response.headers-only", f"{ENVOY}: no body follows")
async def headers_only(case: Case) -> str:
    """An answer that ends with its headers is answered by them."""
    return _passed(await _answered(case, Response(status=204)))


@check("response.kinds", f"{ENVOY}: anything else is spurious_message, 500", modes=PIECES)
async def kinds(case: Case) -> str:
    """The messages of an engine's answer are answered in kind, or the stream ended in good order."""
    seen = await _answered(case, Response(headers=EVENTS, pieces=_TOKENS[:3]))
    strange = {kind for kind in seen.kinds if not kind.startswith(("response", "request"))}
    demand(not strange, f"{', '.join(strange)} while the answer passes")
    return _passed(seen)


@check("response.served", f"{PROTOCOL}: the data plane MUST report who served")
async def served(case: Case) -> str:
    """The report of the endpoint that served is taken, be it the picked one, another, or nonsense."""
    for report in (None, *case.settings.endpoints[:2], messages.UNKNOWN_ADDRESS, "", 7, ["x"]):
        seen = await play(case, case.request(), Response(pieces=(b"{}",), served=report))
        demand(not seen.unanswered and bool(seen.picks), f"served {report!r}: {seen.said}")
        demand(seen.status is None or seen.status.name == "OK", f"served {report!r}: {seen.said}")
    return _ENDED if seen.ended and case.mode not in DUPLEX else "taken"


@check("response.status", "class: what an engine says is the client's")
async def status(case: Case) -> str:
    """An engine's status and headers reach the client as they are."""
    seen = await _answered(case, Response(status=500, pieces=(b'{"error":{"message":"x"}}',)))
    demand(not seen.refused, seen.said)
    for answer in seen.answers:
        if answer.kind == "response_headers" and answer.mutation is not None:
            names = [option.header.key for option in answer.set_headers if option.header is not None]
            lost = [*answer.mutation.remove_headers, *(name for name in names if name in (":status", "content-type"))]
            demand(not lost, f"the answer loses {', '.join(lost)}")
    return "untouched" if "response_headers" in seen.kinds else _ENDED


@check("response.odd-usage", "llm-d/llm-d-router#981: three ways to crash a picker", modes=PIECES)
async def odd_usage(case: Case) -> str:
    """Nonsense in the place of an engine's usage fails nothing."""
    for body in _ODD_USAGE:
        for headers, pieces_ in ((Response().headers, (body,)), (EVENTS, (b"data: " + body, b"\n\n"))):
            seen = await _answered(case, Response(headers=headers, pieces=pieces_))
            demand(seen.status is None or seen.status.name == "OK", f"{body[:40]!r}: {seen.said}")
            if case.mode in DUPLEX:
                same(seen, "response_body", b"".join(pieces_))
    return f"{len(_ODD_USAGE)} kinds of nonsense"


@check("response.early", f"{ENVOY}: replies of Envoy itself, such as 413, come before the request ends", modes=DUPLEX)
async def early(case: Case) -> str:
    """An answer that comes before the request's body has ended is answered, and goes on."""
    parts = request_messages(case.request(case.chat(), last=False), case.mode)
    async with case.stream() as stream:
        for _, message in parts:
            await stream.send(message)
        await stream.send(messages.response_headers(Response(status=413, pieces=(b"x",))))
        await stream.send(messages.response_body(b"too long", last=True))
        found: list[str] = []
        got = b""
        while got != b"too long":
            try:
                answer = await stream.next()
            except TimeoutError:
                raise Failed(f"answers: {', '.join(found) or 'none'}") from None
            demand(answer is not None, f"the stream ended after {', '.join(found) or 'nothing'}")
            found.append(answer.kind if answer else "")
            got += _piece(answer)
        demand("response_headers" in found, f"answers: {', '.join(found)}")
    return "passed on"


CHECKS: Final = (
    echo,
    splits,
    pieces,
    at_once,
    trailers,
    headers_only,
    kinds,
    served,
    status,
    odd_usage,
    early,
)
