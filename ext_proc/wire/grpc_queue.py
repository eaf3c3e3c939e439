"""The transport on grpcio's own completion queue, which saves the thread hops of grpc.aio."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from typing import Final

import grpc

from ext_proc.wire.alarms import Alarms
from ext_proc.wire.grpc_stream import Event, Stream, cygrpc, refuse
from ext_proc.wire.transport import OPTIONS, Later, Method, Waiting, report_fault

CALLS_ASKED_FOR: Final = 128
"""New streams that the library may hand over before we come round to ask for more."""

EVENTS_PER_TURN: Final = 256
"""Events that are handled before other work of the event loop has its turn."""

THREAD: Final = "grpc-queue"

CUT_S: Final = 5.0
"""Seconds for streams that are cut to end; they need milliseconds."""

_NEEDED: Final = {
    "CompletionQueue": ("poll", "shutdown"),
    "CompletionType": ("queue_shutdown",),
    "Server": (
        "add_http2_port",
        "cancel_all_calls",
        "register_completion_queue",
        "request_call",
        "shutdown",
        "start",
    ),
    "Call": ("cancel", "start_server_batch"),
    "ReceiveCloseOnServerOperation": (),
    "ReceiveMessageOperation": ("message",),
    "SendInitialMetadataOperation": (),
    "SendMessageOperation": (),
    "SendStatusFromServerOperation": (),
}
"""All that is used of `grpc._cython.cygrpc`, which is what grpcio's own synchronous server stands on."""


def missing() -> list[str]:
    """List what this transport needs and this Python with its grpcio does not have."""
    absent = [name for name in _NEEDED if not hasattr(cygrpc, name)]
    if not hasattr(os, "eventfd"):
        return ["os.eventfd"]
    return absent + [
        f"{name}.{attribute}"
        for name, attributes in _NEEDED.items()
        for attribute in attributes
        if name not in absent and not hasattr(getattr(cygrpc, name), attribute)
    ]


class QueueTransport:
    """Carries streams by a completion queue that a thread watches and the event loop empties.

    The thread waits for the first event and passes it on; then it is the event loop that handles this and
    whatever completes meanwhile, until the queue is empty and the thread's turn comes again. So there is one
    hand-over for a burst of events, and our code only ever runs on the event loop.

    Args:
        methods: what is served.
    """

    name = "queue"

    def __init__(self, methods: Iterable[Method]) -> None:
        self._methods = {f"/{method.service}/{method.name}".encode(): method.open for method in methods}
        self._queue = cygrpc.CompletionQueue()
        self._server = cygrpc.Server(OPTIONS, False)
        self._server.register_completion_queue(self._queue)
        self._stopping = False
        self._waiting: Waiting[Stream] = Waiting(Stream.end)
        self._alarms: Alarms[Stream, Later] = Alarms(Stream.hurry)
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake = -1
        self._first: Event = None
        self._loop: asyncio.AbstractEventLoop
        self._drained: asyncio.Future[None]
        self._ended: asyncio.Future[None]

    def listen(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen on `ip:port` or `unix:/path`; returns the port, or 0 where that is impossible."""
        if credentials is None:
            return int(self._server.add_http2_port(address.encode()))
        # As grpcio's own server takes the credentials of the library from those of Python.
        secret = credentials._credentials  # type: ignore[attr-defined]  # noqa: SLF001
        return int(self._server.add_http2_port(address.encode(), secret))

    async def start(self) -> None:
        """Begin to take streams."""
        self._loop = asyncio.get_running_loop()
        self._drained = self._loop.create_future()
        self._ended = self._loop.create_future()
        # Cheaper than call_soon_threadsafe, and there is never more than one event to pass.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop.add_reader(self._wake, self._woken)
        self._server.start()
        for _ in range(CALLS_ASKED_FOR):
            self._ask()
        self._thread = threading.Thread(target=self._watch, name=THREAD, daemon=True)
        self._thread.start()

    async def stop(self, grace: float) -> None:
        """Take no further streams, end the optional ones, and cut those that still run after `grace` seconds."""
        if self._thread is None:
            return
        if not self._stopping:
            self._stopping = True
            self._waiting.end()
            self._server.shutdown(self._queue, self._all_ended)
        try:
            await asyncio.wait_for(asyncio.shield(self._drained), grace)
        except TimeoutError:
            self._server.cancel_all_calls()
        await asyncio.wait((self._drained,), timeout=CUT_S)
        if not self._drained.done():
            # Somebody holds a call, in a traceback perhaps. A thread left behind is better than no end.
            report_fault(RuntimeError("a cut gRPC stream did not end"))
            return
        self._queue.shutdown()
        await asyncio.shield(self._ended)
        self._release()

    def _release(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._loop.remove_reader(self._wake)
            os.close(self._wake)

    def _watch(self) -> None:
        """Wait for an event and leave the queue to the event loop, by turns; the body of the thread."""
        last = False
        while not last:
            self._turn.acquire()
            self._first = self._queue.poll()
            last = self._first.completion_type == cygrpc.CompletionType.queue_shutdown
            os.eventfd_write(self._wake, 1)

    def _woken(self) -> None:
        os.eventfd_read(self._wake)
        # A call ends when nobody holds it or its last event any more, so this must not be kept.
        event, self._first = self._first, None
        if event.tag is None:
            self._ended.set_result(None)
        else:
            self._take(event)

    def _take(self, event: Event) -> None:
        """Handle an event and all that follow it."""
        poll = self._queue.poll
        for _ in range(EVENTS_PER_TURN):
            try:
                event.tag(event)
            except Exception as error:  # noqa: BLE001  one stream must not end the others
                report_fault(error)
            event = poll(0)
            if event.tag is None:  # nothing more at the moment, or for ever
                self._turn.release()
                return
        self._loop.call_soon(self._take, event)

    def _ask(self) -> None:
        self._server.request_call(self._queue, self._queue, self._accept)

    def _accept(self, event: Event) -> None:
        if not self._stopping:
            self._ask()
        if not event.success:
            return
        open_session = self._methods.get(event.call_details.method)
        if open_session is None:
            refuse(event.call)
        else:
            Stream(event.call, open_session, self._waiting, self._alarms)

    def _all_ended(self, _event: Event) -> None:
        self._drained.set_result(None)
