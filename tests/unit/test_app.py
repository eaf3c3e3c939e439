"""A whole kvpicker process without Envoy: its pages, its reload and its end."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest

from ext_proc.app import Service
from ext_proc.config import load
from ext_proc.core.errors import ConfigError
from ext_proc.core.model import Ending
from ext_proc.core.names import EXT_PROC_SERVICE
from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.unit.sources.publishing import Publisher
from tests.unit.wire.picking import body_message, headers_message
from tests.waiting import until

CONFIG = """
listen: ["127.0.0.1:0"]
admin: {{listen: "127.0.0.1:0"}}
drain_s: 0
pools:
  main:
    strategy: {{name: {strategy}}}
    endpoints: ["127.0.0.1:1", "127.0.0.1:2"]
    models: [acme/chat-8b]
"""


class Running:
    """A service with its log and its configuration file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.output = io.BytesIO()
        self.write(CONFIG.format(strategy="least-wait"))
        self.service = Service(load(path), path, self.output)

    def write(self, text: str) -> None:
        """Replace the configuration file."""
        self.path.write_text(text)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of an event."""
        lines = [json.loads(line) for line in self.output.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    async def page(self, path: str) -> Any:
        """Return a page of the admin server."""
        url = f"http://{self.service.admin_address}{path}"
        async with aiohttp.ClientSession() as client, client.get(url) as answer:
            return await (answer.json() if "debug" in path else answer.text())

    async def ask(self) -> None:
        """Have one request decided."""
        async with grpc.aio.insecure_channel(self.service.grpc_addresses[0]) as channel:
            call = channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")()
            await call.write(headers_message())
            await call.write(body_message())
            await call.done_writing()
            assert len([answer async for answer in call]) == 2


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    """Run a service."""
    made = Running(tmp_path / "kvpicker.yaml")
    async with made.service:
        yield made


async def test_decisions_are_explained(running: Running) -> None:
    """A decision can be read back with each candidate's terms."""
    await running.ask()
    (decision,) = (await running.page("/debug/decisions"))["decisions"]
    assert len(decision["candidates"]) == 2
    assert decision["strategy"] == "least-wait"


async def test_endpoints_and_metrics_show_the_request_in_flight(running: Running) -> None:
    """What is in flight is seen on both pages."""
    await running.ask()
    endpoints = (await running.page("/debug/endpoints"))["endpoints"]
    assert sum(endpoint["in_flight"] for endpoint in endpoints) == 1
    assert [endpoint["reputation"] for endpoint in endpoints] == [1.0, 1.0]
    metrics = await running.page("/metrics")
    assert "kvpicker_leases 1.0" in metrics
    assert 'kvpicker_degraded{reason="access_log"} 0.0' in metrics


async def test_a_bad_name_is_shown(running: Running) -> None:
    """An endpoint that fails again and again stands out on the page, until it has answered well for a while."""
    core = running.service._core
    good, bad = core.registry.snapshot.endpoints
    for endpoint, ending in ((good, Ending.OK), (bad, Ending.SERVER_ERROR)):
        core.picker.knowledge.reputations.note(endpoint, ending, time.monotonic())
    endpoints = (await running.page("/debug/endpoints"))["endpoints"]
    assert [endpoint["reputation"] for endpoint in endpoints] == pytest.approx([1.0, 0.9], abs=0.01)


async def test_reload_swaps_the_strategy_and_keeps_the_last_good(running: Running) -> None:
    """A broken edit changes nothing and is logged; a good one takes effect without a restart (I01)."""
    running.write("pools: {")
    await until(lambda: bool(running.logged("config_rejected")))
    await running.ask()
    running.write(CONFIG.format(strategy="round-robin"))
    await until(lambda: bool(running.logged("config_applied")))
    await running.ask()
    decisions = (await running.page("/debug/decisions"))["decisions"]
    assert {decision["strategy"] for decision in decisions} == {"least-wait", "round-robin"}


async def test_reload_with_an_unknown_strategy_is_refused_as_a_whole(running: Running) -> None:
    """A file that cannot take effect entirely takes no effect at all."""
    text = CONFIG.format(strategy="no-such-strategy").replace('"127.0.0.1:2"', '"127.0.0.1:3"')
    running.write(text)
    await until(lambda: bool(running.logged("config_rejected")))
    assert "kvpicker.yaml:7: pools.main.strategy.name: no strategy" in running.logged("config_rejected")[0]["error"]
    endpoints = (await running.page("/debug/endpoints"))["endpoints"]
    assert {endpoint["address"] for endpoint in endpoints} == {"127.0.0.1:1", "127.0.0.1:2"}


