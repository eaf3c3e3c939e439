"""An engine's publisher of KV events, over real ZMQ sockets on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from tests.waiting import until

END = b"\xff" * 8


class Publisher:
    """Publishes batches with numbers, keeps them, and sends them again to who asks, like vLLM.

    Attributes:
        kept: payloads by number.
        questions: from which number on was asked.
        is_mute: whether questions are not answered.
        forgotten: how many payloads are not sent again, the oldest.

    Args:
        port: where to publish; 0 takes a free one.
        replay_port: where to be asked; 0 takes a free one.
        with_topic: whether answers name the topic, as later versions do.
        topic: the topic.
    """

    def __init__(
        self, port: int = 0, replay_port: int = 0, *, with_topic: bool = True, topic: bytes = b"kv@e@m"
    ) -> None:
        self.kept: list[bytes] = []
        self.questions: list[int] = []
        self.is_mute = False
        self.forgotten = 0
        self._with_topic = with_topic
        self._topic = topic
        self._context = zmq.asyncio.Context()
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.linger = 0
        self._publisher.sndhwm = 100_000
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self.port = _bound(self._publisher, port)
        self.replay_port = _bound(self._router, replay_port)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._answer())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)

    def discard(self) -> None:
        """Give up one that was never entered."""
        self._context.destroy(linger=0)

    async def publish(self, *events: Any, is_sent: bool = True) -> None:
        """Publish a batch; one that is not sent is lost on the way."""
        self.kept.append(msgspec.msgpack.encode([1.0, list(events), 0]))
        if is_sent:
            number = len(self.kept) - 1
            await self.send([self._topic, number.to_bytes(8, "big"), self.kept[-1]])

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send any frames."""
        await self._publisher.send_multipart(list(frames))

    async def interrupted(self, *, stay_away: bool = False) -> None:
        """Cut the connections of who listens; what is published meanwhile does not reach them."""
        self._publisher.unbind(f"tcp://127.0.0.1:{self.port}")
        self._publisher.close()
        if not stay_away:
            await self.come_back()

    async def come_back(self) -> None:
        """Publish again at the same port, as soon as the socket before has let go of it."""
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.linger = 0

        def is_bound() -> bool:
            with suppress(zmq.ZMQError):
                self._publisher.bind(f"tcp://127.0.0.1:{self.port}")
                return True
            return False

        await until(is_bound)

    async def _answer(self) -> None:
        while True:
            client, _, asked = await self._router.recv_multipart()
            first = int.from_bytes(asked, "big")
            self.questions.append(first)
            if self.is_mute:
                continue
            topic = [self._topic] if self._with_topic else []
            for number, payload in list(enumerate(self.kept))[max(first, self.forgotten) :]:
                await self._router.send_multipart([client, b"", *topic, number.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, b"", *topic, END, b""])


def neighbours() -> tuple[Publisher, Publisher]:
    """Make the publishers of two ranks, whose ports follow each other."""
    for port in range(20_000, 60_000, 97):
        made: list[Publisher] = []
        try:
            for rank in range(2):
                made.append(Publisher(port + rank, port + 10 + rank))  # noqa: PERF401  those made before one that fails
        except zmq.ZMQError:
            for publisher in made:
                publisher.discard()
        else:
            return made[0], made[1]
    raise OSError("no ports are free")


def _bound(socket: zmq.asyncio.Socket, port: int) -> int:
    if port:
        socket.bind(f"tcp://127.0.0.1:{port}")
        return port
    return socket.bind_to_random_port("tcp://127.0.0.1")
