"""One publisher of KV events: its socket, its messages, and the questions for those that were lost."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import zmq
import zmq.asyncio

from ext_proc.core.kv_events import Batch
from ext_proc.core.kv_feed import KvFeed
from ext_proc.core.kv_state import Disbelief, PublisherState
from ext_proc.sources.kv_decode import UndecodableError, decode
from ext_proc.sources.kv_recent import Recent, beginning
from ext_proc.sources.kv_sockets import direct_of, happened, monitored, new_socket

TURN_S = 0.002
"""Work of one turn; a message that was begun is finished."""

COOL_DOWN_S = 1.0
"""Time between two questions for lost messages; until the second is answered nothing is believed. The same between two
connections."""

REPLAY_IDLE_S = 2.0
REPLAY_S = 20.0
"""Longest time without an answer, which an engine looks for every 0.1 s, and for all of them."""

_NUMBER_BYTES = 8
_END = b"\xff" * _NUMBER_BYTES
_LIVE_FRAMES = 3
_REPLAY_FRAMES = (2, 3)
"""After the empty frame: number and payload, in later versions with the topic before them."""


class Listener(Protocol):
    """Hears of messages; called on the event loop."""

    def kv_messages(self, result: str, skipped: Iterable[str]) -> None:
        """A message was received: `ok`, or why it was dropped; why events of it had no effect."""

    def kv_recovery(self, result: str) -> None:
        """What was missing was `replayed` or `lost`, a question `unanswered`, or the process is another: `restart`."""


class _Newest(NamedTuple):
    """The newest message that was taken in: who has the same under its number is the same process.

    Attributes:
        number: its number.
        beginning: of its payload, where the time is that it was made.
    """

    number: int
    beginning: bytes

    @classmethod
    def of(cls, number: int, payload: bytes) -> _Newest:
        """Remember a message."""
        return cls(number, beginning(payload))


class _Answer(enum.Enum):
    """What became of a question."""

    COMPLETE = enum.auto()
    NONE = enum.auto()
    OF_ANOTHER = enum.auto()


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
        is_connected: whether there is a connection.
        cut_at: since when there is none any more, monotonic seconds; None while there is one, or before the first.
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
        self.is_connected = False
        self.cut_at: float | None = None
        self._context = context
        self._address, self._replay_address = addresses
        self._topic = topic
        self._turn = turn
        self._heard = heard
        self._listener = listener
        self._asked_at = -COOL_DOWN_S
        self._newest: _Newest | None = None
        self._expected: _Newest | None = None
        self._recent = Recent()
        self._messages = self._gaps = self._restarts = 0
        self._heard_at: float | None = None
        self._lag: float | None = None

    async def run(self) -> None:
        """Read until cancelled; nothing that comes can end this."""
        while True:
            try:
                await self._listen()
            except Exception:  # noqa: BLE001  one engine's surprise must not leave it unheard for ever
                self._drop("internal")
            await asyncio.sleep(COOL_DOWN_S)

    def state(self, now: float) -> PublisherState:
        """Tell how listening goes; `now` in monotonic seconds."""
        feed, caches = self.feed, list(self.feed.caches.values())
        disbelief = feed.disbelief
        if disbelief in (Disbelief.NOTHING_HEARD, Disbelief.SILENT) and not self.is_connected:
            disbelief = Disbelief.NOT_CONNECTED
        return PublisherState(
            address=self._address,
            connected=self.is_connected,
            disbelief=disbelief,
            complete=feed.is_complete,
            blocks=sum(map(len, caches)),
            block_tokens=next((cache.block_tokens for cache in caches if cache.block_tokens), None),
            messages=self._messages,
            age_s=None if self._heard_at is None else max(now - self._heard_at, 0.0),
            lag_s=self._lag,
            gaps=self._gaps,
            lost=feed.losses,
            restarts=self._restarts,
        )

    async def _listen(self) -> None:
        """Read until the connection ends.

        ZMQ tries to connect until it succeeds, ever more slowly, but leaves alone who has broken its rules.
        """
        with new_socket(self._context, zmq.SUB, self._address) as socket, monitored(socket) as monitor:
            socket.subscribe(self._topic)
            socket.connect(self._address)  # watched from before, or its beginning may be missed
            direct, poller, has_ended = direct_of(socket), zmq.asyncio.Poller(), False
            poller.register(socket, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
            while True:
                ready = dict(await poller.poll(0 if has_ended else None))
                if monitor in ready:
                    has_ended = await self._note_connection(happened(direct_of(monitor))) or has_ended
                if socket not in ready:
                    if has_ended:  # and what came before is read
                        return
                    continue
                async with self._turn:
                    began = time.monotonic()
                    waiting = self._read(direct, began + TURN_S)
                    await _rest(time.monotonic() - began)
                if waiting is not None:
                    await self._recover(*waiting)

    async def _note_connection(self, happened: set[int]) -> bool:
        """Note what happened to the connection; return whether it has ended."""
        self.is_connected = zmq.EVENT_DISCONNECTED not in happened
        self.cut_at = None if self.is_connected else time.monotonic()
        if not self.is_connected:
            self._recent.clear()
            self.feed.reconnected(can_ask=self._replay_address is not None)
        elif self._replay_address is not None:
            await self._catch_up(self._replay_address)
        return not self.is_connected

    async def _catch_up(self, address: str) -> None:
        """Ask for all that was published before: the engine may be silent for long, or be another one by now."""
        answer, losses = _Answer.NONE, self.feed.losses
        self.feed.asking()
        try:
            await self._pause()
            if self._newest is not None:
                answer = await self._ask(address, self._newest.number, self._newest)
                if answer is _Answer.OF_ANOTHER:
                    self._restarted()
                    self._newest = None
            if self._newest is None:
                self.feed.restart()
                answer = await self._ask(address, 0)
        finally:
            self.feed.asked(is_answered=answer is _Answer.COMPLETE)
        is_whole = self.feed.losses == losses
        self._listener.kv_recovery(
            "unanswered" if answer is not _Answer.COMPLETE else "replayed" if is_whole else "lost"
        )

    def _read(self, socket: zmq.Socket[bytes], until: float) -> tuple[int, Batch, bytes] | None:
        """Take in what is there; stop at a message before which others are missing, and return it."""
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            read = self._parse(frames, (_LIVE_FRAMES,))
            if read is not None and self._recent.has(read[0], read[1].at, frames[-1]):
                self._drop("repeated")
            elif read is not None:
                number, batch = read
                self._heard()
                self._heard_at = time.monotonic()
                if self.feed.is_new(number):
                    self._restarted()
                if self.feed.missing(number) is not None:
                    return number, batch, frames[-1]
                self._receive(number, batch, frames[-1])
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
        number = int.from_bytes(written, "big", signed=True)
        if number < 0:  # the end mark, where no end can be, or nonsense that would make all that follows look old
            self._drop("number")
            return None
        try:
            return number, decode(payload)
        except UndecodableError as error:
            self.feed.lost(number)
            self._drop(error.reason)
            return None

    def _drop(self, reason: str) -> None:
        self._listener.kv_messages(reason, ())

    def _restarted(self) -> None:
        self._restarts += 1
        self._listener.kv_recovery("restart")

    def _receive(self, number: int, batch: Batch, payload: bytes) -> None:
        self._recent.note(number, batch.at, payload)
        self._newest = _Newest.of(number, payload)
        self._messages += 1
        self._lag = None if batch.at is None else max(time.time() - batch.at, 0.0)
        self._listener.kv_messages("ok", [*batch.skipped, *self.feed.receive(number, batch)])

    async def _recover(self, number: int, batch: Batch, payload: bytes) -> None:
        """Ask for what is missing before a message, then take it in; without an answer the rest is lost."""
        losses = self.feed.losses
        if self._replay_address is not None:
            await self._pause()
            first = self.feed.missing(number)
            if first is not None:
                await self._ask(self._replay_address, first)
        self._gaps += 1
        self._receive(number, batch, payload)
        self._listener.kv_recovery("lost" if self.feed.losses > losses else "replayed")

    async def _pause(self) -> None:
        await asyncio.sleep(self._asked_at + COOL_DOWN_S - time.monotonic())
        self._asked_at = time.monotonic()

    async def _ask(self, address: str, first: int, newest: _Newest | None = None) -> _Answer:
        """Ask for all messages from a number on; `newest` is how the first of them must be, where that is known."""
        end, self._expected = time.monotonic() + REPLAY_S, newest
        with new_socket(self._context, zmq.DEALER, address) as socket:
            socket.connect(address)
            direct = direct_of(socket)
            await socket.send_multipart([b"", first.to_bytes(_NUMBER_BYTES, "big")])
            while (left := min(end - time.monotonic(), REPLAY_IDLE_S)) > 0 and await socket.poll(int(left * 1000)):
                async with self._turn:
                    began = time.monotonic()
                    answer = self._read_answers(direct, began + TURN_S)
                    await _rest(time.monotonic() - began)
                if answer is not None:
                    return answer
        return _Answer.NONE

    def _read_answers(self, socket: zmq.Socket[bytes], stop: float) -> _Answer | None:
        """Take in answers that are there; return what became of the question, None while more are to come.

        They go on beyond what was missed, which fills later gaps too; what they bring twice the feed ignores.
        """
        while time.monotonic() < stop:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if frames and not frames[0]:
                del frames[0]
            is_last = len(frames) in _REPLAY_FRAMES and frames[-2] == _END
            read = None if is_last else self._parse(frames, _REPLAY_FRAMES)
            if self._expected is not None and (is_last or read is not None):
                if read is None or _Newest.of(read[0], frames[-1]) != self._expected:
                    return _Answer.OF_ANOTHER
                self._expected = None
            if is_last:
                return _Answer.COMPLETE
            if read is not None:
                number, batch = read
                self._newest = _Newest.of(number, frames[-1])
                self._messages += 1
                self._heard_at = time.monotonic()
                self._listener.kv_messages("replayed", [*batch.skipped, *self.feed.replayed(number, batch)])
        return None


async def _rest(worked: float) -> None:
    """Leave the rest of the process as much time as work took, if it was more than a moment."""
    await asyncio.sleep(worked if worked > TURN_S / 2 else 0)