async def test_reload_gives_a_model_its_own_strategy_and_takes_it_back(running: Running) -> None:
    """What is said of a model takes effect without a restart, in both directions."""
    own = "models: {acme/chat-8b: {strategy: {name: chain, parameters: {filters: [{max_in_flight: 9}]}}}}\n"
    for text, strategy in ((own, "chain"), ("", "least-wait")):
        running.write(CONFIG.format(strategy="least-wait") + text)
        await until(lambda: running.service._config == load(running.path))
        await running.ask()
        decision = (await running.page("/debug/decisions"))["decisions"][0]
        assert decision["strategy"] == strategy
        assert ("max_in_flight: 2 of 2 match" in decision["filters"]) == (strategy == "chain")
    assert not any(line["needs_restart"] for line in running.logged("config_applied"))


async def test_sections_that_need_a_restart_are_named(running: Running) -> None:
    """An edit that cannot take effect now says so."""
    running.write(CONFIG.format(strategy="least-wait") + "leases: {timeout_s: 5}\n")
    await until(lambda: bool(running.logged("config_applied")))
    assert running.logged("config_applied")[0]["needs_restart"] == ["leases"]


async def test_silence_is_measured_while_something_is_open(running: Running) -> None:
    """An idle kvpicker misses nothing; with a request open for long, silence means that the log is cut."""
    service = running.service
    service._log_watch._heard_at -= 1000
    assert service._degraded()["access_log"] is False
    await running.ask()
    assert service._degraded()["access_log"] is False
    (lease,) = service._core.ledger._leases.values()
    lease.seen_at -= 1000
    assert service._degraded()["access_log"] is True
    await until(lambda: service._core.capacity.is_suspended)
    lease.held = True  # its answer passes here, so that no log needs to speak of it
    assert service._degraded()["access_log"] is False
    await until(lambda: not service._core.capacity.is_suspended)


async def test_a_source_that_is_given_up_no_longer_counts_as_broken(running: Running, tmp_path: Path) -> None:
    """Moving a pool from a broken file into the configuration mends it."""
    broken = tmp_path / "broken.yaml"
    broken.write_text("endpoints: [")
    inline = '    endpoints: ["127.0.0.1:1", "127.0.0.1:2"]'
    running.write(CONFIG.format(strategy="random").replace(inline, f"    endpoints_file: {broken}"))
    await until(lambda: running.service._degraded()["config"])
    running.write(CONFIG.format(strategy="random"))
    await until(lambda: not running.service._degraded()["config"])


async def test_an_engines_metrics_reach_the_pages_and_the_index(tmp_path: Path) -> None:
    """What an engine says is seen, its memory bounds the index, and its idle cache keeps its prefixes (C17)."""
    async with SimEngine(EngineOptions(name="e", kv_tokens=4096)) as engine:
        running = Running(tmp_path / "kvpicker.yaml")
        quick = "scrape: {interval_s: 0.1, idle_interval_s: 0.1}\n"
        running.write(
            quick + CONFIG.format(strategy="random").replace('"127.0.0.1:1", "127.0.0.1:2"', f'"{engine.address}"')
        )
        running.service = Service(load(running.path), running.path, running.output)
        async with running.service as service:

            async def shown() -> dict[str, Any]:
                (endpoint,) = (await running.page("/debug/endpoints"))["endpoints"]
                return dict(endpoint)

            async def is_read() -> bool:
                return (await shown())["metrics"]["running"] == 0.0

            await until(is_read)
            assert (await shown())["kv_tokens"] == 4096
            assert (await shown())["metrics"]["engine"] == "vllm"
            assert 'kvpicker_degraded{reason="metrics"} 0.0' in await running.page("/metrics")
            endpoint = service._core.registry.snapshot.endpoints[0]
            service._core.index.learn(endpoint.slot, [1, 2, 3])
            seen = service._core.signals.of(endpoint.slot, 0.0)
            await until(lambda: service._core.signals.of(endpoint.slot, 0.0) is not seen)
            assert (await shown())["index_blocks"] == 3
            running.write(CONFIG.format(strategy="random"))
            await until(lambda: bool(running.logged("config_applied")))
            assert service._core.signals.age(endpoint.slot, 0.0) is None
            running.write(CONFIG.format(strategy="random") + "scrape: {enabled: false}\n")
            await until(lambda: not service._scraper._watches)


