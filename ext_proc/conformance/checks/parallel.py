"""Many streams at once."""

from __future__ import annotations

import asyncio
from typing import Final

from ext_proc.conformance.check import ENVOY, Case, Failed, Skipped, check, demand, together
from ext_proc.conformance.checks.bodies import same
from ext_proc.conformance.exchange import play, request_messages
from ext_proc.conformance.modes import DUPLEX
from ext_proc.conformance.stream import Stream

_APART: Final = 24


async def _until_pick(stream: Stream) -> bool:
    """Read until an answer names an endpoint; False if the stream ends before."""
    while (answer := await stream.next()) is not None:
        if answer.values:
            return True
    return False


@check("parallel.streams", f"{ENVOY}: 1,000 of 1,300 requests failed at a server that took 100 streams")
async def streams(case: Case) -> str:
    """As many streams as Envoy likes are open at once on one connection, and each is answered."""
    count = case.settings.streams
    begun = asyncio.Barrier(count)
    picked = 0

    async def hold() -> None:
        nonlocal picked
        body = case.chat()
        parts = [message for _, message in request_messages(case.request(body[:9], body[9:]), case.mode)]
        async with case.stream() as stream:
            await stream.send(parts[0])
            early = case.mode not in DUPLEX and await _answered(stream)
            async with asyncio.timeout(case.settings.limit_s):
                await begun.wait()
            for message in parts[1:]:
                await stream.send(message)
            named = early or await _until_pick(stream)
            picked += named

    try:
        await together(*(hold() for _ in range(count)))
    except (TimeoutError, asyncio.BrokenBarrierError):
        raise Failed(f"{picked} of {count} picked, some not answered in time") from None
    demand(picked == count, f"{picked} of {count} picked")
    return f"{count} at once"


async def _answered(stream: Stream) -> bool:
    answer = await stream.next()
    return answer is not None and bool(answer.values)


@check("parallel.apart", "class: state that belongs to a stream must not be the process's")
async def apart(case: Case) -> str:
    """Streams at the same time do not mix: each gets the pick for its own hint, and its own body."""
    endpoints = case.settings.endpoints[:4]
    if len(endpoints) <= 1:
        raise Skipped("fewer than two endpoints are known")

    async def one(number: int) -> None:
        endpoint = endpoints[number % len(endpoints)]
        body = case.chat(f"{number} " * (number + 1))
        seen = await play(case, case.request(body[:30], body[30:], subset=[endpoint]))
        demand(seen.destination() == endpoint, f"hint {endpoint}, pick {seen.destination()}")
        if case.mode in DUPLEX:
            same(seen, "request_body", body)

    await together(*(one(number) for number in range(_APART)))
    return f"{_APART} streams, {len(endpoints)} hints"


@check("parallel.stalled", "envoyproxy/envoy#41640: the rest of a body may never come")
async def stalled(case: Case) -> str:
    """A stream whose body does not come holds up no other."""
    parts = [message for _, message in request_messages(case.request(case.chat(), last=False), case.mode)]
    async with case.stream() as stream:
        for message in parts[:1]:
            await stream.send(message)
        for _ in range(3):
            seen = await play(case, case.request())
            demand(bool(seen.picks) and not seen.unanswered, f"beside a stream that waits: {seen.said}")
    return "others were served"


CHECKS: Final = (streams, apart, stalled)
