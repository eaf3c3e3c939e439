"""A third party's strategy, installed as a package of its own and used through the configuration."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ext_proc.assembly import build_core
from ext_proc.config import parse
from ext_proc.core.errors import ConfigError
from ext_proc.core.observer import NoObserver
from ext_proc.plugins import strategy_names
from tests.plugins.install import install
from tests.unit.core.builders import request
from tests.unit.wire.picking import Picking

PROJECT = Path(__file__).parents[1] / "plugins" / "kvpicker-same-zone"
CONFIG = """
pools:
  main:
    strategy: {name: same-zone, parameters: {zone: b, detour: 3}}
    models: [acme/chat-8b]
    endpoints:
      - {address: "10.0.0.11:8000", labels: {zone: a}}
      - {address: "10.0.0.12:8000", labels: {zone: b}}
"""
NESTED = CONFIG.replace(
    "{name: same-zone, parameters: {zone: b, detour: 3}}",
    "{name: chain, parameters: {then: {name: same-zone, parameters: {zone: b, detour: 3}}}}",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the example package is installed in."""
    target = tmp_path_factory.mktemp("plugins") / "site"
    install(PROJECT, target)
    return target


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, on this process's path."""
    monkeypatch.syspath_prepend(site)
    return site


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("config", "strategy"), [(CONFIG, "same-zone"), (NESTED, "chain")], ids=["alone", "in a chain"]
)
def test_it_decides_where_requests_go(config: str, strategy: str) -> None:
    """Named in the configuration, it ranks: near first, far when near is busier by three."""
    assert "same-zone" in strategy_names()
    picker = Picking(config).core.picker
    made = [picker.pick(request(), 0.0, random.Random(7)) for _ in range(6)]
    assert [decision.chosen.labels["zone"] for decision in made] == ["b", "b", "b", "a", "b", "a"]
    assert {decision.strategy for decision in made} == {strategy}


@pytest.mark.usefixtures("installed")
def test_its_parameters_are_checked_with_the_whole_path() -> None:
    """A mistake in them is found like one in our own."""
    wrong = NESTED.replace("detour: 3", "detuor: 3")
    with pytest.raises(ConfigError) as caught:
        build_core(parse(wrong), NoObserver())
    assert str(caught.value) == (
        "pools.main.strategy.parameters.then.parameters.detuor: unknown field, did you mean `detour`?"
        " (parameters of strategy same-zone)"
    )


def test_the_command_finds_it_too(site: Path, tmp_path: Path) -> None:
    """`kvpicker check` accepts it where it is installed, and says what is missing where it is not."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text(CONFIG)
    command = [sys.executable, "-m", "ext_proc.cli", "check", str(path)]
    with_it = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(site)}, capture_output=True, check=False)
    assert with_it.returncode == 0, with_it.stderr
    without = subprocess.run(command, capture_output=True, text=True, check=False)
    assert without.returncode == 2
    assert "pools.main.strategy.name: no strategy is called `same-zone`" in without.stderr
