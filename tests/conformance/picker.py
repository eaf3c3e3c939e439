"""A minimal endpoint picker, written apart from kvpicker, that can be broken in one way at a time.

Unbroken it is what a conforming picker must do and nothing more. `has(name)` asks whether it is broken in the way
`name`; `breaks.py` says which checks must notice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import betterproto2
import grpc
import grpc.aio
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from grpc_health.v1 import health_pb2

from tests.conformance.answering import Answering

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_SERVING = {"": "no-server-health", "liveness": "no-liveness", "readiness": "no-readiness", SERVICE: "no-own-health"}


class Picker:
    """Serves ext_proc and health checks.

    Attributes:
        dead: whether it has broken down and serves nobody any more.
        hint: the subset hint of the last stream, where it mixes streams up.
    """

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.dead = False
        self.hint: Any = None
        self.turn = asyncio.Lock()
        self.picks = 0

    def has(self, name: str) -> bool:
        """Tell whether it is broken in this way."""
        return self.broken == name

    @contextlib.asynccontextmanager
    async def serving(
        self, credentials: grpc.ServerCredentials | None = None, address: str = "127.0.0.1:0"
    ) -> AsyncIterator[str]:
        """Serve, and yield where."""
        most = 100_000 if self.has("takes-small-messages") else -1
        options = [("grpc.max_receive_message_length", most), ("grpc.so_reuseport", 0)]
        if self.has("few-streams"):
            options.append(("grpc.max_concurrent_streams", 30))
        server = grpc.aio.server(options=options)
        process = grpc.stream_stream_rpc_method_handler(self._process)
        check = grpc.unary_unary_rpc_method_handler(
            self._check,
            request_deserializer=health_pb2.HealthCheckRequest.FromString,
            response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {"Process": process}),
                grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),
            )
        )
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
        await server.start()
        try:
            yield address if address.startswith("unix:") else f"127.0.0.1:{port}"
        finally:
            await server.stop(0)

    async def _check(self, request: Any, context: Any) -> Any:
        known = request.service in _SERVING and not self.has(_SERVING[request.service])
        if not known and not self.has("well-whatever-is-asked"):
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown")
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    async def _process(self, _messages: Any, context: Any) -> None:
        if self.dead:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "dead")
        try:
            if self.has("one-stream-at-a-time"):
                async with self.turn:
                    await self._talk(context)
            else:
                await self._talk(context)
        except asyncio.CancelledError:
            self.dead = self.has("dies-of-cancel")
            raise

    async def _talk(self, context: Any) -> None:
        talk = Answering(self, context)
        if self.has("greets"):
            await talk.greet()
        while (data := await context.read()) is not grpc.aio.EOF:
            try:
                message = ext_proc.ProcessingRequest.parse(data)
            except Exception:  # noqa: BLE001  what the codec raises is not documented
                self.dead = self.has("dies-of-bytes")
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no message")
                return
            kind, part = betterproto2.which_one_of(message, "request")
            if kind:
                await talk.take(kind, part, message)
            elif self.has("ends-on-unknown"):
                return
            if talk.ended:
                return
        await self._half_closed(talk, context)

    async def _half_closed(self, talk: Answering, context: Any) -> None:
        if self.has("stays-after-half-close"):
            await asyncio.Event().wait()
        failing = (self.has("fails-when-left") and not talk.done) or (self.has("ends-with-an-error") and talk.done)
        if failing:
            await context.abort(grpc.StatusCode.INTERNAL, "broken")
