"""The live table."""

from __future__ import annotations

import io
import json

import aiohttp
import pytest
from aiohttp import web

from ext_proc.local.engines import Engine
from ext_proc.local.live import Reading, read, table
from ext_proc.local.steps import console

ADDRESS = "127.0.0.1:1"
ENDPOINT = {"address": ADDRESS, "state": "ready", "lifecycle": "active", "in_flight": 3, "queue_ms": 41.7}
METRICS = f"""\
# TYPE kvpicker_requests counter
kvpicker_requests_total{{model="m",operation="chat",ending="ok"}} 8
kvpicker_requests_total{{model="m",operation="chat",ending="cut"}} 2
# TYPE kvpicker_prompt_tokens counter
kvpicker_prompt_tokens_total{{endpoint="{ADDRESS}"}} 1000
# TYPE kvpicker_cached_tokens_actual counter
kvpicker_cached_tokens_actual_total{{endpoint="{ADDRESS}"}} 750
"""


def drawn(before: Reading, after: Reading) -> str:
    """Return the table of a reading as text."""
    output = io.StringIO()
    console(output).print(table(after, before, [Engine(name="sim-1", address=ADDRESS, models=("m",))]))
    return output.getvalue()


def reading(at: float, finished: float = 0.0, **tokens: float) -> Reading:
    """Make a reading of one engine."""
    counts = {name: {ADDRESS: value} for name, value in tokens.items()}
    return Reading(at=at, endpoints=[ENDPOINT], finished=finished, **counts)


def test_rates_are_those_since_the_reading_before() -> None:
    """Ten requests in two seconds are five a second."""
    assert "5.0 requests/s, 30 finished" in drawn(reading(1.0, 20), reading(3.0, 30))


def test_an_engine_is_a_row() -> None:
    """Name, state, load, queue, tokens a second and the share of cached tokens."""
    text = drawn(reading(1.0), reading(2.0, prompt_tokens=1000.0, cached_tokens=750.0))
    cells = [cell.strip() for cell in next(line for line in text.splitlines() if "sim-1" in line).split("│")]
    assert cells[1:-1] == ["sim-1", "ready", "3", "42", "1,000", "75%"]


def test_an_engine_that_was_taken_out_is_shown_as_such() -> None:
    """Who drains one, as the introduction says, sees that it worked: it is well and gets nothing."""
    out = reading(1.0)
    out.endpoints[0] = ENDPOINT | {"lifecycle": "draining"}
    cells = [cell.strip() for cell in next(line for line in drawn(out, out).splitlines() if "sim-1" in line).split("│")]
    assert cells[1:3] == ["sim-1", "draining"]


def test_a_single_reading_has_no_rate() -> None:
    """The first table shows no spike."""
    only = reading(1.0, 500, prompt_tokens=10.0)
    assert "0.0 requests/s" in drawn(only, only)


def test_a_restarted_kvpicker_gives_no_negative_rate() -> None:
    """Its counters begin at nought again."""
    assert "0.0 requests/s" in drawn(reading(1.0, 500), reading(2.0, 3))


async def test_readings_come_from_the_admin_server() -> None:
    """Counters are summed over what the table does not show."""

    async def answer(request: web.BaseRequest) -> web.Response:
        pages = {"/metrics": METRICS, "/debug/endpoints": json.dumps({"endpoints": [ENDPOINT]})}
        return web.Response(text=pages[request.path], content_type="application/json")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as session:
            found = await read(session, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
    assert (found.finished, found.cached_tokens, found.endpoints) == (10, {ADDRESS: 750}, [ENDPOINT])


async def test_a_silent_admin_server_is_an_error_of_the_client() -> None:
    """The caller knows what to catch."""
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await read(session, "http://127.0.0.1:1")
