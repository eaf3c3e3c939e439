"""Each profile through the Envoy that is found and through the oldest: requests, answers, errors, failures."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ext_proc.bootstrap.options import PROFILES
from ext_proc.bootstrap.versions import OLDEST, gaps
from ext_proc.core.names import DESTINATION
from tests.envoys.builds import binary_of, found_version, path_with
from tests.waiting import until
from tests.wire.duplex.raw import Ask, mirrors
from tests.wire.stack import MODEL, Stack, received, running_stack

pytestmark = pytest.mark.envoy
TURNS = [{"role": "user", "content": "List three rivers. " * 60}]
CHAT = "/v1/chat/completions"
NOWHERE = "127.0.0.1:9"
SPOOFED = {
    "x_gateway_destination_endpoint": NOWHERE,
    "x_gateway_destination_endpoint_subset": NOWHERE,
    "x_gateway_destination_endpoint_served": NOWHERE,
    "x_data_parallel_rank": "7",
    "x_envoy_upstream_service_time": "1",
    "x_envoy_retry_on": "5xx",
    "x_envoy_upstream_rq_timeout_ms": "1",
    "x_kvpicker_anything": "x",
}


@pytest.fixture(params=["found", pytest.param("oldest", marks=pytest.mark.oldest_envoy)])
def envoy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put an Envoy first on the path; returns the version that is rendered for it."""
    if request.param == "oldest":
        if not binary_of(OLDEST).exists():
            pytest.skip("`make oldest-envoy` installs it")
        monkeypatch.setenv("PATH", path_with(binary_of(OLDEST)))
    return found_version()


@asynccontextmanager
async def running(folder: Path, profile: str, **options: Any) -> AsyncIterator[Stack]:
    """Run a stack of a profile; afterwards Envoy must have found no fault with us."""
    async with running_stack(folder, profile=profile, **options) as stack:
        yield stack
        assert await stack.violations() == {}


def sent(entry: dict[str, Any]) -> dict[str, str]:
    """Return the headers that an engine got."""
    return {name.lower(): value for name, value in entry["headers"]}


def first_named(entry: dict[str, Any]) -> str:
    """Return the endpoint that was picked; the others that are named are for another attempt."""
    return sent(entry)[DESTINATION].split(",")[0]


@pytest.mark.parametrize("profile", PROFILES)
async def test_requests_and_answers_pass(tmp_path: Path, envoy: str, profile: str) -> None:
    """The engine that was picked gets the client's bytes, the client the engine's, kvpicker the counts of tokens."""
    async with running(tmp_path, profile) as stack:
        await answers_are_counted(stack)
        await bodies_are_left_alone(stack, keeps_length=profile == "buffered" or not gaps(envoy))
        await client_cannot_choose(stack)
        if profile == "duplex":  # until then it is not known that a log will tell of what broke off
            await until(lambda: stack.service._core.feedback.streams.has_log(time.monotonic()))
        await errors_have_the_shape_of_the_api(stack)
        await faults_are_told_apart(stack)


async def answers_are_counted(stack: Stack) -> None:
    """A second request goes where the first one's prefix is; a stream is counted like a whole answer."""
    for number, streams in enumerate((False, True, False)):
        body = {"model": MODEL, "max_tokens": 5, "messages": TURNS, "stream": streams}
        if streams:
            body["stream_options"] = {"include_usage": True}
        status, headers, text = await stack.post(CHAT, body)
        assert (status, text.endswith(b"data: [DONE]\n\n")) == (200, streams)
        assert not [name for name in headers if name.startswith("x-envoy-")]
        await stack.finished(number + 1)
    lines = await stack.finished(3)
    assert [line["ending"] for line in lines] == ["ok"] * 3
    assert all(line["prompt_tokens"] > 250 and line["completion_tokens"] == 5 for line in lines)
    assert all(line["cached_tokens"] > 200 for line in lines[1:])
    assert len({line["endpoint"] for line in lines}) == 1
    engines = {(entry["engine"], first_named(entry)) for entry in await by_engine(stack, CHAT)}
    assert engines == {(lines[0]["endpoint"], lines[0]["endpoint"])}


async def by_engine(stack: Stack, path: str) -> list[dict[str, Any]]:
    """Return what engines got, with their addresses."""
    return [
        {**entry, "engine": engine.address}
        for engine in stack.engines
        for entry in engine.log.find()
        if entry["path"].startswith(path)
    ]


