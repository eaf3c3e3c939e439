"""The completion queue: its thread, its turns, the check at the start and what happens when that fails."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.wire import choice, grpc_queue, grpc_stream
from ext_proc.wire.server import GrpcServer
from ext_proc.wire.transport import Reply
from tests.unit.wire.serving import Tally, begin, converse, serving
from tests.waiting import until


def threads() -> list[str]:
    """Name the running threads of completion queues."""
    return [thread.name for thread in threading.enumerate() if thread.name == grpc_queue.THREAD]


async def test_queue_is_what_auto_takes() -> None:
    """With an ordinary grpcio the check succeeds, and the server says what it uses."""
    server = GrpcServer([], ["127.0.0.1:0"])
    await server.start()
    assert server.description == {"transport": "queue"}
    assert len(threads()) == 1
    await server.stop(0)
    assert threads() == []


async def test_servers_come_and_go_without_a_trace() -> None:
    """Many servers in one process, some cut with streams open, leave no thread behind."""
    tally = Tally(Reply)
    for _ in range(20):
        async with serving([tally.method()], "queue") as channel:
            call = begin(channel)
            await call.write(b"1")
            await until(lambda: tally.running == 1)
        assert (tally.running, threads()) == (0, [])


async def test_sessions_run_on_the_thread_of_the_event_loop() -> None:
    """Our code needs no locks: it only ever runs where the event loop runs."""
    seen: set[int] = set()

    def note(message: bytes) -> Reply:
        seen.add(threading.get_ident())
        return Reply(message)

    async with serving([Tally(note).method()], "queue") as channel:
        await asyncio.gather(*(converse(channel, b"1", b"2") for _ in range(50)))
    assert seen == {threading.get_ident()}


async def test_long_bursts_let_other_work_have_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With turns of one event everything still works: no event is lost between two of them."""
    monkeypatch.setattr(grpc_queue, "EVENTS_PER_TURN", 1)
    tally = Tally(Reply)
    async with serving([tally.method()], "queue") as channel:
        answers = await asyncio.gather(*(converse(channel, b"1", b"2") for _ in range(200)))
    assert answers == [[b"1", b"2", b"bye"]] * 200
    assert tally.ends == [True] * 200


async def test_one_call_asked_for_at_a_time_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst larger than what was asked for waits inside the library and is refused in no part."""
    monkeypatch.setattr(grpc_queue, "CALLS_ASKED_FOR", 1)
    async with serving([Tally(Reply).method()], "queue") as channel:
        answers = await asyncio.gather(*(converse(channel, b"1") for _ in range(1500)))
    assert answers == [[b"1", b"bye"]] * 1500


async def test_fault_that_is_kept_does_not_hold_up_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever collects errors with their tracebacks keeps a call alive at most; the stop ends all the same."""
    monkeypatch.setattr(grpc_queue, "CUT_S", 0.1)
    kept: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: kept.append(context["exception"]))
    tally = Tally(lambda _: Reply(b"" * (1 // 0)))
    async with asyncio.timeout(10), serving([tally.method()], "queue") as channel:
        call = begin(channel)
        await call.write(b"1")
        await call.code()
    assert [type(error) for error in kept] == [ZeroDivisionError]


@pytest.mark.parametrize("name", ["CompletionQueue", "SendMessageOperation"])
async def test_grpcio_without_a_needed_name_is_served_by_aio(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A private interface may go; then the public one serves, and the log can say why."""
    real = grpc_queue.cygrpc
    kept = {entry: getattr(real, entry) for entry in dir(real) if entry != name}
    monkeypatch.setattr(grpc_queue, "cygrpc", SimpleNamespace(**kept))
    server = GrpcServer([Tally(Reply).method()], ["127.0.0.1:0"])
    await server.start()
    await server.stop(0)
    assert server.description == {"transport": "aio", "transport_reason": f"this installation lacks {name}"}


class _Broken(grpc_stream.Stream):
    """Accepts a call and never answers it."""

    __slots__ = ()

    def _received(self, _event: object) -> None:
        pass


async def test_grpcio_that_behaves_otherwise_is_served_by_aio(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that is not answered in time ends in grpc.aio too, and leaves nothing running."""
    monkeypatch.setattr(choice, "CHECK_S", 0.2)
    monkeypatch.setattr(grpc_queue, "Stream", _Broken)
    assert (await choice.unavailable()).startswith("the check failed: TimeoutError")
    assert threads() == []


async def test_queue_that_is_asked_for_and_does_not_work_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who insists on the completion queue is told why it cannot be."""
    monkeypatch.setattr(grpc_queue, "cygrpc", None)
    with pytest.raises(ConfigError, match=r"transport: queue cannot be used with grpcio .*lacks CompletionQueue"):
        await GrpcServer([], ["127.0.0.1:0"], "queue").start()
