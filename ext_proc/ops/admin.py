"""The admin server: metrics, health, debug pages and dry runs, which change nothing, and the pages of endpoints."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from ext_proc.core import addresses
from ext_proc.core.errors import ConfigError
from ext_proc.core.rehearsal import Asked
from ext_proc.ops import admin_endpoints
from ext_proc.ops.decisions import CAPACITY
from ext_proc.ops.room import NO_ROOMS, Rooms, held
from ext_proc.ops.text import printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from aiohttp.typedefs import Handler
    from prometheus_client import CollectorRegistry

    from ext_proc.core.kv_state import PublisherState
    from ext_proc.ops.admin_endpoints import EndpointPages
    from ext_proc.ops.collector import EndpointStatus
    from ext_proc.ops.decisions import DecisionRing

DEFAULT_LIMIT = 20
DEFAULT_BLOCKS = 20_000
MOST_BLOCKS = 10_000_000
LONGEST_BODY = 64 * 1024 * 1024
SHUTDOWN_SECONDS = 1.0

QUERIES: Mapping[str, Sequence[str]] = {
    "/debug/endpoints": (),
    "/debug/decisions": ("limit", "request_id"),
    "/debug/config": (),
    "/debug/state": ("blocks",),
    "/debug/explain": ("path", "method"),
    **admin_endpoints.QUERIES,
}
"""The query parameters of each page."""


OPEN = frozenset({"/metrics", "/healthz", "/readyz"})
LOCAL = frozenset({"127.0.0.1", "::1"})


class Admin:
    """Handlers of the admin server.

    Args:
        registry: what `/metrics` exposes.
        decisions: what `/debug/decisions` explains.
        endpoints: every endpoint with its status, for `/debug/endpoints`.
        config: the configuration in force, for `/debug/config`.
        not_ready: why kvpicker cannot take requests, or None, for `/readyz`.
        explain: tells what would become of a request, for `/debug/explain`.
        state: the state of the decision with at most so many blocks of the index, for `/debug/state`.
        pages: the pages of endpoints; None leaves them out.
        rooms: how full what has bounds is.
        local: True to show what is neither metrics nor health to callers on this host only.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        decisions: DecisionRing,
        endpoints: Callable[[], Sequence[EndpointStatus]],
        config: Callable[[], Any],
        not_ready: Callable[[], str | None],
        explain: Callable[[Asked], Awaitable[Any]],
        state: Callable[[int], Any],
        pages: EndpointPages | None = None,
        rooms: Rooms = NO_ROOMS,
        local: bool = False,
    ) -> None:
        self._registry = registry
        self._decisions = decisions
        self._endpoints = endpoints
        self._config = config
        self._not_ready = not_ready
        self._explain = explain
        self._state = state
        self._pages = pages
        self._rooms = rooms
        self._local = local

    def app(self) -> web.Application:
        """Make the aiohttp application."""
        middlewares = [*([_local_only] if self._local else []), _without_unknown_queries]
        app = web.Application(client_max_size=LONGEST_BODY, middlewares=middlewares)
        pages = {
            "/metrics": self.metrics,
            "/healthz": self.healthz,
            "/readyz": self.readyz,
            "/debug/endpoints": self.debug_endpoints,
            "/debug/decisions": self.debug_decisions,
            "/debug/config": self.debug_config,
            "/debug/state": self.debug_state,
        }
        app.add_routes([web.get(path, handler) for path, handler in pages.items()])
        app.router.add_post("/debug/explain", self.debug_explain)
        if self._pages is not None:
            app.add_routes(self._pages.routes())

        async def index(_request: web.Request) -> web.Response:
            paths = [*pages, "/debug/explain", *(admin_endpoints.QUERIES if self._pages is not None else ())]
            return web.Response(text="".join(f"{path}\n" for path in paths))

        app.router.add_get("/", index)
        return app

    async def metrics(self, request: web.Request) -> web.Response:
        """Expose the metrics, in OpenMetrics format if asked for."""
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    async def healthz(self, _request: web.Request) -> web.Response:
        """Answer, which is all that liveness means."""
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        """Say whether kvpicker can take requests: 200, or 503 with the reason."""
        reason = self._not_ready()
        if reason is None:
            return web.Response(text="ready\n")
        return web.Response(status=503, text=f"not ready: {reason}\n")

    async def debug_endpoints(self, _request: web.Request) -> web.Response:
        """Show every endpoint with its load and state, and who waits for a place."""
        endpoints = [_endpoint(status) for status in self._endpoints()]
        return _page({"endpoints": endpoints, "queues": self._rooms.queues()})

    async def debug_decisions(self, request: web.Request) -> web.Response:
        """Explain the latest decisions: `?limit=` of them, or that of one `?request_id=`."""
        limit = _limit(request.query.get("limit", str(DEFAULT_LIMIT)))
        if limit is None:
            return _page({"error": f"limit must be a number from 1 to {CAPACITY}"}, status=400)
        request_id = request.query.get("request_id")
        decisions = self._decisions.explanations(limit, request_id)
        refusals = self._decisions.refusals(limit, request_id)
        found = request_id is None or decisions or refusals
        return _page({"decisions": decisions, "refusals": refusals}, status=200 if found else 404)

    async def debug_config(self, _request: web.Request) -> web.Response:
        """Show the configuration in force, defaults included; it holds no secrets."""
        return _page(self._config())

    async def debug_state(self, request: web.Request) -> web.Response:
        """Show what decisions are made of, for explanations elsewhere; `?blocks=` of the index at most."""
        blocks = _whole(request.query.get("blocks", str(DEFAULT_BLOCKS)), MOST_BLOCKS)
        if blocks is None:
            return _page({"error": f"blocks must be a number from 0 to {MOST_BLOCKS}"}, status=400)
        return _page(self._state(blocks))

    async def debug_explain(self, request: web.Request) -> web.Response:
        """Tell what would become of a request: its body and headers are ours, its `?path=` and `?method=` are named."""
        path = request.query.get("path", "/v1/chat/completions")
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _page({"error": f"the body is longer than {LONGEST_BODY} bytes"}, status=413)
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            return _page(await self._explain(Asked(path, body, headers, request.query.get("method", "POST"))))
        except ConfigError as error:
            return _page({"error": str(error)}, status=501)


