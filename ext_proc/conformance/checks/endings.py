"""How streams end: by half-close, by cancellation, and never by the target while it is needed."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from ext_proc.conformance import messages
from ext_proc.conformance.check import ENVOY, PROTO, Case, check, demand, together
from ext_proc.conformance.exchange import play, request_messages
from ext_proc.conformance.messages import Response
from ext_proc.conformance.modes import DUPLEX
from ext_proc.conformance.stream import Stream

_TIMES: Final = 10


def _steps(case: Case) -> list[list[bytes]]:
    """Return what was sent by each state in which a stream may break off."""
    body = case.chat()
    parts = [message for _, message in request_messages(case.request(body[:20], body[20:]), case.mode)]
    answer = [messages.response_headers(Response(pieces=(b"{}",)))]
    piece = [messages.response_body(b"{", last=False)] if case.mode in DUPLEX else []
    whole = [*parts, *answer, *piece]
    return [whole[:count] for count in range(len(whole) + 1)]


async def _begin(case: Case, sent: list[bytes]) -> None:
    """Send messages, and break the stream off as soon as what can be answered is."""
    async with case.stream() as stream:
        for message in sent:
            await stream.send(message)
            if case.mode not in DUPLEX:
                await stream.next()
        stream.cancel()


@check("end.cancel", "envoyproxy/envoy#22727: one stream in three ends by a reset")
async def cancel(case: Case) -> str:
    """Streams that are broken off in any state leave nothing behind: the next request is served."""
    states = _steps(case)
    for sent in states:
        await together(*(_quietly(_begin(case, sent)) for _ in range(_TIMES)))
        seen = await play(case, case.request())
        demand(bool(seen.picks) and not seen.unanswered, f"after {len(sent)} messages: {seen.said}")
    return f"{len(states)} states, {_TIMES} streams each"


async def _quietly(attempt: Coroutine[Any, Any, None]) -> None:
    try:
        await attempt
    except TimeoutError:
        return


@check("end.half-close", f"{ENVOY}: so ends each exchange that is not reset")
async def half_close(case: Case) -> str:
    """When the client closes its half, in any state, the target ends the stream with OK."""
    states = _steps(case)
    for sent in states:
        async with case.stream() as stream:
            for message in sent:
                await stream.send(message)
                if case.mode not in DUPLEX:
                    try:
                        await stream.next()
                    except TimeoutError:
                        break
            await stream.half_close()
            status = await _rest(stream)
            demand(status == "OK", f"after {len(sent)} messages the stream ended with {status}")
    return f"OK in {len(states)} states"


async def _rest(stream: Stream) -> str:
    try:
        while await stream.next() is not None:
            pass
    except TimeoutError:
        return "nothing"
    status = await stream.status()
    # Not known: it ended while a message was on its way, which is how a picker that is done goes.
    return "OK" if status is None else str(status.name)


@check("end.status", f"{PROTO}: any other status is a failure of the processor")
async def status(case: Case) -> str:
    """An exchange that went well ends with OK, whoever ends it."""
    for response in (None, Response(pieces=(b"{}",))):
        seen = await play(case, case.request(), response)
        demand(seen.over, "the stream did not end")
        demand(seen.status is None or seen.status.name == "OK", seen.said)
    return "OK"


@check("end.early", f"{ENVOY}: what is left of a body is lost, with status 200", modes=DUPLEX)
async def early(case: Case) -> str:
    """In full duplex the target does not end a stream before Envoy does."""
    seen = await play(case, case.request(), linger=True)
    demand(not seen.ended, "it ended after the request")
    seen = await play(case, case.request(), Response(pieces=(b"{", b"}")), linger=True)
    demand(not seen.ended, "it ended with the answer, before its trailers could come")
    return "it waits for Envoy"


CHECKS: Final = (cancel, half_close, status, early)
