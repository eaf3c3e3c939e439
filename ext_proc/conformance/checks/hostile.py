"""Huge and hostile requests: each gets its answer in bounded time, and the next request is served."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import zlib
from collections.abc import Iterable
from typing import Final

import grpc

from ext_proc.conformance import messages
from ext_proc.conformance.check import ENVOY, Case, Failed, Level, check, demand
from ext_proc.conformance.checks.bodies import same
from ext_proc.conformance.exchange import Transcript, play, request_messages
from ext_proc.conformance.messages import Request, Response
from ext_proc.conformance.modes import DUPLEX, PIECES

_PIECE: Final = 64 * 1024
_SEED: Final = 20_261_129
_ORDERS: Final = 20
_DEPTH: Final = 100_000
_HOSTILE: Final = (
    b"null",
    b"[]",
    b'"x"',
    b"0",
    b"\x00" * 100,
    b"\xff\xfe{",
    b'{"model":7,"messages":"x"}',
    b'{"model":["a"],"messages":[{"role":7,"content":{"a":1}}]}',
    b'{"model":"\\ud800","messages":[{"role":"user","content":"\\udfff\\u0000"}]}',
    b'{"model":"a","model":"b","messages":null,"messages":[null]}',
    b'{"model":"a","max_tokens":1e999,"n":-1,"messages":[{"content":[{"type":"text"}]}]}',
    b'{"model":"' + b"m" * 300_000 + b'","messages":[]}',
    b'{"messages":[' + b'{"role":"user","content":""},' * 2000 + b"{}]}",
    b'{"model":"a","prompt":' + b"9" * 20_000 + b"}",
)


async def _alive(case: Case) -> None:
    """Check that a plain request is served."""
    seen = await play(case, case.request())
    if not seen.picks or seen.unanswered:
        raise Failed(f"the next request: {seen.said}")


async def _bounded(case: Case, request: Request) -> Transcript:
    """Send a request, and check that it is answered in bounded time and that the target serves on."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(case.settings.limit_s):
            seen = await play(case, request)
    except TimeoutError:
        raise Failed(f"not over after {case.settings.limit_s:g} s") from None
    size, took = len(request.body), time.perf_counter() - began
    demand(not seen.unanswered, f"{size:,} bytes: {seen.said} ({took:.1f} s)")
    await _alive(case)
    return seen


def _unbroken(seen: Transcript, what: object) -> None:
    """Check that a request was picked or refused as the client's fault, and not failed."""
    client = 400 <= seen.refused < 500  # noqa: PLR2004  HTTP
    demand(client or bool(seen.picks), f"{what}: {seen.said}")


def _cut(body: bytes) -> Iterable[bytes]:
    return (body[at : at + _PIECE] for at in range(0, len(body), _PIECE))


