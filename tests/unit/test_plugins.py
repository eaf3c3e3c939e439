"""Strategies found by entry point."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.core.load import Load
from ext_proc.core.strategies.least_wait import LeastWait, LeastWaitParameters
from ext_proc.plugins import load_strategy, strategy_names
from tests.unit.core.builders import context, endpoints, request

QUIET = """
from ext_proc.core.strategies import Ranking
class Quiet:
    def rank(self, request, candidates, context):
        return Ranking([load.in_flight for load in context.loads])
"""

PICKY = """
import msgspec
from ext_proc.core.strategies.nested import StrategyChoice
class Picky:
    class Parameters(msgspec.Struct):
        then: StrategyChoice
    def __init__(self, parameters, *, then):
        self.then = then
    def rank(self, request, candidates, context):
        return self.then.rank(request, candidates, context)
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution with one module and one strategy: `strangers` with `quiet`, unless others are named."""

    def do(
        source: str, target: str = "strangers_strategy:Quiet", name: str = "quiet", distribution: str = "strangers"
    ) -> None:
        information = tmp_path / f"{distribution}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[kvpicker.strategies]\n{name} = {target}\n")
        (tmp_path / "strangers_strategy.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "strangers_strategy", raising=False)

    return do


def test_our_own_come_through_the_same_door() -> None:
    """All built-in strategies are entry points and can be made without parameters."""
    names = strategy_names()
    assert {"least-request", "least-wait", "random", "round-robin", "chain", "weighted"} <= set(names)
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


def test_a_nested_strategy_is_made_through_the_same_door(install: Install) -> None:
    """A strategy among the parameters may be a stranger's, and a strange strategy may have one among its own."""
    install(QUIET + PICKY, "strangers_strategy:Picky")
    made = load_strategy("quiet", {"then": {"name": "chain", "parameters": {"then": {"name": "round-robin"}}}})
    ranking = made.rank(request(), endpoints(2), context([Load(2), Load(1)]))
    assert ranking.costs == [-2.0, -1.0]


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("least-wiat", {}, "p.name: no strategy is called `least-wiat`; did you mean least-wait?"),
        ("random", {"seed": 1}, "p.parameters: strategy random takes no parameters; remove them"),
        (
            "least-wait",
            {"rate": 1},
            (
                "p.parameters.rate: unknown field; known are attention_tokens, copy_price, learn, prefill_rate"
                " (parameters of strategy least-wait)"
            ),
        ),
        (
            "least-wait",
            {"prefill_rate": "fast"},
            (
                "p.parameters.prefill_rate: expected a number, got `fast`; write a plain number, the unit is in the"
                " name of the field (parameters of strategy least-wait)"
            ),
        ),
        (
            "least-wait",
            {"prefill_rate": 0},
            (
                "p.parameters: prefill_rate and attention_tokens must be finite numbers above 0"
                " (parameters of strategy least-wait)"
            ),
        ),
        (
            "chain",
            {"then": {"name": "least-rquest"}},
            "p.parameters.then.name: no strategy is called `least-rquest`; did you mean least-request?",
        ),
        (
            "session-affinity",
            {"then": {"name": "chain", "parameters": {"then": {"parameters": {"prefill_rate": "x"}}}}},
            (
                "p.parameters.then.parameters.then.parameters.prefill_rate: expected a number, got `x`; write a plain"
                " number, the unit is in the name of the field (parameters of strategy least-wait)"
            ),
        ),
        (
            "chain",
            {"filters": [{"max_in_flight": 8}, {"max_in_flight": 8, "min_score": 0.5}]},
            (
                "p.parameters.filters[1]: a filter has exactly one key of labels, max_in_flight, max_waiting,"
                " max_kv_usage, min_score (parameters of strategy chain)"
            ),
        ),
        (
            "chain",
            {"filters": [{"labels": {}}]},
            (
                "p.parameters.filters[0]: `labels` names none, and every endpoint would pass; write some, as in"
                " {gpu: h100} (parameters of strategy chain)"
            ),
        ),
        (
            "chain",
            {"filters": []},
            ("p.parameters.filters: must not be empty; fill it in, or leave it out (parameters of strategy chain)"),
        ),
        (
            "chain",
            {"filters": [{"max_kv_usage": 1}]},
            "p.parameters.filters[0].max_kv_usage: must be below 1.0, got `1` (parameters of strategy chain)",
        ),
        (
            "chain",
            {"filters": [{"min_score": 0}]},
            "p.parameters.filters[0].min_score: must be above 0.0, got `0` (parameters of strategy chain)",
        ),
        (
            "chain",
            {"filters": [{"max_inflight": 8}]},
            (
                "p.parameters.filters[0].max_inflight: unknown field, did you mean `max_in_flight`?"
                " (parameters of strategy chain)"
            ),
        ),
        (
            "weighted",
            {"scorers": {"kv-usage": 1}},
            "p.parameters.scorers.kv-usage: unknown field, did you mean `kv_usage`? (parameters of strategy weighted)",
        ),
        (
            "prefix-affinity",
            {"load_bound": 0.5},
            "p.parameters.load_bound: must be at least 1.0, got `0.5` (parameters of strategy prefix-affinity)",
        ),
    ],
    ids=[
        "misspelt",
        "no parameters",
        "unknown parameter",
        "wrong type",
        "wrong value",
        "label of none",
        "empty list",
        "share that all are within",
        "score that all have",
        "misspelt inside",
        "wrong type deep inside",
        "two conditions in one filter",
        "misspelt condition",
        "unknown scorer",
        "out of range",
    ],
)
def test_what_is_wrong_in_the_configuration_is_said(name: str, parameters: dict[str, object], message: str) -> None:
    """An error names the field, the strategy and the fault."""
    with pytest.raises(ConfigError) as caught:
        load_strategy(name, parameters, "p")
    assert str(caught.value) == message


def test_an_unknown_name_lists_what_is_installed() -> None:
    """Where no name is near, all are shown."""
    with pytest.raises(ConfigError, match=r"`xyz`; installed are chain, least-request, least-tokens, least-wait, pref"):
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


def test_our_own_names_are_reserved(install: Install) -> None:
    """A stranger's strategy of one of kvpicker's names is an error that names both."""
    install(QUIET, name="least-wait")
    with pytest.raises(
        ConfigError, match=r"name: `least-wait` is kvpicker's own name, yet installed by kvpicker"
    ) as told:
        load_strategy("least-wait", {})
    assert "strangers (strangers_strategy:Quiet)" in str(told.value)


def test_two_strangers_cannot_share_a_name(install: Install) -> None:
    """Neither wins; one distribution found twice, as an editable installation may be, is no conflict."""
    install(QUIET)
    install(QUIET, distribution="strangers_copy")
    assert load_strategy("quiet", {})
    install(QUIET + PICKY, "strangers_strategy:Picky", distribution="others")
    with pytest.raises(ConfigError, match=r"several strategies are called `quiet`, installed by others \(.*\) and str"):
        load_strategy("quiet", {})


@pytest.mark.parametrize(
    ("source", "complaint"),
    [("raise SystemExit(3)", "cannot be imported: SystemExit"), ("def Quiet(): raise SystemExit(3)", "cannot be made")],
    ids=["module", "constructor"],
)
def test_a_stranger_that_exits_is_an_error_like_any_other(install: Install, source: str, complaint: str) -> None:
    """It must not end the process that loads it."""
    install(source)
    with pytest.raises(ConfigError, match=complaint):
        load_strategy("quiet", {})


def test_an_interrupt_while_loading_stays_one(install: Install) -> None:
    """Ctrl-C ends the command."""
    install("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_strategy("quiet", {})
