"""The command `kvpicker doctor`."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ext_proc.app import Service
from ext_proc.cli import main
from ext_proc.config import load
from ext_proc.core.misfits import MENDS, Misfit
from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.waiting import until

Run = Callable[..., Any]


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in a thread, so that engines can answer; returns its status and what it printed."""

    async def run(config: str, *options: str) -> tuple[int, str, str]:
        path = tmp_path / "kvpicker.yaml"
        path.write_text(config)
        status = await asyncio.to_thread(main, ["doctor", str(path), *options])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


async def test_engines_are_told_apart_in_a_table(doctor: Run) -> None:
    """One line each, and what to switch on; advice alone is no failure."""
    lame = frozenset({"tokenize", "usage-details"})
    async with SimEngine(EngineOptions()) as one, SimEngine(EngineOptions(without=lame)) as other:
        config = f"pools: {{p: {{endpoints: ['{one.address}', '{other.address}']}}}}"
        status, out, _ = await doctor(config, "--probe")
    assert status == 0
    assert f"{one.address}" in out
    assert "vllm 0.32.0" in out
    assert "chat, text" in out
    assert "--enable-prompt-tokens-details" in out
    assert "does not say here whether it does" in out
    assert out.count("advice") == 2


async def test_all_is_well(doctor: Run) -> None:
    """Then it says so."""
    async with SimEngine(EngineOptions(kv_events=0)) as engine:
        assert engine.kv_ports is not None
        events, replay = engine.kv_ports
        config = SERVED.format(admin=0, engine=engine.address, events=events, replay=replay)
        status, out, _ = await doctor(config)
    assert status == 0
    assert "Nothing to mend" in out


async def test_a_problem_is_the_exit_status(doctor: Run) -> None:
    """A script can tell that an engine is not there."""
    async with SimEngine(EngineOptions()) as engine:
        config = f"pools: {{p: {{endpoints: ['{engine.address}', '127.0.0.1:9']}}}}"
        status, out, _ = await doctor(config, "--json")
    told = json.loads(out)
    assert status == 1
    assert [one["reachable"] for one in told["engines"]] == [True, False]
    assert [finding["where"] for finding in told["findings"]] == ["127.0.0.1:9", "pool p"]


async def test_endpoints_of_files_are_asked_too(doctor: Run, tmp_path: Path) -> None:
    """Where engines are listed does not matter."""
    async with SimEngine(EngineOptions()) as engine:
        (tmp_path / "chat.yaml").write_text(f"endpoints: ['{engine.address}']")
        status, out, _ = await doctor(f"pools: {{p: {{endpoints_file: {tmp_path}/chat.yaml}}}}")
    assert (status, engine.address in out) == (0, True)


async def test_what_cannot_be_used_is_said(doctor: Run, tmp_path: Path) -> None:
    """A missing file, no endpoint and a broken configuration are the user's to mend."""
    status, _, err = await doctor(f"pools: {{p: {{endpoints_file: {tmp_path}/none.yaml}}}}")
    assert (status, "pools.p.endpoints_file" in err) == (2, True)
    (tmp_path / "empty.yaml").write_text("endpoints: []")
    status, _, err = await doctor(f"pools: {{p: {{endpoints_file: {tmp_path}/empty.yaml}}}}")
    assert (status, "no endpoint is listed" in err) == (2, True)
    assert (await doctor("pools: 7"))[0] == 2


SERVED = """
listen: ["127.0.0.1:0"]
admin: {{listen: "127.0.0.1:{admin}"}}
drain_s: 0
pools:
  p:
    endpoints: [{{address: '{engine}', kv_events_port: {events}, kv_replay_port: {replay}}}]
    kv_events: {{port: 5557}}
    tokens: {{}}
"""


async def test_a_running_kvpicker_says_how_envoy_is_set(doctor: Run, tmp_path: Path) -> None:
    """A setting that is missing is a problem, with its mend."""
    async with SimEngine(EngineOptions()) as engine:
        pools = f"pools: {{p: {{endpoints: ['{engine.address}']}}}}\n"
        text = "admin: {listen: '127.0.0.1:%s'}\nlisten: ['127.0.0.1:0']\ndrain_s: 0\n" + pools
        served = tmp_path / "served.yaml"
        served.write_text(text % 0)
        async with Service(load(served), served, io.BytesIO()) as service:
            config = text % service.admin_address.rpartition(":")[2]
            status, out, _ = await doctor(config)
            assert (status, "Envoy" in out) == (0, False)
            service._fitting._watch.present = frozenset({Misfit.BODY_NOT_SENT})
            status, out, _ = await doctor(config, "--json")
        told = json.loads(out)["findings"][0]
        assert (status, told["level"], told["where"]) == (1, "problem", "Envoy")
        assert told["do"] == MENDS[Misfit.BODY_NOT_SENT].mend


async def test_a_running_kvpicker_says_how_it_hears_kv_events(doctor: Run, tmp_path: Path) -> None:
    """The engine's line shows it, and what is wrong with it is a finding."""
    async with SimEngine(EngineOptions(kv_events=0)) as engine:
        assert engine.kv_ports is not None
        events, replay = engine.kv_ports
        served = tmp_path / "served.yaml"
        served.write_text(SERVED.format(admin=0, engine=engine.address, events=events, replay=replay))
        async with Service(load(served), served, io.BytesIO()) as service:
            core = service._core
            await until(lambda: core.registry.snapshot.endpoints[0].slot in core.resident)
            port = service.admin_address.rpartition(":")[2]
            config = SERVED.format(admin=port, engine=engine.address, events=events, replay=replay)
            status, out, _ = await doctor(config)
            assert (status, "0 blocks heard" in out) == (0, True)
            for feed in core.resident._reporters[core.registry.snapshot.endpoints[0].slot].feeds:
                feed.mistrust()
            status, out, _ = await doctor(config, "--json")
        (finding,) = json.loads(out)["findings"]
        assert (status, finding["level"], "at work" in finding["what"]) == (1, "problem", True)
        status, out, _ = await doctor(config)
        assert (status, "heard" in out) == (0, False)
