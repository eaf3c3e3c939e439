"""What clients are told of decisions, through a real Envoy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.waiting import until
from tests.wire.stack import MODEL, received, running_stack

pytestmark = pytest.mark.envoy
CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "List three rivers. " * 60}]}
EXPLANATION = "x-kvpicker-explanation"
DECISION = "x-kvpicker-decision"
ASKING = {"x_kvpicker_explain": "1"}


async def test_an_allowed_network_gets_the_explanation(tmp_path: Path) -> None:
    """A client that asks is told each candidate's cost and its own cached tokens; the engine sees nothing of it."""
    async with running_stack(tmp_path, pool="explain: {networks: [127.0.0.0/8, '::1']}") as stack:
        assert EXPLANATION not in (await stack.post(CHAT, BODY))[1]
        await stack.finished(1)
        status, headers, _ = await stack.post(CHAT, BODY, **ASKING)
        (first, second) = await stack.finished(2)
        told = json.loads(headers[EXPLANATION])
        assert (status, told["endpoint"], told["reason"]) == (200, first["endpoint"], "prefix")
        assert {row["endpoint"] for row in told["candidates"]} == {engine.address for engine in stack.engines}
        assert told["candidates"][0]["hit_tokens"] == second["hit_tokens"] > 200
        assert (told["decision"], DECISION in headers) == (second["decision_id"], False)
        names = {name.lower() for entry in await received(stack, CHAT) for name, _ in entry["headers"]}
        assert not {name for name in names if "explain" in name}
        assert await stack.violations() == {}


async def test_a_rehearsal_foretells_the_pick(tmp_path: Path) -> None:
    """What the admin server says of a request is what becomes of it, and asking sends nothing to an engine."""
    async with running_stack(tmp_path) as stack:
        await stack.post(CHAT, BODY)
        (first,) = await stack.finished(1)
        async with stack.client.post(
            f"http://{stack.service.admin_address}/debug/explain", data=json.dumps(BODY)
        ) as answer:
            told = await answer.json()
        assert (told["verdict"], told["endpoint"], told["reason"]) == ("picked", first["endpoint"], "prefix")
        assert len(await received(stack, CHAT)) == 1
        await stack.post(CHAT, BODY)
        _, second = await stack.finished(2)
        assert (second["endpoint"], second["hit_tokens"]) == (told["endpoint"], told["predicted_cached_tokens"])
        (latest, _) = await stack.decisions()
        compared = latest["comparison"]["cached_tokens"]
        assert compared["error"] == compared["predicted"] - compared["true"]


async def test_another_network_gains_nothing(tmp_path: Path) -> None:
    """Neither asking nor headers that claim another address or the gateway's word open the explanation."""
    claims = {
        "x_gateway_explain": "1",
        "x_forwarded_for": "10.0.0.1",
        "x_envoy_external_address": "10.0.0.1",
        "x_real_ip": "10.0.0.1",
        "x_kvpicker_explanation": "10.0.0.1",
    }
    async with running_stack(tmp_path, pool="explain: {networks: [10.0.0.0/8]}") as stack:
        for asking in ({}, ASKING):
            status, headers, _ = await stack.post(CHAT, BODY, **claims, **asking)
            assert (status, EXPLANATION in headers) == (200, False)
        assert await stack.violations() == {}


async def test_only_the_clients_own_header_asks(tmp_path: Path) -> None:
    """In an allowed network too, the gateway's name for the header is taken away from clients."""
    async with running_stack(tmp_path, pool="explain: {networks: [127.0.0.0/8]}") as stack:
        for asking in ({"x_gateway_explain": "1"}, {"x_kvpicker_explain": "0"}, {"x_kvpicker_explain": "1,1"}):
            assert EXPLANATION not in (await stack.post(CHAT, BODY, **asking))[1]


async def test_a_refusal_is_explained(tmp_path: Path) -> None:
    """A client in an allowed network learns which filter left nothing."""
    async with running_stack(tmp_path, pool="explain: {networks: [127.0.0.0/8]}") as stack:
        status, headers, _ = await stack.post(CHAT, {**BODY, "model": "unknown"}, **ASKING)
        assert (status, json.loads(headers[EXPLANATION])["filters"]) == (404, ["model: 0 of 3 match"])
        assert EXPLANATION not in (await stack.post(CHAT, {**BODY, "model": "unknown"}))[1]
        assert await stack.violations() == {}


async def test_every_response_shows_its_decision_if_wanted(tmp_path: Path) -> None:
    """The header appears with the setting, on streams and plain answers alike, and goes with it, without a restart."""
    async with running_stack(tmp_path) as stack:
        assert DECISION not in (await stack.post(CHAT, BODY))[1]
        plain = stack.config.read_text()
        stack.config.write_text(plain + "explain: {header: true}\n")
        await until(lambda: len(stack.logged("config_applied")) >= 1)
        for number, body in enumerate((BODY, {**BODY, "stream": True}), 2):
            _, headers, _ = await stack.post(CHAT, body)
            line = (await stack.finished(number))[-1]
            identity, endpoint, tokens, reason = headers[DECISION].split("|")
            assert (identity, endpoint, reason) == (line["decision_id"], line["endpoint"], line["reason"])
            assert tokens.partition("/")[0] == str(line["hit_tokens"])
        stack.config.write_text(plain)
        await until(lambda: len(stack.logged("config_applied")) >= 2)
        assert DECISION not in (await stack.post(CHAT, BODY))[1]
