"""Requests of real clients through a real Envoy."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.envoys.builds import found_version
from tests.waiting import until
from tests.wire.stack import MODEL, PROFILE, Stack, needs_retries, received, refuse, running_stack

pytestmark = pytest.mark.envoy
TURNS = [{"role": "user", "content": "List three rivers. " * 60}]


async def test_openai_client_gets_its_answers(stack: Stack) -> None:
    """Chat, completions, responses and embeddings of the openai package work, streaming and not."""
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="k", max_retries=0) as client:
        chat = await client.chat.completions.create(model=MODEL, messages=TURNS, max_tokens=5)
        assert chat.choices[0].message.content
        stream = await client.chat.completions.create(model=MODEL, messages=TURNS, max_tokens=5, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        completion = await client.completions.create(model=MODEL, prompt="Once upon", max_tokens=5)
        assert completion.choices[0].text
        response = await client.responses.create(model=MODEL, input="Tell me about tides.", max_output_tokens=16)
        assert response.output_text
        events = await client.responses.create(model=MODEL, input="Tell me more.", max_output_tokens=16, stream=True)
        assert [event.type async for event in events][-1] in ("response.completed", "response.incomplete")
        embedding = await client.embeddings.create(model=MODEL, input="tides")
        assert embedding.data[0].embedding
        assert MODEL in [model.id async for model in client.models.list()]
    outcomes = await stack.finished(7)
    assert {outcome["ending"] for outcome in outcomes} == {"ok"}


async def test_anthropic_client_gets_its_answers(stack: Stack) -> None:
    """Messages and token counting of the anthropic package work, streaming and not."""
    async with anthropic.AsyncAnthropic(base_url=stack.url, api_key="k", max_retries=0) as client:
        message = await client.messages.create(model=MODEL, max_tokens=5, messages=TURNS)
        assert message.content[0].type == "text"
        async with client.messages.stream(model=MODEL, max_tokens=5, messages=TURNS) as stream:
            assert await stream.get_final_text()
        count = await client.messages.count_tokens(model=MODEL, messages=TURNS)
        assert count.input_tokens > 0
    outcomes = await stack.finished(3)
    assert {outcome["ending"] for outcome in outcomes} == {"ok"}


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_engines_token_counts_arrive(stack: Stack, path: str, stream: bool) -> None:
    """The engine's own counts, cached tokens too, reach the outcome for each API, streaming or not."""
    body = {"model": MODEL, "max_tokens": 5, "messages": TURNS, "input": TURNS, "stream": stream}
    if "chat" in path and stream:
        body["stream_options"] = {"include_usage": True}
    await stack.log_is_open()
    await stack.post(path, body)
    await stack.finished(1)
    await stack.post(path, body)
    first, second = await stack.finished(2)
    assert first["prompt_tokens"] > 250
    assert second["cached_tokens"] > 200
    assert second["hit_tokens"] > 200
    assert second["endpoint"] == first["endpoint"]


def odd_bodies() -> list[Any]:
    """Make bodies that a re-encoder would change."""
    message = {"role": "user", "content": "naïve Zoë 😀"}
    whole = {"model": MODEL, "max_tokens": 1, "messages": [message]}
    return [
        pytest.param(json.dumps(whole, indent=3, ensure_ascii=True).encode(), id="escapes"),
        pytest.param(b"\xef\xbb\xbf" + json.dumps(whole, ensure_ascii=False).encode(), id="bom"),
        pytest.param(
            json.dumps(whole)
            .replace('"max_tokens"', '"seed": 9007199254740993, "top_p": 0.30000000000000004, "max_tokens"')
            .encode(),
            id="numbers",
        ),
        pytest.param(
            json.dumps(whole).encode()[:-1] + b', "model": "' + MODEL.encode() + b'"}\n\n', id="duplicate key"
        ),
        pytest.param(b"{", id="1 byte"),
        pytest.param(json.dumps(whole | {"messages": [message] * 2000}).encode(), id="100 KB"),
        pytest.param(json.dumps(whole | {"messages": [message | {"content": "x" * 3_900_000}]}).encode(), id="4 MB"),
    ]


@pytest.mark.parametrize("body", odd_bodies())
async def test_bodies_reach_the_engine_byte_for_byte(stack: Stack, body: bytes) -> None:
    """Whatever the formatting, the engine gets the client's bytes."""
    await stack.post("/v1/chat/completions", body)
    (entry,) = await received(stack, "/v1/chat")
    assert (entry["body_length"], entry["body_sha256"]) == (len(body), hashlib.sha256(body).hexdigest())