async def test_what_an_engine_reports_reaches_the_index_and_the_pages(tmp_path: Path) -> None:
    """KV events are listened to from the start, shown, and given up with a reload."""
    async with Publisher() as publisher:
        await publisher.publish(["BlockStored", [1, 2], None, [7] * 32, 16])
        running = Running(tmp_path / "kvpicker.yaml")
        ports = f"kv_events: {{port: {publisher.port}, replay_port: {publisher.replay_port}}}"
        running.write(CONFIG.format(strategy="random").replace(', "127.0.0.1:2"', "") + f"    {ports}\n")
        running.service = Service(load(running.path), running.path, running.output)
        async with running.service as service:
            (endpoint,) = service._core.registry.snapshot.endpoints

            async def is_heard() -> bool:
                await publisher.publish("AllBlocksCleared", ["BlockStored", [3], None, [9] * 16, 16])
                return service._core.resident.blocks(endpoint.slot) == 1

            await until(is_heard)
            page = await running.page("/metrics")
            labels = f'{{endpoint="{endpoint.address}",pool="main"}}'
            assert f"kvpicker_endpoint_resident_blocks{labels} 1.0" in page
            assert f"kvpicker_kv_events_silent_seconds{labels}" in page
            assert 'kvpicker_kv_event_messages_total{result="replayed"}' in page
            assert 'kvpicker_degraded{reason="kv_events"} 0.0' in page
            running.write(CONFIG.format(strategy="random").replace(', "127.0.0.1:2"', ""))
            await until(lambda: endpoint.slot not in service._core.resident)
            assert "kvpicker_kv_events_silent_seconds{" not in await running.page("/metrics")


async def test_a_token_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its variable kvpicker does not start, and a reload that needs one is refused; the value is on no page."""
    running = Running(tmp_path / "kvpicker.yaml")
    text = CONFIG.format(strategy="random") + "scrape: {token_env: KVPICKER_TEST_TOKEN}\n"
    running.write(text)
    with pytest.raises(ConfigError, match=r"scrape\.token_env: the environment variable that it names is not set"):
        Service(load(running.path), running.path, running.output)
    monkeypatch.setenv("KVPICKER_TEST_TOKEN", "s3cret")
    async with Service(load(running.path), running.path, running.output) as running.service:
        assert "s3cret" not in json.dumps(await running.page("/debug/config"))
        monkeypatch.delenv("KVPICKER_TEST_TOKEN")
        running.write(text + "drain_s: 1\n")
        await until(lambda: bool(running.logged("config_rejected")))


async def test_ready_page_follows_the_service(running: Running) -> None:
    """The page says ready once everything runs."""
    assert await running.page("/readyz") == "ready\n"


@contextlib.contextmanager
def serving(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command, from when it listens until it has ended."""
    command = [sys.executable, "-m", "ext_proc.cli", "serve", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert any(b"server_started" in line for line in process.stdout)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["SIGTERM", "SIGINT", "SIGHUP"])
def test_signal_ends_the_process_with_status_0(tmp_path: Path, number: signal.Signals) -> None:
    """A service that is told to stop stops in good order (I07)."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text(CONFIG.format(strategy="least-wait"))
    with serving(path) as process:
        process.send_signal(number)
        rest, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert b"server_stopped" in rest


@pytest.mark.parametrize("taken", ["listen", "admin"])
async def test_a_second_one_by_mistake_leaves_envoys_file_alone(tmp_path: Path, taken: str) -> None:
    """It cannot listen and ends; what the first one told Envoy of its endpoints stands, who is drained among it."""
    path = tmp_path / "kvpicker.yaml"
    text = CONFIG.format(strategy="least-wait") + f"envoy: {{endpoints_file: {tmp_path}/eds.json}}\n"
    path.write_text(text)
    async with Service(load(path), path, io.BytesIO()) as first:
        first._draining.drain("127.0.0.1:1", 60.0)
        written = (tmp_path / "eds.json").read_bytes()
        assert b"DRAINING" in written
        place = {
            "listen": f'listen: ["{first.grpc_addresses[0]}"]',
            "admin": f'admin: {{listen: "{first.admin_address}"}}',
        }
        free = {"listen": 'listen: ["127.0.0.1:0"]', "admin": 'admin: {listen: "127.0.0.1:0"}'}
        path.write_text(text.replace(free[taken], place[taken]))
        with pytest.raises(ConfigError, match="cannot listen on"):
            async with Service(load(path), None, io.BytesIO()):
                pass
        assert (tmp_path / "eds.json").read_bytes() == written
