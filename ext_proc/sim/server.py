"""The simulated engine's HTTP paths."""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from ext_proc.sim import pooling, tokens
from ext_proc.sim.admin import Admin
from ext_proc.sim.anthropic_shape import MessageShape
from ext_proc.sim.asks import READERS, decode_object
from ext_proc.sim.bodies import decompress
from ext_proc.sim.connection import ConnectionCutError, EventWriter, cut, send_broken, send_mislabelled
from ext_proc.sim.errors import ApiError, anthropic_error, openai_error
from ext_proc.sim.faults import Faults, odd_usage
from ext_proc.sim.generation import Generation, check_length, pool
from ext_proc.sim.openai_shapes import ChatShape, CompletionShape, GenerateShape
from ext_proc.sim.options import EngineOptions
from ext_proc.sim.responses_shape import ResponseShape
from ext_proc.sim.shapes import Context, Document, Shape, put_usage
from ext_proc.sim.slumber import Slumber
from ext_proc.sim.templates import render_anthropic

SHAPES: Final[Mapping[str, Callable[[Context], Shape]]] = {
    "/v1/chat/completions": ChatShape,
    "/v1/completions": CompletionShape,
    "/v1/responses": ResponseShape,
    "/v1/messages": MessageShape,
    "/generate": GenerateShape,
}
VLLM_VERSION: Final = "0.32.0"
_JSON: Final = "application/json"
_ENCODE = msgspec.json.Encoder().encode

_Pooling = Callable[["EngineServer", Document, str], Awaitable[Document]]