async def test_compressed_body_goes_on_compressed_and_is_understood(stack: Stack) -> None:
    """A gzip body is read for its prefix, and its own bytes and header go on (A27)."""
    plain = json.dumps({"model": MODEL, "max_tokens": 1, "messages": TURNS}).encode()
    await stack.post("/v1/chat/completions", plain)
    await stack.finished(1)
    packed = gzip.compress(plain)
    await stack.post("/v1/chat/completions", packed, content_encoding="gzip")
    first, second = await stack.finished(2)
    assert (second["endpoint"], second["hit_tokens"] > 200) == (first["endpoint"], True)
    digests = [entry["body_sha256"] for entry in await received(stack, "/v1/chat")]
    assert hashlib.sha256(packed).hexdigest() in digests


async def test_conversation_stays_where_its_prefix_is(stack: Stack) -> None:
    """Each turn of a conversation goes to the engine that holds the turns before."""
    turns: list[dict[str, str]] = []
    for number in range(6):
        turns.append({"role": "user", "content": f"turn {number}: " + "tell me more about tides. " * 40})
        status, _, _ = await stack.post("/v1/chat/completions", {"model": MODEL, "max_tokens": 1, "messages": turns})
        assert status == 200
        turns.append({"role": "assistant", "content": "They rise and fall."})
        await stack.finished(number + 1)
    outcomes = await stack.finished(6)
    assert len({outcome["endpoint"] for outcome in outcomes}) == 1
    assert all(outcome["cached_tokens"] > 0 for outcome in outcomes[1:])


async def test_burst_is_spread(stack: Stack) -> None:
    """Requests of one moment see each other: equal engines share them (F01)."""
    await asyncio.gather(*(stack.chat(f"unique {number} " * 30) for number in range(99)))
    outcomes = await stack.finished(99)
    shares = [sum(outcome["endpoint"] == engine.address for outcome in outcomes) for engine in stack.engines]
    assert all(25 <= share <= 41 for share in shares), shares


async def test_client_cannot_choose_its_endpoint(stack: Stack) -> None:
    """Destination, subset and Envoy's own headers of a client gain nothing (H01, H03)."""
    spoofed = {
        "x_gateway_destination_endpoint": "127.0.0.1:9",
        "x_gateway_destination_endpoint_subset": "127.0.0.1:9",
        "x_gateway_destination_endpoint_served": "127.0.0.1:9",
        "x_envoy_upstream_rq_timeout_ms": "1",
        "x_envoy_retry_on": "5xx",
        "x_envoy_max_retries": "9",
        "x_kvpicker_anything": "x",
    }
    for path in ("/v1/chat/completions", "/v1/models/unknown/path", "/tokenize"):
        status, headers, _ = await stack.post(path, {"model": MODEL, "messages": TURNS, "prompt": "x"}, **spoofed)
        assert status != 503
        assert headers["x-sim-engine"].startswith("engine-")
    for entry in await received(stack, "/"):
        names = {name.lower() for name, _ in entry["headers"]}
        assert not names & {"x-envoy-retry-on", "x-kvpicker-anything", "x-gateway-destination-endpoint-subset"}


async def test_unknown_paths_reach_an_engine_untouched(stack: Stack) -> None:
    """What kvpicker does not know goes through Envoy's own choice, answer and all."""
    status, headers, _ = await stack.post("/no/such/path?x=1", b"anything")
    assert status == 404
    assert headers["x-sim-engine"].startswith("engine-")
    assert (await received(stack, "/no/such/path?x=1"))[0]["body_length"] == len(b"anything")


async def test_lookups_avoid_an_engine_that_is_down(stack: Stack) -> None:
    """Requests without a body are placed by health as well (A66)."""
    needs_retries()
    await refuse(stack, stack.engines[0])
    for _ in range(30):
        async with stack.client.get(f"{stack.url}/v1/models") as answer:
            assert answer.status == 200


async def test_refused_request_is_tried_on_the_next_endpoint(stack: Stack) -> None:
    """An engine that refuses connections costs no request, is found out and left alone."""
    needs_retries()
    await refuse(stack, stack.engines[0])
    answers = [await stack.chat(f"unique {number} " * 20) for number in range(20)]
    assert {status for status, _, _ in answers} == {200}
    outcomes = await stack.finished(20)
    assert {outcome["endpoint"] for outcome in outcomes} <= {engine.address for engine in stack.engines[1:]}
    assert stack.logged("health_changed")[0]["endpoint"] == stack.engines[0].address


