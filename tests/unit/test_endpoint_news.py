"""What a whole kvpicker says of endpoints that are listed by name."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ext_proc.app import Service
from ext_proc.config import load
from ext_proc.core.following import follow
from ext_proc.core.model import Ending, Outcome, Usage
from ext_proc.core.pool import EndpointSpec
from ext_proc.endpoint_news import EndpointNews
from ext_proc.ops import families
from ext_proc.ops.metrics import Metrics
from ext_proc.sources import dns
from tests.unit.core.builders import CHAT, Fleet
from tests.waiting import until

CONFIG = """
listen: ["127.0.0.1:0"]
admin: {listen: "127.0.0.1:0"}
drain_s: 0
scrape: {enabled: false}
dns: {interval_s: 0.1}
pools:
  main:
    endpoints: ["engine-a.example:8000", "engine-a.example:8001"]
    models: [acme/chat-8b]
"""


USAGE = Usage(100, 10, 0)


async def test_a_start_without_name_service_is_told_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kvpicker runs, says what it lacks, and has its endpoints soon after somebody answers (I16, E22)."""
    answers: list[set[str] | OSError] = [socket.gaierror(socket.EAI_AGAIN, "nobody answers")]

    def ask(host: str) -> set[str]:
        if isinstance(answers[-1], OSError):
            raise answers[-1]
        return answers[-1]

    monkeypatch.setattr(dns, "_ask", ask)
    config = tmp_path / "kvpicker.yaml"
    config.write_text(CONFIG)
    output = io.BytesIO()

    def logged(event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in output.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event and line.get("source", "dns") == "dns"]

    async def metrics() -> str:
        async with aiohttp.ClientSession(f"http://{service.admin_address}") as client, client.get("/metrics") as page:
            return await page.text()

    async with Service(load(config), config, output) as service:
        assert service._core.registry.snapshot.endpoints == ()
        assert 'kvpicker_degraded{reason="dns"} 1.0' in await metrics()
        (failed,) = logged("source_failed")
        assert (failed["name"], failed["reason"]) == ("engine-a.example", "unanswered")
        answers.append({"10.0.0.31"})
        await until(lambda: len(service._core.registry.snapshot.endpoints) == 2, deadline=5)
        await until(lambda: bool(logged("source_recovered")))
        assert 'kvpicker_degraded{reason="dns"} 0.0' in await metrics()
        assert set(service._core.registry.snapshot.by_address) == {"10.0.0.31:8000", "10.0.0.31:8001"}
        assert logged("endpoints_changed")[-1]["added"] == ["10.0.0.31:8000", "10.0.0.31:8001"]


def test_endpoints_that_come_and_go_pile_up_no_counts() -> None:
    """Where nobody scrapes metrics nothing else would drop them."""
    fleet, metrics, said = Fleet(1), Metrics(frozenset), list[str]()
    news = EndpointNews(fleet.registry, metrics, lambda event, **_: said.append(event.name_))
    for number in range(1, 50):
        decision = fleet.pick()
        served = decision.chosen.address
        metrics.finished(decision, Outcome(decision_id=decision.id, ending=Ending.OK, served=served, usage=USAGE))
        change = fleet.registry.replace("p", [EndpointSpec(address=f"10.0.1.{number}:8000", models=CHAT)])
        fleet.lifecycle.follow(change)
        follow(change, ledger=fleet.ledger, index=fleet.index, memories=(fleet.health, fleet.rates))
        news.changed(change)
    assert set(said) == {"endpoints_changed"}
    assert not metrics.tallies[families.PROMPT_TOKENS].counts
    assert not metrics.prediction_errors
