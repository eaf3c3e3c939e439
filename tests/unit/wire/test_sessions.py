"""Sessions from the bytes on the wire to the endpoint."""

from __future__ import annotations

import json

import pytest

from ext_proc.core.exchange_messages import RequestHeaders
from ext_proc.core.names import SESSION_HEADERS
from ext_proc.wire.codec import decode
from tests.unit.wire.picking import CONFIG, Picking, body_message, headers_message

STICKY = CONFIG.replace("  main:", "  main:\n    strategy: {name: session-affinity}")


def _session(*headers: tuple[str, str]) -> str:
    event = decode(headers_message("/v1/chat/completions", *headers))
    assert isinstance(event, RequestHeaders)
    return event.head.session


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_every_header_that_names_a_session_is_read(name: str) -> None:
    """Clients have several names for it."""
    assert _session((name, "s-1")) == "s-1"


def test_the_gateways_name_goes_before_the_clients() -> None:
    """What the operator configured counts, whatever the client sends beside it."""
    assert _session(("x-session-id", "client"), ("x-kvpicker-session", "gateway")) == "gateway"


@pytest.mark.parametrize("where", ["header", "body"])
def test_a_session_stays_on_its_endpoint(where: str) -> None:
    """Requests that share nothing but the session's name go to one endpoint, those of another session elsewhere."""
    picking = Picking(STICKY)

    def chosen(session: str, turn: int) -> str:
        message = {"model": "acme/chat-8b", "messages": [{"role": "user", "content": f"{turn} unlike the others"}]}
        headers = [("x-kvpicker-session", session)] if where == "header" else []
        body = message if where == "header" else message | {"prompt_cache_key": session}
        stream = picking.session()
        stream.receive(headers_message("/v1/chat/completions", *headers))
        stream.receive(body_message(json.dumps(body).encode()))
        return str(picking.notes.all("decided")[-1].chosen.address)

    first = chosen("a", 0)
    assert chosen("b", 1) != first
    assert [chosen("a", turn) for turn in range(2, 9)] == [first] * 7