async def bodies_are_left_alone(stack: Stack, *, keeps_length: bool) -> None:
    """Whatever it is: tiny, large, odd, or none."""
    for number, body in enumerate((b"", b"{", b"\xef\xbb\xbf{}\r\n", b"[" + b"1, " * 500_000 + b"1]")):
        path = f"/odd/{number}"
        await stack.post(path, body)
        (entry,) = await received(stack, path)
        assert (entry["body_length"], entry["body_sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
        assert not body or sent(entry).get("content-length") == (str(len(body)) if keeps_length else None)
    async with stack.client.get(f"{stack.url}/v1/models") as answer:
        assert [model["id"] for model in (await answer.json())["data"]] == [MODEL]


async def client_cannot_choose(stack: Stack) -> None:
    """What a client says of endpoints, retries or ranks reaches no engine, and decides nothing."""
    for path in (CHAT, "/no/such/path", "/tokenize"):
        status, _, _ = await stack.post(path, {"model": MODEL, "messages": TURNS, "prompt": "x"}, **SPOOFED)
        assert status != 503
    entries = [entry for path in (CHAT, "/no/such/path", "/tokenize") for entry in await by_engine(stack, path)]
    for entry in entries:
        headers = sent(entry)
        assert headers.get(DESTINATION, entry["engine"]).split(",")[0] == entry["engine"]
        assert not {name.replace("_", "-") for name in SPOOFED} & headers.keys() - {DESTINATION}


async def errors_have_the_shape_of_the_api(stack: Stack) -> None:
    """Those of an engine as it made them, kvpicker's own, and Envoy's own."""
    status, _, text = await stack.post(CHAT, {"model": MODEL, "messages": TURNS}, x_sim_fault="error_500")
    assert (status, "error" in json.loads(text)) == (500, True)
    for path, kind in ((CHAT, "invalid_request_error"), ("/v1/messages", "not_found_error")):
        status, headers, text = await stack.post(path, {"model": "nope", "messages": TURNS})
        assert (status, headers["content-type"]) == (404, "application/json")
        assert json.loads(text)["error"]["type"] == kind
    body = {"model": MODEL, "messages": TURNS}
    status, headers, text = await stack.post(CHAT, body, x_sim_fault="reset_before_headers")
    assert (status, headers["content-type"]) == (503, "application/json")
    assert json.loads(text)["error"]["code"] == "engine_unreachable"


async def faults_are_told_apart(stack: Stack) -> None:
    """An engine that fails in the middle is to blame, and the client hears of it; what was before is settled."""
    before = len(await stack.finished(1))
    request = {"model": MODEL, "max_tokens": 30, "stream": True, "messages": TURNS}
    try:
        status, _, text = await stack.post(CHAT, request, x_sim_fault="fin_mid_stream")
    except aiohttp.ClientPayloadError:
        status, text = 502, b""
    # In full duplex the head may still be with kvpicker: then the client gets an error, and never half an answer.
    assert (status, b"data: " in text) == (502, False)
    await until(lambda: {"reset", "cut"} <= {line["ending"] for line in stack.logged("request_finished")})
    assert len(stack.logged("request_finished")) > before


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_body_over_the_limit(tmp_path: Path, envoy: str, profile: str) -> None:
    """Is refused where it must be held whole, and goes on everywhere else."""
    body = json.dumps({"model": MODEL, "max_tokens": 1, "messages": TURNS, "pad": "x" * 600_000}).encode()
    async with running(tmp_path, profile, body_limit=65_536) as stack:
        status, headers, text = await stack.post(CHAT, body)
        assert (status, headers["content-type"]) == (413 if profile == "buffered" else 200, "application/json")
        if profile == "buffered":
            assert json.loads(text)["error"]["code"] == "request_too_large"
            return
        (entry,) = await received(stack, CHAT)
        assert entry["body_sha256"] == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("mode", ["open", "closed"])
@pytest.mark.parametrize("profile", ["buffered", "duplex"])
async def test_without_a_picker(tmp_path: Path, envoy: str, profile: str, mode: str) -> None:
    """Requests with bodies are let through, or refused in the API's shape; in duplex so once Envoy knows of it."""
    async with running(tmp_path, profile, failure_mode=mode) as stack:
        assert (await stack.chat("with a picker"))[0] == 200
        await stack.service._grpc.stop(0.0)
        expected = 200 if mode == "open" else 503

        async def is_settled() -> bool:
            answers = [await stack.chat(f"without, {number}") for number in range(5)]
            assert {status for status, _, _ in answers} <= {200, 503}
            return {status for status, _, _ in answers} == {expected}

        await until(is_settled)
        status, headers, text = await stack.chat("without a picker")
        assert status == expected
        if mode == "closed":
            assert json.loads(text)["error"]["code"] == "picker_unavailable"
            assert headers["retry-after"] == "1"


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_burst_goes_where_it_was_sent(tmp_path: Path, envoy: str, profile: str) -> None:
    """Forty streams at once: each has its own answer, whole, from the engine that was picked."""

    async def one(stack: Stack, number: int) -> None:
        status, _, text = await stack.chat(f"unique {number} " * 40, stream=True)
        assert (status, text.endswith(b"data: [DONE]\n\n")) == (200, True)

    async with running(tmp_path, profile) as stack:
        await asyncio.gather(*(one(stack, number) for number in range(40)))
        assert {line["ending"] for line in await stack.finished(40)} == {"ok"}
        entries = await by_engine(stack, CHAT)
        assert all(first_named(entry) == entry["engine"] for entry in entries)
        assert len(entries) == 40


@pytest.mark.parametrize("profile", PROFILES)
async def test_an_upgrade_passes(tmp_path: Path, envoy: str, profile: str) -> None:
    """Both sides talk from then on, whatever else the profile shows."""
    async with mirrors(1) as engines, running(tmp_path, profile, engines=0, addresses=[engines[0].address]) as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.url.rpartition(":")[2]))
        lines = ("connection: upgrade", "upgrade: websocket")
        writer.write(Ask("1", method="GET", path=f"/v1/responses?model={MODEL}", headers=lines).wire()[0])
        assert b" 101 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.readexactly(5), 10) == b"hello"
        writer.close()