@check("hostile.huge", "envoyproxy/envoy#39514: there is no flow control", modes=PIECES)
async def huge(case: Case) -> str:
    """A huge body is answered in bounded time, picked and whole or refused as too large; the next request is served."""
    body = case.chat("word " * (case.settings.huge_bytes // 5))
    seen = await _bounded(case, case.request(*_cut(body)))
    _unbroken(seen, f"{len(body):,} bytes")
    if case.mode in DUPLEX and not seen.refused:
        same(seen, "request_body", body)
    return f"{len(body):,} bytes: {seen.refused or 'whole'}"


@check("hostile.deep", "class: a parser that calls itself for each bracket overflows its stack")
async def deep(case: Case) -> str:
    """JSON that is nested a hundred thousand deep fails nothing; the next request is served."""
    seen = await _bounded(case, case.request(b'{"messages":' + b"[" * _DEPTH + b"]" * _DEPTH + b"}"))
    _unbroken(seen, "nested JSON")
    return str(seen.refused or "picked")


@check("hostile.json", "class: bodies are written by strangers")
async def odd_json(case: Case) -> str:
    """Bodies of the wrong shape are passed on with a pick, or refused as the client's fault."""
    for body in _HOSTILE:
        seen = await play(case, case.request(body))
        demand(not seen.unanswered, f"{body[:40]!r}: {seen.said}")
        _unbroken(seen, repr(body[:40]))
    await _alive(case)
    return f"{len(_HOSTILE)} bodies"


@check("hostile.bomb", f"{ENVOY}: compressed bodies come compressed; 200 MB fit into 204 KB")
async def bomb(case: Case) -> str:
    """A small body that decompresses to 64 MiB is answered in bounded time; the next request is served."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = packer.compress(b'{"messages":[{"role":"user","content":"') + b"".join(
        packer.compress(b"a" * 1024 * 1024) for _ in range(case.settings.bomb_mib)
    )
    seen = await _bounded(case, case.request(body + packer.flush(), headers=(("content-encoding", b"gzip"),)))
    _unbroken(seen, "a bomb")
    return str(seen.refused or "picked")


@check("hostile.headers", f"{ENVOY}: header bytes that are no UTF-8 arrive as they are")
async def headers(case: Case) -> str:
    """Headers that are many, double, empty or no UTF-8 fail nothing."""
    many = tuple((f"x-h{number}", b"v" * 200) for number in range(90))
    for odd in (
        many,
        (("x-bytes", b"\xff\xfe\x80"),),
        (("x-empty", b""),),
        (("content-type", b"\xff"),),
        (("cookie", b"a"),) * 20,
    ):
        seen = await play(case, case.request(headers=odd))
        demand(not seen.unanswered, f"{odd[0][0]}: {seen.said}")
        _unbroken(seen, odd[0][0])
    await _alive(case)
    return "five kinds"


@check("hostile.paths", "class: a gateway sends what has nothing to do with inference as well")
async def paths(case: Case) -> str:
    """Strange paths and methods are answered, with or without a pick, and fail nothing."""
    for method, path in (
        ("GET", "/"),
        ("POST", "/" + "x" * 8000),
        ("DELETE", "/v1/files/%ff"),
        ("OPTIONS", "*"),
        ("BREW", "//"),
    ):
        request = case.request(pieces=() if method == "GET" else (b"{}",), method=method, path=path)
        seen = await play(case, request)
        demand(not seen.unanswered, f"{method} {path[:20]}: {seen.said}")
        failed = seen.status not in (None, grpc.StatusCode.OK) or seen.refused == 500  # noqa: PLR2004  HTTP
        demand(not failed, f"{method} {path[:20]}: {seen.said}")
    return "five requests"


@check("hostile.bytes", "class: not everybody who connects is Envoy", level=Level.SHOULD)
async def no_message(case: Case) -> str:
    """Bytes that are no message end their own stream with an error at most; the next request is served."""
    for message in (b"\xff" * 64, b"\x12\xff\xff\xff\xff\x0f", b""):
        async with case.stream() as stream:
            await stream.send(message)
            with contextlib.suppress(TimeoutError):
                await stream.next(case.settings.silence_s)
        await _alive(case)
    return "the next request was served"


@check("hostile.order", "class: a client that is no Envoy, or one with a fault", level=Level.SHOULD)
async def disorder(case: Case) -> str:
    """Messages in an order that cannot be break their own stream at most; the next request is served."""
    request = request_messages(case.request(trailers=()), case.mode)
    response = [messages.response_headers(Response()), messages.response_body(b"{}", last=True)]
    every = [*(message for _, message in request), *response, messages.response_trailers(())]
    generator = random.Random(_SEED)  # noqa: S311  no secret
    for _ in range(_ORDERS):
        async with case.stream() as stream:
            for message in generator.choices(every, k=6):
                if not await stream.send(messages.first(message, case.mode)):
                    break
            await stream.half_close()
            with contextlib.suppress(TimeoutError):
                while await stream.next() is not None:
                    pass
    await _alive(case)
    return f"{_ORDERS} orders"


CHECKS: Final = (huge, deep, odd_json, bomb, headers, paths, no_message, disorder)