@web.middleware
async def _without_unknown_queries(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what would be ignored: a misspelt name would otherwise answer another question than was asked."""
    resource = request.match_info.route.resource
    known = QUERIES.get(request.path if resource is None else resource.canonical)
    unknown = sorted(request.query.keys() - set(known)) if known is not None else []
    if unknown:
        listed = f"known are {', '.join(known)}" if known else "this page knows none"
        return _page({"error": f"unknown query parameter `{printable(unknown[0])}`; {listed}"}, status=400)
    return await handler(request)


@web.middleware
async def _local_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Show strangers nothing but metrics and health; a sidecar of a mesh, at 127.0.0.6, speaks for strangers."""
    if request.path in OPEN or request.remote in LOCAL:
        return await handler(request)
    return _page({"error": "for callers on this host only; see `admin.pages`"}, status=403)


@asynccontextmanager
async def serve(app: web.Application, address: str) -> AsyncIterator[str]:
    """Serve the application while the context lasts; yields the address, with the port that was taken for port 0.

    Raises ConfigError if the address cannot be listened on.
    """
    host, _, port = addresses.listening(address).rpartition(":")
    # Bodies to explain stay as they are: decompressing them is part of what is explained.
    # Whoever leaves does not wait any more.
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        auto_decompress=False,
        handler_cancellation=True,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host.strip("[]"), int(port)).start()
        except OSError as error:
            # The event loop puts words of its own into `strerror`.
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise ConfigError(f"cannot listen on {address}: {reason}", path="admin.listen") from None
        bound_host, bound_port, *_ = runner.addresses[0]
        yield f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}"
    finally:
        await runner.cleanup()


def _limit(text: str) -> int | None:
    return _whole(text, CAPACITY) or None


def _whole(text: str, most: int) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        return None
    return int(text) if int(text) <= most else None


def _endpoint(status: EndpointStatus) -> dict[str, Any]:
    endpoint = status.endpoint
    return {
        "address": endpoint.address,
        "pool": endpoint.pool,
        "models": sorted(endpoint.models),
        "labels": dict(endpoint.labels),
        "kv_tokens": endpoint.kv_tokens,
        "ranks": endpoint.ranks,
        "name": endpoint.name or None,
        "lifecycle": status.lifecycle,
        "sleep": _sleep(status),
        "drain_deadline_s": None if status.drain_deadline is None else round(status.drain_deadline, 3),
        "state": status.health.state,
        "health": _health(status),
        "in_flight": status.in_flight,
        "tokens_in_flight": status.tokens_in_flight,
        "caps": held(status.caps, status.in_flight, status.tokens_in_flight),
        "queue_ms": round(status.queue * 1e3, 3),
        "index_blocks": status.index_blocks,
        "index_tokens": status.index_tokens,
        "prefill_rate": status.prefill_rate and round(status.prefill_rate, 1),
        "rate_source": status.rate_source or None,
        "reputation": round(status.reputation, 3),
        "metrics": _metrics(status),
        "kv_events": [_publisher(state) for state in status.publishers],
    }


def _sleep(status: EndpointStatus) -> dict[str, Any] | None:
    """How its engine sleeps, who says so, and for how long that is known."""
    sleep, seconds = status.sleep, status.asleep_for
    if sleep is None or seconds is None:
        return None
    return {"level": sleep.level, "evidence": sleep.evidence, "since_s": round(seconds, 3)}


def _health(status: EndpointStatus) -> dict[str, Any]:
    """Why it stands where it stands, and for how long."""
    health, age, left = status.health, status.health_age, status.health_left
    return {
        "since_s": None if age is None else round(age, 3),
        "evidence": health.evidence or None,
        "until_s": None if left is None else round(left, 3),
        "share": round(health.share, 4),
        "failure_ratio": round(health.failure_ratio, 3),
        "ejections": health.ejections,
        "score": round(status.reputation, 3),
    }


def _metrics(status: EndpointStatus) -> dict[str, Any]:
    """What the engine says of itself; what it does not say is null."""
    signals, interval = status.signals, status.interval
    age = status.signals_age
    shown: dict[str, Any] = {
        "engine": status.engine or None,
        "problem": status.metrics_problem or None,
        "age_s": None if age is None else round(age, 3),
    }
    for name in ("waiting", "running", "kv_usage", "kv_tokens"):
        shown[name] = None if signals is None else getattr(signals, name)
    for name in ("ttft", "itl", "queue"):
        times = None if interval is None else getattr(interval, name)
        mean = None if times is None else times.mean
        shown[f"{name}_ms"] = None if mean is None else round(mean * 1e3, 3)
    return shown


def _publisher(state: PublisherState) -> dict[str, Any]:
    """How listening to one publisher of KV events goes."""
    told = msgspec.to_builtins(state)
    rounded = {name: None if told[name] is None else round(told[name], 3) for name in ("age_s", "lag_s")}
    return {**told, "address": printable(state.address), **rounded, "believed": state.disbelief is None}


def _page(content: Any, status: int = 200) -> web.Response:
    body = msgspec.json.format(msgspec.json.encode(content), indent=2)
    return web.Response(body=body + b"\n", status=status, content_type="application/json")
