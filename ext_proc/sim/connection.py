"""The engine's side of a connection: events with their faults, and connections that end badly on purpose."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence

from aiohttp import web

from ext_proc.sim.faults import Faults
from ext_proc.sim.shapes import Event, Shape
from ext_proc.sim.sse import encode_event, encode_events, without_final_newline

_LINGER_ZERO = struct.pack("ii", 1, 0)


class ConnectionCutError(Exception):
    """The connection was ended on purpose; there is nothing more to send."""


def cut(request: web.BaseRequest, *, reset: bool) -> ConnectionCutError:
    """End the connection in the middle, by RST or by FIN; the caller raises what this returns."""
    transport = request.transport
    if isinstance(transport, asyncio.Transport):
        if reset:
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            transport.abort()
        else:
            transport.close()
    return ConnectionCutError()


class EventWriter:
    """Writes the events of a stream; what comes together goes out together, unless a fault counts the events."""

    def __init__(self, request: web.BaseRequest, response: web.StreamResponse, shape: Shape, faults: Faults) -> None:
        self._request = request
        self._response = response
        self._shape = shape
        self._faults = faults
        self._sent = 0

    async def send(self, events: Sequence[Event], *, last: bool = False) -> bool:
        """Write events; False if the stream is over because a fault ended it with an error event.

        Raises:
            ConnectionCutError: a fault cut the connection.
        """
        if not self._faults.sse and not self._faults.marks:
            if events:
                await self._response.write(encode_events(events))
            return True
        for place, event in enumerate(events):
            if not await self._strike():
                return False
            data = encode_event(event, self._faults.sse)
            if last and place == len(events) - 1 and "no_final_newline" in self._faults.sse:
                data = without_final_newline(data)
            await self._response.write(data)
            self._sent += 1
        return True

    async def _strike(self) -> bool:
        faults = self._faults
        if self._sent == faults.stall_after:
            await asyncio.sleep(faults.stall)
        if self._sent == faults.reset_after:
            raise cut(self._request, reset=True)
        if self._sent == faults.fin_after:
            raise cut(self._request, reset=False)
        if self._sent == faults.error_after:
            for event in self._shape.error("the engine failed"):
                await self._response.write(encode_event(event, faults.sse))
            return False
        return True


async def send_mislabelled(
    request: web.BaseRequest, body: bytes, headers: dict[str, str], faults: Faults
) -> web.StreamResponse:
    """Send an answer whose content-length is not its length; too long a promise ends with the connection.

    Raises:
        ConnectionCutError: there is nothing more to send.
    """
    response = web.StreamResponse(headers=headers)
    promised = max(len(body) + faults.length_off, 1)
    response.content_length = promised
    await response.prepare(request)
    await response.write(body[:promised])
    left = body[promised:]
    if not left or not isinstance(request.transport, asyncio.Transport):
        raise cut(request, reset=False)
    # aiohttp itself would not send more than it promised.
    request.transport.write(left)
    return response


async def send_broken(
    request: web.BaseRequest, body: bytes, headers: dict[str, str], faults: Faults
) -> web.StreamResponse:
    """Send half of an answer that is not a stream, then stall or cut.

    Raises:
        ConnectionCutError: a fault cut the connection.
    """
    response = web.StreamResponse(headers=headers)
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    if faults.stall_after is not None:
        await asyncio.sleep(faults.stall)
    if faults.reset_after is not None:
        raise cut(request, reset=True)
    if faults.fin_after is not None:
        raise cut(request, reset=False)
    await response.write(body[len(body) // 2 :])
    return response
