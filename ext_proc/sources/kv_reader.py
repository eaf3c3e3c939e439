"""One publisher of KV events: its socket, its messages, and the questions for those that were lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import zmq
import zmq.asyncio

from ext_proc.core.kv_events import Batch
from ext_proc.core.kv_feed import KvFeed
from ext_proc.sources.kv_decode import UndecodableError, decode

TURN_S = 0.002
"""Work of one turn; a message that was begun is finished."""

QUEUE = 1_000
"""Messages that wait in memory per publisher, at most."""

LARGEST_MESSAGE = 16 * 1024 * 1024
"""Bytes; who sends more is disconnected before they are read."""

LOOK_MS = 2_000
"""Silence after which the connection is looked at."""

COOL_DOWN_S = 1.0
"""Time between two questions for lost messages; until the second is answered nothing is believed. The same between two
connections."""

REPLAY_IDLE_S = 2.0
REPLAY_S = 20.0
"""Longest time without an answer, which an engine looks for every 0.1 s, and for all of them."""

_NUMBER_BYTES = 8
_END = b"\xff" * _NUMBER_BYTES
_RECONNECT_MS, _LAST_RECONNECT_MS = 100, 2_000
_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 5_000, 15_000
_LIVE_FRAMES = 3
_REPLAY_FRAMES = (2, 3)
"""After the empty frame: number and payload, in later versions with the topic before them."""


class Listener(Protocol):
    """Hears of messages; called on the event loop."""

    def kv_messages(self, result: str, skipped: Iterable[str]) -> None:
        """A message was received: `ok`, or why it was dropped; why events of it had no effect."""

    def kv_recovery(self, result: str) -> None:
        """A gap was `replayed` or `lost`, or a number that was passed told of a `restart`."""


class KvReader:
    """Reads one publisher while `run` runs.

    Args:
        context: makes the sockets.
        feed: who is told.
        addresses: the publisher, and where its messages can be asked for again, if anywhere.
        topic: what the topics that count begin with.
        turn: held by the reader that works.
        heard: called for each turn with messages that could be read.
        listener: hears what happens.

    Attributes:
        feed: who is told.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        feed: KvFeed,
        addresses: tuple[str, str | None],
        topic: bytes,
        turn: asyncio.Lock,
        heard: Callable[[], None],
        listener: Listener,
    ) -> None:
        self.feed = feed
        self._context = context
        self._address, self._replay_address = addresses
        self._topic = topic
        self._turn = turn
        self._heard = heard
        self._listener = listener
        self._asked_at = -COOL_DOWN_S

    async def run(self) -> None:
        """Read until cancelled; nothing that comes can end this."""
        while True:
            try:
                await self._listen()
            except Exception:  # noqa: BLE001  one engine's surprise must not leave it unheard for ever
                self._drop("internal")
            await asyncio.sleep(COOL_DOWN_S)

    async def _listen(self) -> None:
        """Read until the connection ends.

        As a rule ZMQ connects again by itself, ever more slowly, but not to who has broken its rules.
        """
        with self._socket(zmq.SUB, self._address) as socket, _monitor(socket) as monitor:
            socket.subscribe(self._topic)
            direct = _direct(socket)
            while True:
                if not await socket.poll(LOOK_MS):
                    if await monitor.poll(0):
                        return
                    continue
                async with self._turn:
                    began = time.monotonic()
                    waiting = self._read(direct, began + TURN_S)
                    await _rest(time.monotonic() - began)
                if waiting is not None:
                    await self._recover(*waiting)

    def _read(self, socket: zmq.Socket[bytes], until: float) -> tuple[int, Batch] | None:
        """Take in what is there; stop at a message before which others are missing, and return it."""
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            read = self._parse(frames, (_LIVE_FRAMES,))
            if read is not None:
                number, batch = read
                self._heard()
                if self.feed.is_past(number):
                    self._listener.kv_recovery("restart")
                if self.feed.missing(number) is not None:
                    return read
                self._listener.kv_messages("ok", [*batch.skipped, *self.feed.receive(number, batch)])
            if time.monotonic() >= until:
                return None

    def _parse(self, frames: Sequence[bytes], lengths: tuple[int, ...]) -> tuple[int, Batch] | None:
        """Read number and payload, the last two frames of a message; None if it is dropped."""
        if len(frames) not in lengths:
            self._drop("frames")
            return None
        written, payload = frames[-2:]
        if len(written) != _NUMBER_BYTES:
            self._drop("number")
            return None
        number = int.from_bytes(written, "big")
        try:
            return number, decode(payload)
        except UndecodableError as error:
            self.feed.lost(number)
            self._drop(error.reason)
            return None

    def _drop(self, reason: str) -> None:
        self._listener.kv_messages(reason, ())

    async def _recover(self, number: int, batch: Batch) -> None:
        """Ask for what is missing before a message, then take it in; without an answer the rest is lost."""
        if self._replay_address is not None:
            await asyncio.sleep(self._asked_at + COOL_DOWN_S - time.monotonic())
            self._asked_at = time.monotonic()
            await self._ask(self._replay_address, number)
        result = "lost" if self.feed.missing(number) is not None else "replayed"
        self._listener.kv_recovery(result)
        self._listener.kv_messages("ok", [*batch.skipped, *self.feed.receive(number, batch)])

    async def _ask(self, address: str, until: int) -> None:
        first = self.feed.missing(until)
        if first is None:
            return
        end = time.monotonic() + REPLAY_S
        with self._socket(zmq.DEALER, address) as socket:
            direct = _direct(socket)
            await socket.send_multipart([b"", first.to_bytes(_NUMBER_BYTES, "big")])
            while (left := min(end - time.monotonic(), REPLAY_IDLE_S)) > 0 and await socket.poll(int(left * 1000)):
                async with self._turn:
                    began = time.monotonic()
                    is_over = self._read_answers(direct, began + TURN_S)
                    await _rest(time.monotonic() - began)
                if is_over:
                    return

    def _read_answers(self, socket: zmq.Socket[bytes], stop: float) -> bool:
        """Take in answers that are there; return whether that was the last.

        They go on beyond what was missed, which fills later gaps too; what they bring twice the feed ignores.
        """
        while time.monotonic() < stop:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            if frames and not frames[0]:
                del frames[0]
            if len(frames) in _REPLAY_FRAMES and frames[-2] == _END:
                return True
            read = self._parse(frames, _REPLAY_FRAMES)
            if read is None:
                continue
            number, batch = read
            self._listener.kv_messages("replayed", [*batch.skipped, *self.feed.replayed(number, batch)])
        return False

    def _socket(self, kind: int, address: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.rcvhwm = QUEUE
        socket.maxmsgsize = LARGEST_MESSAGE
        socket.ipv6 = "[" in address
        socket.reconnect_ivl, socket.reconnect_ivl_max = _RECONNECT_MS, _LAST_RECONNECT_MS
        socket.heartbeat_ivl, socket.heartbeat_timeout = _HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS
        socket.connect(address)
        return socket


def _direct(socket: zmq.asyncio.Socket) -> zmq.Socket[bytes]:
    """Return the same socket for reading at once what is there, which costs a tenth of awaiting each message."""
    direct: zmq.Socket[bytes] = zmq.Socket.shadow(socket.underlying)
    return direct


@contextmanager
def _monitor(socket: zmq.asyncio.Socket) -> Iterator[zmq.asyncio.Socket]:
    """Return a socket that can be read once a connection has ended."""
    monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        yield monitor
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)


async def _rest(worked: float) -> None:
    """Leave the rest of the process as much time as work took, if it was more than a moment."""
    await asyncio.sleep(worked if worked > TURN_S / 2 else 0)