class EngineServer:
    """Answers requests; an aiohttp low-level handler."""

    def __init__(self, options: EngineOptions, admin: Admin, slumber: Slumber) -> None:
        self.slumber = slumber
        self.options = options
        self.admin = admin
        self.driver = admin.driver
        self.name = options.name
        self.busy: set[web.RequestHandler] = set()
        self._started = int(time.time())
        self._put_usage = _put_bare_usage if "usage-details" in options.without else put_usage

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request.

        Raises:
            asyncio.CancelledError: the connection was cut on purpose, and aiohttp must not answer on it.
        """
        self.busy.add(request.protocol)
        try:
            return await self._answer(request)
        except ConnectionCutError:
            # The only way to make aiohttp drop a connection without writing to it.
            raise asyncio.CancelledError from None
        finally:
            self.busy.discard(request.protocol)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await request.content.read() if request.body_exists else b""
        path = request.path
        if path.startswith("/sim/"):
            return await self._answer_admin(request, raw)
        self.admin.log.add(request.method, request.raw_path, request.raw_headers, raw)
        try:
            return await self._dispatch(request, path, raw)
        except ApiError as error:
            return self._error(path, error)

    async def _dispatch(self, request: web.BaseRequest, path: str, raw: bytes) -> web.StreamResponse:
        if _FEATURES.get(path) in self.options.without:
            return self._json({"detail": "Not Found"}, 404)
        inference = path in SHAPES or path in _POOLING
        faults = self.admin.faults.draw(path, request.headers.get("x-sim-fault"), inference=inference)
        await self._strike(request, faults)
        method = request.method
        if inference:
            if method != "POST":
                return self._json({"detail": "Method Not Allowed"}, 405)
            data = decode_object(decompress(raw, request.headers.get("content-encoding", "")))
            context_id = _context_id(request.headers.get("x-request-id", ""))
            self._check_model(data)
            if path in SHAPES:
                await self.slumber.over()
                return await self._generate(request, path, data, context_id, faults)
            return self._json(await _POOLING[path](self, data, context_id))
        if method == "POST" and path in {"/sleep", "/wake_up"}:
            return await self._turn_in(request)
        return self._lookup(method, path)

    async def _turn_in(self, request: web.BaseRequest) -> web.Response:
        """`/sleep` and `/wake_up` of vLLM's development mode; what runs stands still meanwhile."""
        if request.path == "/sleep":
            if self.slumber.sleep(request.query.get("level", "1")):
                self.driver.scheduler.cache.clear()
            self.driver.pause()
            return web.Response(headers=self._headers())
        if self.slumber.wakes_in:
            await asyncio.sleep(self.slumber.wakes_in)
        self.slumber.wake(request.query.getall("tags", []))
        if not self.slumber.is_sleeping:
            self.driver.go_on()
        return web.Response(headers=self._headers())

    def is_sleeping(self) -> web.Response:
        """`/is_sleeping`."""
        return self._json({"is_sleeping": self.slumber.is_sleeping})

    async def _strike(self, request: web.BaseRequest, faults: Faults) -> None:
        if faults.stall and faults.stall_after is None:
            await asyncio.sleep(faults.stall)
        if faults.reset_before_headers:
            raise cut(request, reset=True)
        if faults.status is not None:
            raise ApiError(faults.status, "a fault was asked for", retry_after=faults.retry_after)

    def _check_model(self, data: Document) -> None:
        model = data.setdefault("model", self.options.models[0])
        if model is None:
            data["model"] = self.options.models[0]
        elif model not in self.options.models:
            raise ApiError(404, f"The model `{model}` does not exist.", param="model")
        previous = data.get("previous_response_id")
        if previous is not None:
            # vLLM keeps responses only where an environment variable says so.
            raise ApiError(404, f"Response with id '{previous}' not found.", param="previous_response_id")

    async def _generate(
        self, request: web.BaseRequest, path: str, data: Document, context_id: str, faults: Faults
    ) -> web.StreamResponse:
        ask = READERS[path](data)
        context = Context(
            context_id,
            int(time.time()),
            data["model"],
            put_usage=functools.partial(_put_odd_usage, faults.usage) if faults.usage else self._put_usage,
            include_usage=ask.include_usage,
            continuous_usage=ask.continuous_usage,
            batch=ask.batch,
        )
        shape = SHAPES[path](context)
        generation = Generation(self.driver, ask, data["model"], self.options.context_limit)
        try:
            generation.start(self.options.retry_after)
            if ask.stream:
                return await self._stream(request, shape, generation, faults)
            if faults.slow_start:
                await asyncio.sleep(faults.slow_start)
            body = _ENCODE(shape.whole(await generation.answers(), generation.tally))
            if faults.length_off:
                return await send_mislabelled(request, body, {"content-type": _JSON, **self._headers()}, faults)
            if faults.marks:
                return await send_broken(request, body, {"content-type": _JSON, **self._headers()}, faults)
            return web.Response(body=body, content_type=_JSON, headers=self._headers())
        finally:
            generation.abort()

    async def _stream(
        self, request: web.BaseRequest, shape: Shape, generation: Generation, faults: Faults
    ) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream; charset=utf-8", **self._headers()}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        writer = EventWriter(request, response, shape, faults)
        alive = await writer.send(shape.opening())
        if faults.slow_start:
            await asyncio.sleep(faults.slow_start)
        while alive and not generation.finished:
            events = await generation.events(shape)
            if generation.finished:
                events += shape.closing(generation.tally)
            alive = await writer.send(events, last=generation.finished)
        return response

    def _lookup(self, method: str, path: str) -> web.Response:
        handler = _LOOKUPS.get(path)
        if handler is None:
            return self._json({"detail": "Not Found"}, 404)
        allowed, answer = handler
        if method not in allowed:
            return self._json({"detail": "Method Not Allowed"}, 405)
        return answer(self)

    def models(self) -> web.Response:
        """`/v1/models`."""
        page = pooling.models_page(self.options.models, self._started, self.options.context_limit)
        return self._json(page)

    def metrics(self) -> web.Response:
        """`/metrics`."""
        page = self.admin.metrics.render()
        return web.Response(body=page, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    def version(self) -> web.Response:
        """`/version`."""
        return self._json({"version": VLLM_VERSION})

    def healthy(self) -> web.Response:
        """`/health` and `/ping`: an empty 200."""
        return web.Response(headers=self._headers())

    def reset_cache(self) -> web.Response:
        """The development call of vLLM that forgets the prefix cache."""
        self.driver.scheduler.cache.clear()
        return web.Response(headers=self._headers())

    async def embed(self, data: Document, context_id: str) -> Document:
        """`/v1/embeddings`."""
        prompts = pooling.embedding_prompts(data)
        answer = pooling.embeddings(data, context_id, int(time.time()), prompts)
        await self._pool(data, prompts)
        return answer

    async def rerank(self, data: Document, context_id: str) -> Document:
        """`/v1/rerank`."""
        prompts = pooling.rerank_prompts(data)
        await self._pool(data, prompts)
        return pooling.rerank(data, context_id, prompts)

    async def score(self, data: Document, context_id: str) -> Document:
        """`/v1/score`."""
        prompts = pooling.score_prompts(data)
        await self._pool(data, prompts)
        return pooling.score(data, context_id, int(time.time()), prompts)

    async def tokenize(self, data: Document, context_id: str) -> Document:
        """`/tokenize`."""
        del context_id
        return pooling.tokenize(data, self.options.context_limit)

    async def detokenize(self, data: Document, context_id: str) -> Document:
        """`/detokenize`."""
        del context_id
        return pooling.detokenize(data)

    async def count_tokens(self, data: Document, context_id: str) -> Document:
        """`/v1/messages/count_tokens`."""
        del context_id
        return {"input_tokens": tokens.count_tokens(render_anthropic(data))}

    async def _pool(self, data: Document, prompts: tuple[bytes, ...]) -> None:
        await self.slumber.over()
        for prompt in prompts:
            check_length(tokens.count_tokens(prompt), 0, self.options.context_limit)
        await pool(self.driver, prompts, data["model"], self.options.retry_after)

    async def _answer_admin(self, request: web.BaseRequest, raw: bytes) -> web.Response:
        try:
            return self._json(await self.admin.call(request.method, request.path, request.query, raw))
        except ApiError as error:
            return self._error(request.path, error)

    def _error(self, path: str, error: ApiError) -> web.Response:
        shape = anthropic_error if path.startswith("/v1/messages") else openai_error
        response = self._json(shape(error), error.status)
        if error.retry_after is not None:
            response.headers["retry-after"] = f"{error.retry_after:g}"
        return response

    def _json(self, document: Any, status: int = 200) -> web.Response:
        return web.Response(body=_ENCODE(document), status=status, content_type=_JSON, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        return {"x-sim-engine": self.name}


def _context_id(request_id: str) -> str:
    """The unique part of the ids in an answer; like vLLM, the client's own id where it sent one."""
    return request_id if request_id.isascii() and request_id.isprintable() and request_id else uuid.uuid4().hex


def _put_odd_usage(kind: str, document: Document, usage: Document) -> Document:
    document.pop("usage", None)
    document.update(odd_usage(kind, usage))
    return document


def _put_bare_usage(document: Document, usage: Document) -> Document:
    """Put the usage of a vLLM without `--enable-prompt-tokens-details`."""
    return put_usage(document, usage | {"prompt_tokens_details": None} if "prompt_tokens" in usage else usage)


_FEATURES: Final[Mapping[str, str]] = {
    "/metrics": "metrics",
    "/v1/models": "models",
    "/tokenize": "tokenize",
    "/sleep": "sleep-mode",
    "/wake_up": "sleep-mode",
    "/is_sleeping": "sleep-mode",
}
_GET: Final = frozenset({"GET", "HEAD"})
_ANY: Final = frozenset({"GET", "HEAD", "POST"})
_LOOKUPS: Final[Mapping[str, tuple[frozenset[str], Callable[[EngineServer], web.Response]]]] = {
    "/v1/models": (_GET, EngineServer.models),
    "/metrics": (_GET, EngineServer.metrics),
    "/version": (_GET, EngineServer.version),
    "/health": (_GET, EngineServer.healthy),
    "/is_sleeping": (_GET, EngineServer.is_sleeping),
    "/ping": (_ANY, EngineServer.healthy),
    "/reset_prefix_cache": (frozenset({"POST"}), EngineServer.reset_cache),
}
_POOLING: Final[Mapping[str, _Pooling]] = {
    "/v1/embeddings": EngineServer.embed,
    "/v1/rerank": EngineServer.rerank,
    "/v2/rerank": EngineServer.rerank,
    "/rerank": EngineServer.rerank,
    "/v1/score": EngineServer.score,
    "/score": EngineServer.score,
    "/tokenize": EngineServer.tokenize,
    "/detokenize": EngineServer.detokenize,
    "/v1/messages/count_tokens": EngineServer.count_tokens,
}
