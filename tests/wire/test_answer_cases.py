"""Answers of many engines through a real Envoy, each whole and in small pieces."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest

from tests.unit.core.answer_cases import AnswerCase, load
from tests.waiting import until
from tests.wire.raw_engine import RawEngine, Received, Reply, running
from tests.wire.stack import MODEL, Stack, running_stack

pytestmark = pytest.mark.envoy
CASES = {case.id: case for case in load()}
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "input": "hi", "text": "hi"}
SAMPLE = re.compile(r"^(kvpicker_\w*tokens\w*?)(?:\{.*\})? (\S+)$", re.MULTILINE)


def answer(request: Received) -> Reply:
    """Answer with the case that a header names, in pieces of as many bytes as another says."""
    case, size = CASES[request.header("x-case")], int(request.header("x-size"))
    body = case.data()
    return Reply(case.type, [body[start : start + size] for start in range(0, len(body), size)])


async def test_answers_pass_and_are_understood(tmp_path: Path) -> None:
    """Each reaches the client byte for byte; its tokens are counted, its end is told, and its place is free again."""
    async with (
        running(RawEngine([MODEL], answer)) as engine,
        running_stack(tmp_path, engines=0, addresses=[engine.address]) as stack,
    ):
        jobs = [(case, size) for case in CASES.values() for size in (100_000, 7)]
        for received, (case, _) in zip(await asyncio.gather(*(_ask(stack, *job) for job in jobs)), jobs, strict=True):
            assert received == case.data(), case.id
        outcomes = stack.service._ring._outcomes
        await until(lambda: len(outcomes) == len(jobs))
        cases = {got.header("x-request-id"): (got.header("x-case"), got.header("x-size")) for got in engine.received}
        wrong = []
        for outcome in outcomes.values():
            case = CASES[cases[outcome.request_id][0]]
            usage = outcome.usage.prompt_tokens, outcome.usage.completion_tokens, outcome.usage.cached_tokens
            if (usage, outcome.ending) != (case.usage, case.ending):
                wrong.append((cases[outcome.request_id], usage, outcome.ending))
        assert wrong == []
        await until(lambda: len(stack.service._core.ledger) == 0)
        assert await stack.violations() == {}
        await _expect_sane_metrics(stack)


async def _ask(stack: Stack, case: AnswerCase, size: int) -> bytes:
    headers = {"x-case": case.id, "x-size": str(size)}
    timeout = aiohttp.ClientTimeout(total=20)
    async with stack.client.post(stack.url + case.path, json=BODY, headers=headers, timeout=timeout) as received:
        return await received.read()


async def _expect_sane_metrics(stack: Stack) -> None:
    """No count of tokens is negative, not a number, or above what all the sane answers add up to (B02)."""
    async with stack.client.get(f"http://{stack.service.admin_address}/metrics") as page:
        samples = [(name, float(value)) for name, value in SAMPLE.findall(await page.text())]
    most = 2 * sum(sum(count or 0 for count in case.usage) for case in CASES.values())
    assert samples
    assert all(0 <= value <= most for name, value in samples if "ratio" not in name), samples


async def test_an_answer_full_of_braces_holds_envoy_up_no_longer_than_others(tmp_path: Path) -> None:
    """A client's tools, repeated by the engine, must not cost the square of their length."""
    tools, end = b'{"usage":{"x":"{{{"}},' * 3_200, b'{}],"usage":{"input_tokens":7}}'

    def repeat(_: Received) -> Reply:
        return Reply("application/json", [b'{"id":"resp_1","tools":[', *([tools] * 8), end])

    async with (
        running(RawEngine([MODEL], repeat)) as engine,
        running_stack(tmp_path, engines=0, addresses=[engine.address]) as stack,
    ):
        status, _, body = await asyncio.wait_for(stack.post("/v1/responses", BODY), 3.0)
        assert (status, body.endswith(end)) == (200, True)
        (line,) = await stack.finished(1)
        assert (line["ending"], line["prompt_tokens"]) == ("ok", 7)


@pytest.mark.parametrize(("status", "ending"), [(400, "client_error"), (501, "client_error"), (529, "overloaded")])
async def test_what_is_no_illness_keeps_an_engine_in_rotation(tmp_path: Path, status: int, ending: str) -> None:
    """Sixty refusals in a row do not keep good requests away, and reach their clients as they are (B17, B23)."""

    def refuse(request: Received) -> Reply:
        return Reply(status=status, pieces=[b'{"e":1}']) if request.header("x-bad") else Reply()

    async with (
        running(RawEngine([MODEL], refuse)) as engine,
        running(RawEngine([MODEL])) as other,
        running_stack(tmp_path, engines=0, addresses=[engine.address, other.address]) as stack,
    ):
        await until(lambda: len(stack.service._core.registry.snapshot.by_model[MODEL]) == 2)
        answers = await asyncio.gather(*(stack.post("/v1/messages", BODY, x_bad="1") for _ in range(120)))
        assert {(got, body) for got, _, body in answers if got != 200} == {(status, b'{"e":1}')}
        lines = [line for line in await stack.finished(120) if line["endpoint"] == engine.address]
        assert {line["ending"] for line in lines} == {ending}
        before = len(engine.received)
        good = await asyncio.gather(*(stack.post("/v1/messages", BODY) for _ in range(30)))
        assert {got for got, _, _ in good} == {200}
        assert len(engine.received) > before
        assert not any(line["state"] == "ejected" for line in stack.logged("health_changed"))
