"""A fake API server that lists and watches, and loses watches in every way that real ones do."""

from __future__ import annotations

import asyncio
import enum
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web

from tests.kube.store import Clock, Gone, Object, Query, Store, requirements, text_of

OLDER = "older-"
"""Stands before resources of the older group, to tell them from those of the same name."""

OLDER_GROUP = "inference.networking.x-k8s.io"

RESOURCES = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "inferencepools": "/apis/inference.networking.k8s.io/v1",
    "inferenceobjectives": "/apis/llm-d.ai/v1alpha2",
    f"{OLDER}inferenceobjectives": f"/apis/{OLDER_GROUP}/v1alpha2",
}


class Loss(enum.Enum):
    """How a watch is lost."""

    END = "end"
    """The server ends it, as after its time-out."""
    CUT = "cut"
    """The connection is reset in the middle of a line."""
    STALL = "stall"
    """Nothing comes any more, and the connection stays."""
    GONE = "gone"
    """An error in the stream says that the version is forgotten, and it is."""
    ERROR = "error"
    """An error in the stream says that the server has a fault."""
    COMPACTED = "compacted"
    """The connection is reset, and the version is forgotten when the client comes back."""


class Watcher:
    """A client that watches: what it waits for, and how it is to end."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.loss: Loss | None = None


class FakeApi:
    """The server; its objects are changed directly.

    Attributes:
        tokens: bearer tokens that are accepted; None accepts everybody.
        allowed: pairs of verb and resource that the client has the right to; None allows all.
        bookmarks_s: seconds between two bookmarks; None sends none.
        refusals: statuses that the next requests get, with further headers.
        hangs: True while requests are accepted and never answered.
        gone_in_stream: whether a forgotten version is said in the stream (true) or as the status of the answer.
        absent: resources that the server does not know.
        asked: verb, resource and query of every request.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.stores = {resource: Store(self.clock) for resource in RESOURCES}
        self.tokens: set[str] | None = None
        self.allowed: set[tuple[str, str]] | None = None
        self.bookmarks_s: float | None = None
        self.refusals: list[tuple[int, Mapping[str, str]]] = []
        self.hangs = False
        self.gone_in_stream = False
        self.absent: set[str] = set()
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self._watchers: dict[Watcher, str] = {}
        self._released = asyncio.Event()

    @property
    def pods(self) -> Store:
        """The pods."""
        return self.stores["pods"]

    @property
    def pools(self) -> Store:
        """The InferencePools."""
        return self.stores["inferencepools"]

    @property
    def slices(self) -> Store:
        """The EndpointSlices."""
        return self.stores["endpointslices"]

    def put(self, *items: Object) -> None:
        """Create or replace objects."""
        for item in items:
            older = OLDER if item["apiVersion"].startswith(OLDER_GROUP) else ""
            self.stores[f"{older}{item['kind'].lower()}s"].put(item)
        self.wake()

    def delete(self, resource: str, *names: str) -> None:
        """Delete objects."""
        for name in names:
            self.stores[resource].delete(name)
        self.wake()

    def wake(self) -> None:
        """Let watchers see what has changed."""
        for watcher in self._watchers:
            watcher.wake.set()

    def watching(self, resource: str) -> int:
        """Count the watches of a resource that are alive."""
        return sum(name == resource and watcher.loss is None for watcher, name in self._watchers.items())

    def lose(self, loss: Loss, resource: str | None = None) -> None:
        """Lose the watches of a resource, or all."""
        for watcher, name in self._watchers.items():
            if resource in (None, name) and watcher.loss is None:
                watcher.loss = loss
                watcher.wake.set()
                if loss in (Loss.GONE, Loss.COMPACTED):
                    self.stores[name].compact()

    @asynccontextmanager
    async def serving(self, context: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[str]:
        """Serve; yields the URL."""
        app = web.Application()
        for resource, base in RESOURCES.items():
            path = f"{base}/namespaces/default/{resource.removeprefix(OLDER)}"
            app.router.add_get(path, partial(self._answer, resource))
        runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=context, reuse_address=True)
        await site.start()
        found = runner.addresses[0][1]
        try:
            yield f"http{'s' if context else ''}://127.0.0.1:{found}"
        finally:
            self._released.set()
            self.lose(Loss.END)
            await runner.cleanup()

    async def _answer(self, resource: str, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        verb = "watch" if query.get("watch") == "true" else "list"
        self.asked.append((verb, resource, query))
        if self.hangs:
            await self._released.wait()
        refused = self._refusal(request, verb, resource)
        if refused is not None:
            return refused
        if verb == "watch":
            return await self._watch(request, resource, query)
        try:
            limit = int(query["limit"]) if "limit" in query else None
            page = self.stores[resource].page(_query(query), limit, query.get("continue", ""))
        except Gone:
            return _status(410, "Expired")
        return web.Response(body=_page(page), content_type="application/json")

    def _refusal(self, request: web.Request, verb: str, resource: str) -> web.Response | None:
        if self.refusals:
            code, headers = self.refusals.pop(0)
            return _status(code, "Refused", headers)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            return _status(401, "Unauthorized")
        if resource in self.absent:
            return _status(404, "NotFound")
        if self.allowed is not None and (verb, resource) not in self.allowed:
            return _status(403, "Forbidden")
        return None

    async def _watch(self, request: web.Request, resource: str, query: dict[str, str]) -> web.StreamResponse:
        store, version = self.stores[resource], int(query["resourceVersion"])
        if version < store.forgotten and not self.gone_in_stream:
            return _status(410, "Gone")
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        watcher = Watcher()
        self._watchers[watcher] = resource
        try:
            async with asyncio.timeout(float(query["timeoutSeconds"])):
                await self._stream(answer, watcher, store, version, query)
        except TimeoutError:
            pass
        except ConnectionError:
            return answer
        finally:
            del self._watchers[watcher]
        return answer

    async def _stream(
        self, answer: web.StreamResponse, watcher: Watcher, store: Store, version: int, query: dict[str, str]
    ) -> None:
        selected, loop = _query(query), asyncio.get_running_loop()
        bookmark_at = None if self.bookmarks_s is None else loop.time() + self.bookmarks_s
        while watcher.loss is None:
            try:
                events = store.since(version, selected)
            except Gone:
                await answer.write(_line("ERROR", _failure(410, "Expired")))
                return
            version = self.clock.now
            if bookmark_at is not None and loop.time() >= bookmark_at:
                bookmark_at = loop.time() + (self.bookmarks_s or 0.0)
                events.append({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}})
            if events:
                await answer.write(b"".join(_line(event["type"], event["object"]) for event in events))
            try:
                async with asyncio.timeout_at(bookmark_at):
                    await watcher.wake.wait()
            except TimeoutError:
                continue
            watcher.wake.clear()
        await self._lose(answer, watcher.loss)

    async def _lose(self, answer: web.StreamResponse, loss: Loss) -> None:
        if loss is Loss.STALL:
            await self._released.wait()
        elif loss is Loss.GONE:
            await answer.write(_line("ERROR", _failure(410, "Expired")))
        elif loss is Loss.ERROR:
            await answer.write(_line("ERROR", _failure(500, "InternalError")))
        elif loss in (Loss.CUT, Loss.COMPACTED):
            await answer.write(b'{"type":"ADDED","object":{"kind":"Po')
            transport = answer._req.transport if answer._req is not None else None
            if transport is not None:
                transport.abort()
            raise ConnectionResetError


def rights(rules: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return what the rules of a role allow, as `FakeApi.allowed` has it."""
    return {
        (verb, (OLDER if group == OLDER_GROUP else "") + resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _query(query: Mapping[str, str]) -> Query:
    name = query.get("fieldSelector", "").removeprefix("metadata.name=") or None
    return Query(requirements(query.get("labelSelector", "")), name)


def _line(kind: str, item: Object) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + text_of(item) + b"}\n"


def _page(page: Object) -> bytes:
    items = b"null" if page["items"] is None else b"[" + b",".join(map(text_of, page["items"])) + b"]"
    return json.dumps(page | {"items": None}).encode()[:-5] + items + b"}"


def _failure(code: int, reason: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}


def _status(code: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response(_failure(code, reason), status=code, headers=headers)
