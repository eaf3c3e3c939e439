"""The options of `kvpicker replay`, and what they mean."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.replay.command import add_arguments
from ext_proc.replay.options import Options, read_options


def options(*words: str) -> Options:
    """Read a command line."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_options(parser.parse_args(words))


def test_a_trace_alone_is_enough() -> None:
    """It is replayed at its own speed, on eight engines, by three strategies."""
    made = options("trace")
    assert (made.load, made.rate, made.seeds, len(made.engines)) == (1.0, None, (1,), 8)
    assert [each.name for each in made.contestants] == ["least-wait", "least-request", "round-robin"]


def test_a_workload_runs_below_full_load() -> None:
    """Full load is where even who knows everything cannot keep up."""
    assert options("--workload", "chat").load == 0.8


def test_engines_may_differ() -> None:
    """What they bear is counted in engines of the preset that loads are defined for."""
    made = options("t", "--engines", "2:h100-8b,3:l40s-8b")
    assert [engine.name for engine in made.engines] == ["h100-8b"] * 2 + ["l40s-8b"] * 3
    assert made.reference_engines == pytest.approx(2 + 3 * 27 / 110)


def test_memory_can_be_set() -> None:
    """For all engines; a workload with larger engines brings them unless it is."""
    assert options("t", "--kv-tokens", "1000").engines[0].kv_tokens == 1000
    assert options("t", "--workload", "convL").engines[0].kv_tokens == 4 * 450_000
    assert options("t", "--workload", "convL", "--kv-tokens", "1000").engines[0].kv_tokens == 1000


def test_first_tokens_are_heard_of_unless_not() -> None:
    """The option shows what hearing of them is worth."""
    assert options("t").conditions.first_token
    assert not options("t", "--no-first-token").conditions.first_token


def test_several_traces_give_lengths() -> None:
    """Only the workload that shares nothing can mix them."""
    assert options("a", "b", "--workload", "uniq").traces == (Path("a"), Path("b"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "TRACE: name a trace, or a workload with --workload"),
        (["a", "b"], "TRACE: several traces go with --workload uniq only"),
        (["--workload", "chat", "--format", "azure"], "--format: there is no trace to read in a format"),
        (["t", "--workload", "chat"], "TRACE: `chat` is made without a trace; leave out TRACE or --workload"),
        (["t", "--workload", "hot"], "TRACE: `hot` is made without a trace"),
        (["--workload", "chta"], "--workload: no workload is called `chta`; did you mean chat?"),
        (["--workload", "x"], "--workload: no workload is called `x`; there are chat, hot"),
        (["t", "--engines", "eight"], "--engines: `eight`: write N:preset"),
        (["t", "--engines", "0"], "--engines: `0`: write N:preset"),
        (["t", "--engines", "600,600"], "--engines: 1200 engines are too many"),
        (["t", "--engines", "2:h100"], "--engines: no preset is called `h100`; did you mean h100-8b?"),
        (["t", "--seeds", "one"], "--seeds: `one`: write whole numbers by comma"),
        (["t", "--seeds", "1,1"], "--seeds: a seed stands twice"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(words: list[str], message: str) -> None:
    """The message names the option."""
    with pytest.raises(ConfigError) as error:
        options(*words)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "words", [("--load", "0"), ("--rate", "inf"), ("--requests", "0"), ("--warm-up", "1"), ("--jobs", "x")]
)
def test_numbers_out_of_range_are_refused(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option."""
    with pytest.raises(SystemExit):
        options("t", *words)
    assert words[0] in capsys.readouterr().err
