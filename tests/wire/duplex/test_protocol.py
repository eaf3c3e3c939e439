"""The Endpoint Picker protocol through a real Envoy: subset, equal values, refusals, the endpoint that served."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Value

from ext_proc.core.names import DESTINATION, DROPPED_HEADER, LB_NAMESPACE, SUBSET, SUBSET_NAMESPACE
from tests.waiting import until
from tests.wire.duplex.conftest import Flavour, running
from tests.wire.duplex.gateways import TYPES, ai_gateway, istio, kgateway
from tests.wire.duplex.raw import Ask

pytestmark = pytest.mark.envoy

PARTIAL = {"request": "BUFFERED_PARTIAL"}
ALLOWED, AS_TEXT = "x-allowed", "x-allowed-text"


def hinting(flavour: Flavour) -> Flavour:
    """Let a gateway pass a subset on, which a test says in a header: a list, or a text."""

    def made(processor: str, engines: Any, **modes: str) -> dict[str, Any]:
        config = flavour(processor, engines, **modes)
        value = {"metadata_namespace": SUBSET_NAMESPACE, "key": SUBSET}
        as_list = {**value, "type": "PROTOBUF_VALUE", "encode": "BASE64"}
        rules = [
            {"header": ALLOWED, "on_header_present": as_list, "remove": True},
            {"header": AS_TEXT, "on_header_present": {**value, "type": "STRING"}, "remove": True},
        ]
        kind = f"{TYPES}.filters.http.header_to_metadata.v3.Config"
        filter_ = {
            "name": "envoy.filters.http.header_to_metadata",
            "typed_config": {"@type": kind, "request_rules": rules},
        }
        (chain,) = config["static_resources"]["listeners"][0]["filter_chains"]
        filters = chain["filters"][0]["typed_config"]["http_filters"]
        options = filters[0]["typed_config"].setdefault("metadata_options", {})
        options["forwarding_namespaces"] = {"untyped": [LB_NAMESPACE, SUBSET_NAMESPACE]}
        filters.insert(0, filter_)
        return config

    return made


def listed(*addresses: str) -> str:
    """Write a header that becomes a list."""
    value = Value()
    value.list_value.SetInParent()
    value.list_value.extend(addresses)
    return f"{ALLOWED}: {base64.b64encode(value.SerializeToString()).decode()}"


@pytest.mark.parametrize("flavour", [istio, ai_gateway])
@pytest.mark.parametrize("bodyless", [False, True], ids=["body", "no body"])
async def test_only_the_subset_is_picked_from(tmp_path: Path, chat: bytes, flavour: Flavour, *, bodyless: bool) -> None:
    """As a list or as a text, with a body or without: every request goes to a member, and to no other endpoint."""
    method, body = ("GET", None) if bodyless else ("POST", chat)
    path = "/v1/models" if bodyless else "/v1/chat/completions"
    async with running(tmp_path, hinting(flavour)) as stack:
        first, second, third = (engine.address for engine in stack.engines)
        for number, header in enumerate([listed(second), f"{AS_TEXT}: {third}", listed("10.9.9.9:1", first)] * 2):
            answer = await stack.ask(Ask(str(number), method, path, body, headers=(header,)))
            assert answer is not None
            assert answer.status == 200
            assert str(number) in stack.engines[(1, 2, 0)[number % 3]].got
            assert stack.got(str(number)).headers[DESTINATION] == (second, third, first)[number % 3]


@pytest.mark.parametrize("flavour", [istio, ai_gateway])
async def test_a_subset_without_a_member_is_503(tmp_path: Path, chat: bytes, flavour: Flavour) -> None:
    """Empty or foreign, with a body or without: 503 with the reason, and no engine hears of it."""
    async with running(tmp_path, hinting(flavour)) as stack:
        asked = [
            Ask("1", body=chat, headers=(listed(),)),
            Ask("2", body=chat, headers=(listed("10.9.9.9:1"),)),
            Ask("3", "GET", "/v1/models", headers=(f"{AS_TEXT}: nonsense",)),
        ]
        for request in asked:
            answer = await stack.ask(request)
            assert answer is not None
            assert (answer.status, answer.headers[DROPPED_HEADER]) == (503, "rejected-no-endpoints")
            assert json.loads(answer.body)["error"]["code"] == "subset_empty"
        assert all(not engine.got for engine in stack.engines)


@pytest.mark.parametrize(("flavour", "modes"), [(istio, None), (kgateway, None), (kgateway, PARTIAL)])
async def test_a_model_that_the_gateway_names_decides(
    tmp_path: Path, chat: bytes, flavour: Flavour, modes: dict[str, str] | None
) -> None:
    """It goes before the body's, which no endpoint serves, and stands in the body that the engine gets."""
    other = chat.replace(b"sim/chat-8b", b"alias")
    assert other != chat
    extra = "gateway: {model_rewrite: true}"
    async with running(tmp_path, flavour, modes=modes, extra=extra, settles=flavour is istio) as stack:
        refused = await stack.ask(Ask("1", body=other))
        assert refused is not None
        assert refused.status == 404
        for number, framing in enumerate(["length", "chunked"] * 2, start=2):
            rewrite = ("x-llm-d-model-name-rewrite: sim/chat-8b",)
            answer = await stack.ask(Ask(str(number), body=other, framing=framing, headers=rewrite))
            assert answer is not None
            assert answer.status == 200
            assert stack.got(str(number)).body == chat


