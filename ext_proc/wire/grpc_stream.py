"""One gRPC stream on a completion queue: which operations go out together, and what each completion means."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc

from ext_proc.wire.alarms import Alarms
from ext_proc.wire.transport import FAULT, NOTHING, Later, Reply, Session, Waiting, report_fault

try:
    cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")
except ImportError:  # a grpcio that keeps it elsewhere; `missing` of grpc_queue tells
    cygrpc = None

Event: TypeAlias = Any
"""A completed batch: `success`, `tag` and `batch_operations` in the order they were given."""

_NO_FLAGS: Final = 0


class Stream:
    """One accepted call, from its first batch to the close of its session.

    Everything runs on the thread of the event loop. Each batch has a bound method as its tag, which the one
    who polls the queue calls with the event; an open batch keeps its call and this object alive.

    Args:
        call: the call that the library accepted.
        open_session: opens our side of it.
        waiting: learns when the stream may be ended.
        alarms: end the patience with peers that say nothing; call `Stream.hurry`.
    """

    __slots__ = (
        "_alarms",
        "_begun",
        "_call",
        "_delivered",
        "_kept",
        "_more",
        "_optional",
        "_overhearing",
        "_session",
        "_task",
        "_then",
        "_timed",
        "_waiting",
    )

    def __init__(
        self, call: Any, open_session: Callable[[], Session], waiting: Waiting[Stream], alarms: Alarms[Stream, Later]
    ) -> None:
        self._call = call
        self._waiting = waiting
        self._alarms = alarms
        self._optional = False
        self._begun = False
        self._delivered = True
        self._session: Session | None = None
        self._task: asyncio.Future[Reply] | None = None
        self._then: Callable[[], Awaitable[Reply]] | None = None
        self._overhearing = False
        self._kept: bytes | None = None
        self._more: Sequence[bytes] = ()
        self._timed = False
        call.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),), self._over)
        try:
            self._session = open_session()
        except Exception as error:  # noqa: BLE001  a session of any kind may fail in any way
            self._fail(error)
        else:
            self._read()

    def _read(self) -> None:
        if self._overhearing:  # this read is under way
            self._overhearing = False
            return
        kept, self._kept = self._kept, None
        if kept is not None:
            self._take(kept)
            return
        self._start((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), self._received)

    def _received(self, event: Event) -> None:
        """Take the peer's message, None at its half-close; the first answer completes with the read behind it."""
        if self._overhearing:
            self._overheard(event)
            return
        if not event.success:
            self._close()
            return
        self._delivered = True
        if self._optional:
            self._waits_no_more()
        message = event.batch_operations[-1].message()
        if self._session is None:
            return
        if message is None:
            self._finish(self._close())
        else:
            self._take(message)

    def _take(self, message: bytes) -> None:
        session = self._session
        if session is None:
            return
        try:
            answer = session.receive(message)
            if self._timed and answer is not NOTHING:
                self._hurries_no_more()
            if isinstance(answer, bytes):
                self._pass_on(answer)
            elif isinstance(answer, Reply):
                self._answer(answer)
            else:
                self._await(answer)
        except Exception as error:  # noqa: BLE001  as above
            self._fail(error)

    def _pass_on(self, message: bytes) -> None:
        """Send an answer together with the next read: that this may end with the stream, and hide it, is no loss."""
        if not self._begun or self._overhearing or self._kept is not None:
            self._send(message, NOTHING)
            return
        operations = cygrpc.SendMessageOperation(message, _NO_FLAGS), cygrpc.ReceiveMessageOperation(_NO_FLAGS)
        self._start(operations, self._received)

    def _await(self, reply: Awaitable[Reply]) -> None:
        self._delivered = False  # whatever is decided meanwhile
        self._task = asyncio.ensure_future(reply)
        self._task.add_done_callback(self._waited)

    def _waited(self, task: asyncio.Future[Reply]) -> None:
        self._task = None
        if task.cancelled():
            self._close()
            self._finish(Reply(None, True, grpc.StatusCode.CANCELLED))
        elif (error := task.exception()) is not None:
            self._fail(error)
        else:
            self._answer(task.result())

    def _answer(self, reply: Reply) -> None:
        if reply.then is not None:
            self._answer_first(reply.message, reply.then)
        elif reply.finished:
            self._finish(reply)
        elif reply.message is None:
            if reply.later is not None:
                self._timed = True
                self._alarms.set(self, reply.later.seconds, reply.later)
            self._read()
        else:
            self._send(reply.message, reply)

    def _send(self, message: bytes, reply: Reply) -> None:
        operations = [cygrpc.SendMessageOperation(message, _NO_FLAGS)]
        if not self._begun:
            operations.insert(0, cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS))
        self._delivered = False
        if self._begun or self._overhearing or self._kept is not None or reply.more:
            # Not together with the next read: that may end with the stream, and hide that this was written.
            self._optional = reply.optional
            self._more = reply.more
            self._start(operations, self._written)
        else:
            operations.append(cygrpc.ReceiveMessageOperation(_NO_FLAGS))
            self._start(operations, self._received)
        self._begun = True

    def hurry(self, later: Later) -> None:
        """Ask for what is to be said unasked, while the read goes on."""
        self._timed = False
        if self._session is None:
            return
        self._overhearing = True
        try:
            reply = later.ask()
            if isinstance(reply, Reply):
                self._answer(reply)
            else:
                self._await(reply)
        except Exception as error:  # noqa: BLE001  as above
            self._fail(error)

    def _answer_first(self, message: bytes | None, then: Callable[[], Awaitable[Reply]]) -> None:
        """Send a message, and when it is out await another: a call sends one at a time."""
        self._delivered = False  # whatever is decided meanwhile
        self._then = then
        operations = [] if self._begun else [cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS)]
        if message is not None:
            operations.append(cygrpc.SendMessageOperation(message, _NO_FLAGS))
        self._begun = True
        if operations:
            self._start(operations, self._sent_first)
        else:
            self._await_second()

    def _sent_first(self, event: Event) -> None:
        if event.success and self._call is not None:
            self._await_second()
        else:
            self._then = None
            self._close()

    def _await_second(self) -> None:
        """Read on meanwhile: a peer that no longer waits may say so by nothing but its half-close."""
        then, self._then = self._then, None
        if then is None or self._session is None:
            return
        self._await(then())
        if self._overhearing:  # this read is under way
            return
        self._overhearing = True
        self._start((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), self._overheard)

    def _overheard(self, event: Event) -> None:
        if not self._overhearing:  # the answer is out, and this the next message
            self._received(event)
            return
        self._overhearing = False
        self._kept = event.batch_operations[-1].message() if event.success else None
        if self._kept is None and self._task is not None:
            self._task.cancel()

    def _written(self, event: Event) -> None:
        if not event.success:
            self._close()
            return
        self._delivered = True  # what follows the first message is no news, but parts of a body
        if self._more:  # one at a time is what the library takes
            self._send_more()
            return
        self._read()
        if self._optional and self._call is not None:
            self._waiting.add(self)

    def _send_more(self) -> None:
        """Send the next message of an answer, the last one together with the read behind it."""
        message, self._more = self._more[0], self._more[1:]
        send = cygrpc.SendMessageOperation(message, _NO_FLAGS)
        if self._more or self._overhearing or self._kept is not None:
            self._start((send,), self._written)
        else:
            self._start((send, cygrpc.ReceiveMessageOperation(_NO_FLAGS)), self._received)

    def end(self) -> None:
        """End in good order, though the peer may have more to say."""
        self._close()
        self._finish(NOTHING)

    def _finish(self, reply: Reply) -> None:
        """Send the last answer, if there is one, together with the status."""
        code, details = reply.status.value[0], reply.details.encode()
        operations = [cygrpc.SendStatusFromServerOperation(None, code, details, _NO_FLAGS)]
        if reply.message is not None:
            self._delivered = False
            operations.insert(0, cygrpc.SendMessageOperation(reply.message, _NO_FLAGS))
        if not self._begun:
            operations.insert(0, cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS))
        self._start(operations, self._finished)
        self._begun = True

    def _finished(self, event: Event) -> None:
        if event.success:
            self._delivered = True
        self._close()

    def _over(self, _event: Event) -> None:
        """Let the call go, which the library waits for; batches that are still open complete by themselves."""
        self._call = None
        self._waits_no_more()
        self._hurries_no_more()
        if self._task is not None:
            self._task.cancel()

    def _waits_no_more(self) -> None:
        if self._optional:
            self._optional = False
            self._waiting.discard(self)

    def _hurries_no_more(self) -> None:
        if self._timed:
            self._timed = False
            self._alarms.discard(self)

    def _start(self, operations: Any, tag: Callable[[Event], None]) -> None:
        if self._call is None:
            self._close()
        elif self._call.start_server_batch(operations, tag):
            # The library refuses the operations; without them the call would never end.
            self._call.cancel()
            self._close()

    def _close(self) -> Reply:
        """Close the session, once."""
        session, self._session = self._session, None
        if session is None:
            return NOTHING
        try:
            return session.close(delivered=self._delivered)
        except Exception as error:  # noqa: BLE001  as above
            report_fault(error)
            return NOTHING

    def _fail(self, error: BaseException) -> None:
        report_fault(error)
        self._close()
        self._finish(Reply(None, True, grpc.StatusCode.INTERNAL, FAULT))


def refuse(call: Any) -> None:
    """End a call to a method that is not served."""
    operations = (
        cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS),
        cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),
        cygrpc.SendStatusFromServerOperation(
            None, grpc.StatusCode.UNIMPLEMENTED.value[0], b"no such method", _NO_FLAGS
        ),
    )
    call.start_server_batch(operations, _ignore)


def _ignore(_event: Event) -> None:
    pass
