"""The pages of the admin server that change the state of endpoints: drain, undrain and cordon, with a token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
from aiohttp import web

from ext_proc.config import AdminConfig
from ext_proc.core import durations
from ext_proc.core.caps import NO_CAPS
from ext_proc.core.lifecycle import Mark, Stage
from ext_proc.core.sleepers import Sleep
from ext_proc.ops.admin_token import objection
from ext_proc.ops.room import NO_ROOMS, Rooms, held
from ext_proc.ops.text import printable

DEADLINE_S = 600.0
LONGEST_WAIT_S = 3_600.0

QUERIES: Mapping[str, Sequence[str]] = {
    "/endpoints": (),
    "/endpoints/{address}": ("wait",),
    "/endpoints/{address}/drain": ("deadline", "wait"),
    "/endpoints/{address}/undrain": (),
    "/endpoints/{address}/cordon": (),
}
"""The query parameters of each page."""


class Orders(Protocol):
    """Carries orders out; an order that means no endpoint returns none."""

    def cordon(self, name: str) -> Sequence[Mark]:
        """Let endpoints take no new request."""

    def undrain(self, name: str) -> Sequence[Mark]:
        """Let endpoints take requests again."""

    def drain(self, name: str, seconds: float) -> Sequence[Mark]:
        """Drain endpoints within so many seconds."""

    def find(self, name: str) -> Sequence[Mark]:
        """Return where endpoints stand."""

    async def wait(self, marks: Sequence[Mark], seconds: float) -> None:
        """Wait until none of them is draining any more, or until the time is over."""

    @property
    def outlives_restart(self) -> bool:
        """Whether an order holds after a restart as well."""

    def remaining(self, mark: Mark) -> float | None:
        """Return the seconds until the deadline."""

    def sleep_of(self, mark: Mark) -> Sleep | None:
        """Return how the engine of an endpoint sleeps; None if it is awake."""

    def listed(self) -> Sequence[tuple[Mark, str]]:
        """Return where each endpoint stands, with its state of health; also those gone where requests still run."""


class EndpointPages:
    """Handlers of the pages of endpoints.

    Args:
        orders: carries out what is asked.
        config: names the token.
        instance: a name that no other kvpicker has, nor this one after a restart, which may forget orders.
        rooms: how full what has bounds is.
    """

    def __init__(self, orders: Orders, config: AdminConfig, instance: str, rooms: Rooms = NO_ROOMS) -> None:
        self._orders = orders
        self._config = config
        self._instance = instance
        self._rooms = rooms

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/endpoints", self.endpoints),
            web.get("/endpoints/{address}", self.endpoint),
            web.post("/endpoints/{address}/drain", self._with_token(self.drain)),
            web.post("/endpoints/{address}/undrain", self._with_token(self.undrain)),
            web.post("/endpoints/{address}/cordon", self._with_token(self.cordon)),
        ]

    async def endpoints(self, _request: web.Request) -> web.Response:
        """List every endpoint with where it stands."""
        rows = [{**self._row(mark), "state": state} for mark, state in self._orders.listed()]
        return _page({"endpoints": rows})

    async def endpoint(self, request: web.Request) -> web.Response:
        """Show where an endpoint stands; hold the answer back for `?wait=` at most while it is draining."""
        try:
            wait = min(_duration(request, "wait", 0.0), LONGEST_WAIT_S)
        except ValueError as error:
            return _page({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        marks = self._orders.find(request.match_info["address"])
        await self._orders.wait(marks, wait)
        return self._answer(request, marks)

    async def cordon(self, request: web.Request) -> web.Response:
        """Let an endpoint take no new request."""
        return self._answer(request, self._orders.cordon(request.match_info["address"]))

    async def undrain(self, request: web.Request) -> web.Response:
        """Let an endpoint take requests again."""
        return self._answer(request, self._orders.undrain(request.match_info["address"]))

    async def drain(self, request: web.Request) -> web.Response:
        """Drain an endpoint within `?deadline=`; hold the answer back until that is over, for `?wait=` at most.

        The answer has status 200 if nothing is left to wait for, and 202 if the drain goes on.
        """
        try:
            deadline = _duration(request, "deadline", DEADLINE_S)
            wait = min(_duration(request, "wait", 0.0), LONGEST_WAIT_S)
        except ValueError as error:
            return _page({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        marks = self._orders.drain(request.match_info["address"], deadline)
        await self._orders.wait(marks, wait)
        return self._answer(request, marks)

    def _answer(self, request: web.Request, marks: Sequence[Mark]) -> web.Response:
        if not marks:
            name = printable(request.match_info["address"])
            known = ", ".join(sorted(mark.endpoint.address for mark, _ in self._orders.listed())[:10])
            error = f"no endpoint is listed as `{name}`; known are {known or 'none'}"
            return _page({"error": error}, HTTPStatus.NOT_FOUND)
        goes_on = any(mark.stage is Stage.DRAINING for mark in marks)
        rows = [self._row(mark) for mark in marks]
        told = {"instance": self._instance, "outlives_restart": self._orders.outlives_restart, "endpoints": rows}
        return _page(told, HTTPStatus.ACCEPTED if goes_on else HTTPStatus.OK)

    def _row(self, mark: Mark) -> dict[str, Any]:
        remaining, endpoint = self._orders.remaining(mark), mark.endpoint
        sleep = self._orders.sleep_of(mark)
        caps = NO_CAPS if mark.removed else self._rooms.caps(endpoint.slot)
        return {
            "address": endpoint.address,
            "name": endpoint.name or None,
            "pool": endpoint.pool,
            "models": sorted(endpoint.models),
            "lifecycle": mark.stage,
            "sleep": None if sleep is None else {"level": sleep.level, "evidence": sleep.evidence},
            "running": mark.running,
            "tokens": mark.load.tokens,
            "caps": held(caps, mark.load.in_flight, mark.load.tokens),
            "queue": self._rooms.queue(endpoint.pool),
            "deadline_s": None if remaining is None else round(remaining, 3),
            "left": mark.left,
            "removed": mark.removed,
        }

    def _with_token(
        self, handle: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def guarded(request: web.Request) -> web.Response:
            # In a thread: a file system that hangs must not hold up requests.
            found = await asyncio.to_thread(objection, self._config, request.headers)
            if found is None:
                return await handle(request)
            answer = _page({"error": found[1]}, found[0])
            if found[0] is HTTPStatus.UNAUTHORIZED:
                answer.headers["WWW-Authenticate"] = "Bearer"
            return answer

        return guarded


def _duration(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name)
    if text is None:
        return default
    try:
        return durations.seconds(text)
    except ValueError as error:
        raise ValueError(f"{name}: `{printable(text)}` is {error}") from None


def _page(content: Any, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    body = msgspec.json.format(msgspec.json.encode(content), indent=2)
    return web.Response(body=body + b"\n", status=status, content_type="application/json")