async def test_no_engine_reads_of_two_models(tmp_path: Path) -> None:
    """A model behind what is held back of a body stays what it was, and one of unknown meaning is given none."""
    late = b'{"messages":[{"role":"user","content":"' + b"x" * 3_000_000 + b'"}],"model":"alias"}'
    extra = "gateway: {model_rewrite: true}\nprompts: {collect_bytes: 70000}"
    async with running(tmp_path, istio, extra=extra) as stack:
        for number, (path, body) in enumerate([("/v1/chat/completions", late), ("/pause", b'{"tags":["weights"]}')]):
            rewrite = ("x-llm-d-model-name-rewrite: sim/chat-8b",)
            answer = await stack.ask(Ask(str(number), path=path, body=body, headers=rewrite))
            assert answer is not None
            assert answer.status == 200
            assert stack.got(str(number)).body == body


async def test_a_client_cannot_say_where_it_goes_or_was_served(tmp_path: Path, chat: bytes) -> None:
    """Destination, subset and served of a client gain nothing, on any path (H01, H03)."""
    spoofed = tuple(f"{DESTINATION}{end}: 127.0.0.1:9901" for end in ("", "-subset", "-served"))
    async with running(tmp_path, ai_gateway) as stack:
        asked = [
            Ask("1", body=chat, headers=spoofed),
            Ask("2", "GET", "/v1/models", headers=spoofed),
            Ask("3", path="/nobody/knows", body=chat, headers=spoofed),
            Ask("4", body=b"{broken", headers=spoofed),
        ]
        for request in asked:
            answer = await stack.ask(request)
            assert answer is not None
            assert answer.status == 200
        for request in asked:
            assert stack.got(request.case).headers[DESTINATION] in {engine.address for engine in stack.engines}
        await until(lambda: len(stack.outcomes) == len(asked))
        addresses = {engine.address for engine in stack.engines}
        assert {outcome.served for outcome in stack.outcomes} <= addresses


async def test_who_served_is_who_learns(tmp_path: Path, chat: bytes) -> None:
    """Of an endpoint that it does not have Envoy takes another, and says which: that one has load and prefix (G21)."""

    def without_the_first(processor: str, engines: Any, **modes: str) -> dict[str, Any]:
        return istio(processor, engines[1:], **modes)

    async with running(tmp_path, without_the_first) as stack:
        core = stack.service._core
        slots = [core.registry.snapshot.by_address[engine.address].slot for engine in stack.engines]
        for number in range(3):
            answer = await stack.ask(Ask(str(number), body=chat.replace(b"three", b"%d" % number), shape="events 5"))
            assert answer is not None
            assert answer.status == 200
        await until(stack.is_quiet)
        chosen = [decision.chosen.address for decision in stack.service._ring._decisions.values()]
        served = [outcome.served for outcome in stack.outcomes]
        assert sorted(chosen) == sorted(engine.address for engine in stack.engines)
        assert stack.engines[0].address not in served
        assert sorted(outcome.attempts for outcome in stack.outcomes) == [1, 1, 2]
        assert core.index.blocks(slots[0]) == 0 < min(core.index.blocks(slot) for slot in slots[1:])
        assert all(core.ledger.load(slot).tokens == 0 for slot in slots)