not_in_duplex = pytest.mark.skipif(
    PROFILE == "duplex", reason="what is held is lost, and only an access log that was heard of tells why"
)


@not_in_duplex
@pytest.mark.parametrize(
    ("fault", "ending"),
    [
        ("reset_before_headers", "reset"),
        ("reset_mid_stream", "cut"),
        ("fin_mid_stream", "cut"),
        ("error_500", "server_error"),
        ("busy_503", "overloaded"),
        ("error_in_stream", "stream_error"),
    ],
)
async def test_faults_of_engines_are_told_apart_and_not_repeated(stack: Stack, fault: str, ending: str) -> None:
    """What began is never sent twice, and the outcome says what went wrong."""
    body = {"model": MODEL, "max_tokens": 30, "stream": True, "messages": TURNS}
    try:
        await stack.post("/v1/chat/completions", body, x_sim_fault=fault)
    except Exception as error:  # noqa: BLE001  the cut is what the client must see
        assert "payload" in repr(error).lower() or "disconnected" in repr(error).lower()  # noqa: PT017
    (outcome,) = await stack.finished(1)
    assert outcome["ending"] == ending
    assert len(await received(stack, "/v1/chat")) == 1


@not_in_duplex
@pytest.mark.parametrize("fault", ["reset_mid_stream", "fin_mid_stream"])
async def test_a_cut_stream_is_cut_for_the_client_too(stack: Stack, fault: str) -> None:
    """What came arrives, no end is invented, and the place is free again, once (B15)."""
    body = {"model": MODEL, "max_tokens": 30, "stream": True, "messages": TURNS}
    arrived, url = bytearray(), f"{stack.url}/v1/chat/completions"

    async def read() -> None:
        async with stack.client.post(url, json=body, headers={"x-sim-fault": fault}) as answer:
            async for piece in answer.content.iter_any():
                arrived.extend(piece)

    with pytest.raises(aiohttp.ClientPayloadError):
        await read()
    assert arrived.count(b"data: ") <= 3
    assert b"[DONE]" not in arrived
    (outcome,) = await stack.finished(1)
    assert (outcome["ending"], len(stack.service._core.ledger)) == ("cut", 0)
    assert [load.in_flight for load in stack.service._core.ledger._loads.values()] == [0, 0, 0]


async def test_who_repeats_a_request_that_was_reset_gets_its_answer_elsewhere(stack: Stack) -> None:
    """At the second try at the latest, although the engine that resets has the prefix (F12).

    The case's client tries three times within a second; here it does as soon as the end of the one before is known.
    """
    prompt = "List three rivers. " * 2_000
    first = (await stack.chat(prompt))[1]["x-sim-engine"]
    await stack.finished(1)
    if PROFILE == "duplex" and found_version() == "1.36":  # which shows no answer of its own: the log must tell
        streams = stack.service._core.feedback.streams
        await until(lambda: streams.has_log(time.monotonic()))
    (holder,) = [engine for engine in stack.engines if engine.options.name == first]
    assert (await stack.chat(prompt))[1]["x-sim-engine"] == first
    await stack.finished(2)
    async with stack.client.post(f"{holder.url}/sim/faults", json={"kind": "reset_before_headers"}) as answer:
        assert answer.status == 200
    assert (await stack.chat(prompt))[0] == 503
    repeats = []
    for known in range(3, 6):
        await stack.finished(known)
        repeats.append((await stack.chat(prompt))[:2])
    assert any(status == 200 and headers["x-sim-engine"] != first for status, headers in repeats[:2])
    assert repeats[2][0] == 200


async def test_an_agent_that_goes_on_at_once_reaches_the_engine_that_answered_it(stack: Stack) -> None:
    """Though the access log has not told yet which one that was (A53); simulated engines keep no responses, as vLLM."""
    asked = {"model": MODEL, "max_output_tokens": 5, "input": "Go on."}
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="k", max_retries=0) as client:
        for stream in (False, True, False, True, False, True):
            made = await client.responses.create(**asked, stream=stream)  # type: ignore[call-overload]
            name = (
                [event.response.id async for event in made if event.type == "response.created"] if stream else [made.id]
            )
            with pytest.raises(openai.NotFoundError):
                await client.responses.create(**asked, previous_response_id=name[0])  # type: ignore[call-overload]
    outcomes = {outcome["decision_id"]: outcome for outcome in await stack.finished(12)}
    ordered = sorted(outcomes, key=lambda name: int(name.partition("-")[2], 16))
    made, continued = ([outcomes[name] for name in ordered[place::2]] for place in (0, 1))
    assert [outcome["reason"] for outcome in continued] == ["previous_response"] * 6
    assert [outcome["endpoint"] for outcome in continued] == [outcome["endpoint"] for outcome in made]


