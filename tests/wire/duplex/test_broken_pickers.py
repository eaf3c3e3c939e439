"""What the conformance checks take for faults are faults to a real Envoy, and the unbroken picker is none."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from ext_proc.local.envoy import EnvoyProcess, find_envoy
from tests.conformance.picker import Picker
from tests.wire.duplex.gateways import FULL, envoy_gateway
from tests.wire.duplex.raw import Ask, HttpMessage, Mirror, ask, mirrors

pytestmark = pytest.mark.envoy

BODY = b'{"model":"m"}' + b" " * 90_000
SPOOFED = ("x-gateway-destination-endpoint: 192.0.2.1:9",)
MODES = {
    "duplex": {"request": FULL, "response": FULL},
    "streamed": {"request": "STREAMED", "response": "STREAMED"},
    "buffered": {"request": "BUFFERED", "response": "NONE"},
}
REFUSED = {
    "duplex": ("body-before-headers", "answers-headers-twice", "answers-nothing", "replaces-the-message"),
    "streamed": ("answers-answers-as-requests", "answers-nothing", "has-an-afterthought"),
    "buffered": ("answers-headers-as-body", "answers-body-as-headers", "answers-nothing"),
}
"""Breaks that Envoy answers with 500."""


class Stand(NamedTuple):
    """A picker, the Envoy that asks it, and the engines behind."""

    picker: Picker
    port: int
    engines: list[Mirror]

    async def ask(self, name: str, **changes: object) -> HttpMessage:
        """Send a request while the picker is broken in one way."""
        self.picker.broken = name
        request = Ask(name, body=BODY, framing="chunked", cuts=(5, 40_000), headers=SPOOFED)
        answer = await ask(self.port, request._replace(**changes))  # type: ignore[arg-type]
        assert answer is not None
        return answer

    def got(self, name: str) -> HttpMessage:
        """Return what an engine got of it."""
        (found,) = [engine.got[name] for engine in self.engines if name in engine.got]
        return found


@asynccontextmanager
async def standing(mode: str) -> AsyncIterator[Stand]:
    """Run them."""
    picker = Picker()
    async with mirrors() as engines, picker.serving() as where:
        config = envoy_gateway(where, [engine.address for engine in engines], **MODES[mode])
        for listener in config["static_resources"]["listeners"]:
            listener["per_connection_buffer_limit_bytes"] = 1 << 20
        with tempfile.TemporaryDirectory(prefix="kvp-") as short:
            text = json.dumps(config).replace("@PIPE@", f"{short}/h2")
            async with EnvoyProcess(text, find_envoy(), concurrency=1) as envoy:
                yield Stand(picker, await envoy.port("main"), engines)


@pytest.mark.parametrize("mode", MODES)
async def test_envoy_takes_the_unbroken_picker_and_refuses_the_broken_ones(mode: str) -> None:
    """A request through the unbroken picker arrives whole; each of these breaks makes it a 500."""
    async with standing(mode) as stand:
        assert (await stand.ask("", case="whole")).status == 200
        assert stand.got("whole").body == BODY
        assert "192.0.2.1" not in stand.got("whole").headers["x-gateway-destination-endpoint"]
        statuses = {name: (await stand.ask(name)).status for name in REFUSED[mode]}
        assert statuses == dict.fromkeys(REFUSED[mode], 500)
