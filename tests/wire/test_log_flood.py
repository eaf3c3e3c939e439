"""All engines fail at once: the log stays readable."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections import Counter
from pathlib import Path

import pytest

from ext_proc.config import LogConfig
from tests.waiting import until
from tests.wire.stack import refuse, running_stack

pytestmark = pytest.mark.envoy

REQUESTS = 640
CLIENTS = 64


async def test_a_fleet_that_refuses_does_not_flood_the_log(tmp_path: Path) -> None:
    """Ten lines of a kind in any second, the rest is counted, without a trace, and each ejection has its line (I14).

    The case's 2,000 requests/s for 60 s are 640 requests as fast as they go.
    """
    async with running_stack(tmp_path) as stack:
        for engine in stack.engines:
            await refuse(stack, engine)

        async def client() -> list[int]:
            return [(await stack.chat("hello", max_tokens=1))[0] for _ in range(REQUESTS // CLIENTS)]

        answers = await asyncio.gather(*(client() for _ in range(CLIENTS)))
        statuses = Counter(status for each in answers for status in each)
        assert set(statuses) == {503}
        core = stack.service._core
        await until(lambda: len(core.ledger) == 0)
        assert await stack.violations() == {}
    lines = [json.loads(line) for line in stack.output.getvalue().splitlines()]
    kinds = Counter((line["event"], line.get("ending"), line.get("reason"), line.get("state")) for line in lines)
    ends = [line for line in lines if line["event"] in {"request_finished", "request_refused", "lines_suppressed"}]
    told = [line for line in ends if line["event"] != "lines_suppressed"]
    assert len(told) + sum(line.get("suppressed", 0) for line in ends) == sum(statuses.values()), kinds
    for event, ending, reason, _state in kinds:
        of_kind = [
            dt.datetime.fromisoformat(line["time"]).timestamp()
            for line in lines
            if (line["event"], line.get("ending"), line.get("reason")) == (event, ending, reason)
        ]
        if event in {"request_finished", "request_refused"}:
            # The limit's second is not the test's: a window's lines may stand at its end and at the next one's begin.
            most = LogConfig().max_per_second
            assert all(sum(at <= other < at + 1.0 for other in of_kind) <= 2 * most for at in of_kind)
            assert len(of_kind) <= most * (of_kind[-1] - of_kind[0] + 1.0) + most
    unwell = {line["endpoint"] for line in lines if line["event"] == "health_changed" and line["state"] != "warming"}
    assert unwell == {engine.address for engine in stack.engines}
    assert b"Traceback" not in stack.output.getvalue()