async def test_client_that_leaves_frees_its_place(stack: Stack) -> None:
    """A client that hangs up in mid-stream is no longer counted, and is not the engine's fault (F07)."""
    body = {"model": MODEL, "max_tokens": 50_000, "ignore_eos": True, "stream": True, "messages": TURNS}
    async with stack.client.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
        await answer.content.readany()
    (outcome,) = await stack.finished(1)
    assert outcome["ending"] == "client_gone"
    await until(lambda: all(load.in_flight == 0 for load in stack.service._core.ledger._loads.values()))


ERRORS = [
    ("/v1/chat/completions", {"model": "nope", "messages": TURNS}, 404),
    ("/v1/messages", {"model": "nope", "messages": TURNS}, 404),
]


@pytest.mark.parametrize(("path", "body", "status"), ERRORS, ids=["openai", "anthropic"])
async def test_errors_have_the_shape_of_the_api(stack: Stack, path: str, body: Any, status: int) -> None:
    """A refusal of kvpicker looks like an error of the API that was called."""
    code, headers, text = await stack.post(path, body)
    error = json.loads(text)
    assert (code, headers["content-type"]) == (status, "application/json")
    assert error["error"]["message"] == "The model 'nope' does not exist or is not served here."
    if path == "/v1/messages":
        assert (error["type"], error["error"]["type"]) == ("error", "not_found_error")
    else:
        assert (error["error"]["type"], error["error"]["code"]) == ("invalid_request_error", "model_not_found")
    (line,) = stack.logged("request_refused")
    assert line["reason"] == "model_not_found"
    async with stack.client.get(f"http://{stack.service.admin_address}/debug/decisions") as page:
        (refusal,) = (await page.json())["refusals"]
    assert refusal["request_id"] == line["request_id"] != ""


async def test_empty_fleet_is_told_apart_from_an_unknown_model(stack: Stack) -> None:
    """Without endpoints the client hears 503, when to try again, and why."""
    stack.list_engines([])
    await until(lambda: not stack.service._core.registry.snapshot.endpoints)
    code, headers, text = await stack.chat("hello")
    assert (code, headers["retry-after"], json.loads(text)["error"]["code"]) == (503, "1", "no_ready_endpoint")


async def test_no_secret_is_logged(stack: Stack) -> None:
    """Neither prompts nor credentials appear in the log, whatever the body looks like (H04)."""
    headers = {"authorization": "Bearer SECRET1", "x_api_key": "SECRET2", "cookie": "SECRET3"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "SECRET4"}]}
    await stack.post("/v1/chat/completions", body, **headers)
    await stack.post("/v1/chat/completions", b'{"model": "SECRET5', **headers)
    await stack.finished(2)
    assert not any("SECRET" in page for page in await everything_told(stack))


async def test_no_secret_is_logged_at_debug_level_either(tmp_path: Path) -> None:
    """Not in queries, sessions, tenants or broken bodies, whoever is answered, refused or passed on (H04)."""
    async with running_stack(
        tmp_path, pool="log: {level: debug}\ntenants: {header: x-tenant}", tenant_header="x-tenant"
    ) as stack:
        headers = {"authorization": "Bearer SECRET1", "x_session_id": "SECRET2", "x_tenant": "SECRET3"}
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "SECRET4"}], "user": "SECRET5"}
        await stack.post("/v1/chat/completions?api_key=SECRET6", chat, **headers)
        await stack.post("/v1/chat/completions", {**chat, "model": "nobody/serves-this"}, **headers)
        await stack.post("/v1/chat/completions", gzip.compress(b"SECRET7")[:-3], content_encoding="gzip", **headers)
        await stack.post("/no/such/SECRET8", chat, **headers)
        await stack.finished(2)
        assert not any("SECRET" in page for page in await everything_told(stack))


async def everything_told(stack: Stack) -> list[str]:
    """Return the log and all pages that show something of requests."""
    pages = [stack.output.getvalue().decode()]
    for page in ("/metrics", "/debug/decisions", "/debug/endpoints", "/debug/state", "/endpoints"):
        async with stack.client.get(f"http://{stack.service.admin_address}{page}") as answer:
            pages.append(await answer.text())
    return pages
