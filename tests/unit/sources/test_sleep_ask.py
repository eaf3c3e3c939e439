"""Asking an engine whether it sleeps, and having it wake."""

from __future__ import annotations

import pytest

from ext_proc.core.model import Endpoint
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.sources.probe_ask import open_session
from ext_proc.sources.sleep_ask import NoSleepModeError, ask_sleep, ask_wake
from tests.unit.sources.serving import Answer, cut, hang, page, serving


def endpoint_at(address: str) -> Endpoint:
    """Make the endpoint of an address."""
    registry = Registry()
    registry.replace("p", [EndpointSpec(address=address)])
    return registry.snapshot.endpoints[0]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (page(b'{"is_sleeping":true}'), True),
        (page(b'{"is_sleeping": false, "more": 1}'), False),
        (page(b'{"is_sleeping":"yes"}'), None),
        (page(b"[]"), None),
        (page(b"\xff\xfe"), None),
        (page(b'{"is_sleeping":true}', 500), None),
        (page(b"x" * 100_000), None),
        (hang, None),
        (cut, None),
    ],
)
async def test_only_a_plain_answer_counts(answer: Answer, expected: bool | None) -> None:
    """Anything else is none, and may be one the next time."""
    async with serving() as engine, open_session() as session:
        engine.answer = answer
        assert await ask_sleep(session, endpoint_at(engine.address), 0.3) is expected
        assert engine.asked == ["/is_sleeping"]


@pytest.mark.parametrize("status", [401, 403, 404, 405, 501])
async def test_some_never_answer(status: int) -> None:
    """Who has no such page will have none the next time."""
    async with serving() as engine, open_session() as session:
        engine.answer = page(b"", status)
        with pytest.raises(NoSleepModeError, match=f"http_{status}"):
            await ask_sleep(session, endpoint_at(engine.address), 0.3)


async def test_nobody_there_is_no_answer() -> None:
    """And no reason to believe that there is no sleep mode."""
    async with serving() as engine:
        gone = endpoint_at(engine.address)
    async with open_session() as session:
        assert await ask_sleep(session, gone, 0.3) is None
        assert await ask_wake(session, gone, 0.3) == "unreachable"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(page(b""), "ok"), (page(b"", 500), "refused"), (page(b"", 404), "refused"), (hang, "timeout")],
)
async def test_what_came_of_a_wake_call(answer: Answer, expected: str) -> None:
    """It is sent with the key of the pool."""
    async with serving() as engine, open_session() as session:
        engine.answer = answer
        sent = {"Authorization": "Bearer k"}
        assert await ask_wake(session, endpoint_at(engine.address), 0.3, sent) == expected
        assert (engine.asked, engine.authorizations) == (["/wake_up"], ["Bearer k"])


async def test_a_closed_client_is_a_fault_of_ours() -> None:
    """It is not hidden as an answer of the engine."""
    session = open_session()
    await session.close()
    with pytest.raises(RuntimeError):
        await ask_sleep(session, endpoint_at("127.0.0.1:1"), 0.3)