OBEYING = """
tenants: {header: x-llm-d-inference-fairness-id, priority_header: x-llm-d-inference-objective, priorities: {urgent: 10}}
gateway: {model_rewrite: true, targets: true}
"""
SAID = {
    "x_gateway_inference_objective": "urgent",
    "x_gateway_inference_fairness_id": "team",
    "x_llm_d_model_name_rewrite": MODEL,
    "x_llm_d_slo_ttft_ms": "250",
}


@pytest.mark.parametrize("profile", PROFILES)
async def test_what_a_gateway_says_of_a_request_is_obeyed(tmp_path: Path, envoy: str, profile: str) -> None:
    """Objective, tenant, model and target, by old names and new, where Envoy is told to pass them on."""
    pool = f"    models: [{MODEL}]\n    caps: {{requests: 1}}\n"
    options = {"engines": 1, "speed": 1.0, "log_flush": 0.01, "log_buffer": 1}
    async with running(tmp_path, profile, pool=pool, top=OBEYING, gateway_headers=True, **options) as stack:
        body = {"model": MODEL, "max_tokens": 60, "ignore_eos": True, "messages": TURNS}
        asked = [asyncio.create_task(stack.post(CHAT, body))]
        await until(lambda: len(stack.service._core.ledger) == 1)
        for number, headers in enumerate(({}, SAID), start=1):
            named = body | {"model": "alias", "max_tokens": 4} if headers else body
            asked.append(asyncio.create_task(stack.post(CHAT, named, **headers)))
            await until(lambda count=number: len(stack.service._core.admission) == count)  # type: ignore[misc]
        assert [row.highest for row in stack.service._core.admission._rows()] == [10]
        answers = await asyncio.gather(*asked)
        assert [status for status, _, _ in answers] == [200] * 3
        model_in_answers = "alias" if profile == "duplex" else MODEL  # elsewhere answers do not pass kvpicker
        assert json.loads(answers[2][2])["model"] == model_in_answers
        _, _, events = await stack.post(CHAT, body | {"model": "alias", "max_tokens": 4, "stream": True}, **SAID)
        data = [json.loads(line[6:]) for line in events.splitlines() if line.startswith(b"data: {")]
        assert {each["model"] for each in data} == {model_in_answers}
        entries = sorted(await received(stack, CHAT), key=lambda entry: entry["received_at"])
        assert sent(entries[1])["x-gateway-inference-objective"] == "urgent"
        assert "content-length" not in sent(entries[1]), "the body has another length now"
        assert [each.get("ttft_target_ms") for each in await stack.decisions()].count(250.0) == 2


@pytest.mark.parametrize("profile", PROFILES)
async def test_what_a_client_says_of_a_request_is_not_heard(tmp_path: Path, envoy: str, profile: str) -> None:
    """Unless Envoy is told otherwise, whatever kvpicker would obey: the model is the body's, and nobody serves it."""
    pool = f"    models: [{MODEL}]\n"
    async with running(tmp_path, profile, pool=pool, top=OBEYING, engines=1) as stack:
        status, _, _ = await stack.post(CHAT, {"model": "alias", "messages": TURNS}, **SAID)
        assert status == 404
        status, _, _ = await stack.post(CHAT, {"model": MODEL, "max_tokens": 1, "messages": TURNS}, **SAID)
        assert status == 200
        assert [each for each in await stack.decisions() if "ttft_target_ms" in each] == []
