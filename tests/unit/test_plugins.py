"""Strategies found by entry point."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.core.ledger import Load
from ext_proc.core.strategies.least_wait import LeastWait, LeastWaitParameters
from ext_proc.plugins import load_strategy, strategy_names
from tests.unit.core.builders import context, endpoints, request

QUIET = """
from ext_proc.core.strategies import Ranking
class Quiet:
    def rank(self, request, candidates, context):
        return Ranking([load.in_flight for load in context.loads])
"""

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution `strangers` with one module and one strategy called `quiet`."""

    def do(source: str, target: str = "strangers_strategy:Quiet") -> None:
        information = tmp_path / "strangers-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[kvpicker.strategies]\nquiet = {target}\n")
        (tmp_path / "strangers_strategy.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "strangers_strategy", raising=False)

    return do


def test_our_own_come_through_the_same_door() -> None:
    """All built-in strategies are entry points and can be made without parameters."""
    names = strategy_names()
    assert {"least-request", "least-wait", "random", "round-robin"} <= set(names)
    assert all(callable(load_strategy(name, {}).rank) for name in names)


def test_a_strangers_strategy_is_found_and_works(install: Install) -> None:
    """An installed distribution with a class of one method adds a strategy."""
    install(QUIET, "strangers_strategy:Quiet")
    assert "quiet" in strategy_names()
    ranking = load_strategy("quiet", {}).rank(request(), endpoints(2), context([Load(2), Load(1)]))
    assert ranking.costs == [2, 1]


def test_parameters_reach_the_strategy() -> None:
    """Parameters are turned into the strategy's own struct."""
    made = load_strategy("least-wait", {"prefill_rate": 16_000})
    assert isinstance(made, LeastWait)
    assert made._parameters == LeastWaitParameters(prefill_rate=16_000.0)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("least-wiat", {}, "p.name: no strategy is called `least-wiat`; did you mean least-wait?"),
        ("random", {"seed": 1}, "p.parameters: strategy random takes no parameters; remove them"),
        (
            "least-wait",
            {"rate": 1},
            "p.parameters: Object contains unknown field `rate` (parameters of strategy least-wait)",
        ),
        (
            "least-wait",
            {"prefill_rate": "fast"},
            "p.parameters: Expected `float`, got `str` - at `$.prefill_rate` (parameters of strategy least-wait)",
        ),
        (
            "least-wait",
            {"prefill_rate": 0},
            "p.parameters: prefill_rate and attention_tokens must be above 0 (parameters of strategy least-wait)",
        ),
    ],
    ids=["misspelt", "no parameters", "unknown parameter", "wrong type", "wrong value"],
)
def test_what_is_wrong_in_the_configuration_is_said(name: str, parameters: dict[str, object], message: str) -> None:
    """An error names the field, the strategy and the fault."""
    with pytest.raises(ConfigError) as caught:
        load_strategy(name, parameters, "p")
    assert str(caught.value) == message


def test_an_unknown_name_lists_what_is_installed() -> None:
    """Where no name is near, all are shown."""
    with pytest.raises(ConfigError, match=r"`xyz`; installed are least-request, least-wait, random, round-robin"):
        load_strategy("xyz", {})


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (QUIET, "strangers_strategy:Loud", r"quiet \(strangers_strategy:Loud\) cannot be imported: .*'Loud'"),
        (QUIET, "no_such_module:Quiet", r"quiet \(no_such_module:Quiet\) cannot be imported: No module named"),
        ("1 / 0", "strangers_strategy:Quiet", r"cannot be imported: division by zero"),
        ("def Quiet(): raise OSError('no licence')", "strangers_strategy:Quiet", r"cannot be made: .*no licence"),
        ("class Quiet: pass", "strangers_strategy:Quiet", r"strategy quiet has no method `rank`"),
    ],
    ids=["no such class", "no such module", "fails at import", "fails when made", "no rank"],
)
def test_a_broken_plug_in_is_an_error_of_the_configuration(
    install: Install, source: str, target: str, message: str
) -> None:
    """Whatever a third party's code does, the operator gets one line that names the strategy."""
    install(source, target)
    with pytest.raises(ConfigError, match=message):
        load_strategy("quiet", {})
