"""What the doctor says of what it found."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.config import KvEventsConfig, PoolConfig
from ext_proc.config.overload import QueueConfig
from ext_proc.config.settings import TokensConfig
from ext_proc.core.sleepers import SleepLevel
from ext_proc.doctor.advice import findings
from ext_proc.doctor.examination import Examination
from ext_proc.doctor.finding import Finding, Level
from ext_proc.doctor.pages import KvEvents

TOKENS, HEARD = TokensConfig(), KvEventsConfig(port=5557)
EVENTS = KvEvents(True, "tcp://*:5557", replay=True)


def well(address: str = "10.0.0.1:1", **changes: Any) -> Examination:
    """Make an engine that lacks nothing."""
    fields: dict[str, Any] = {
        "endpoint": address,
        "pool": "p",
        "reachable": True,
        "engine": "vllm",
        "models": ("m",),
        "block_tokens": 16,
        "prefix_caching": True,
        "kv_events": EVENTS,
        "tokenizes_text": True,
        "tokenizes_chat": True,
        "reports_cached": True,
    }
    return Examination(**(fields | changes))


def say(
    *examined: Examination, tokens: TokensConfig | None = TOKENS, kv_events: KvEventsConfig | None = HEARD, **pool: Any
) -> list[Finding]:
    """Say what is to be known of one pool."""
    return findings(examined, {"p": PoolConfig(tokens=tokens, kv_events=kv_events, **pool)})


def test_nothing_is_said_where_nothing_is_wrong() -> None:
    """An engine with everything, in a pool that uses it."""
    assert say(well(), well("10.0.0.2:1")) == []


@pytest.mark.parametrize(
    ("changes", "level", "what", "do"),
    [
        ({"reachable": False, "models_problem": "timeout"}, "problem", "nothing answers here", "start it"),
        ({"models": (), "models_problem": "http_404"}, "problem", "/v1/models", "`models`"),
        ({"models": (), "models_problem": "http_401"}, "problem", "API key", "`api_key_env`"),
        ({"prefix_caching": False}, "problem", "keeps no prefixes", "--enable-prefix-caching"),
        ({"tokenizes_chat": False}, "problem", "no conversation", "source: local"),
        ({"tokenizes_chat": False, "tokenizes_text": False}, "problem", "does not answer", "source: local"),
        ({"deaf": ("tcp://10.0.0.1:5557",)}, "problem", "tcp://10.0.0.1:5557", "`kv_events`"),
        ({"same_tokens": False}, "problem", "other tokens", "source: engine"),
        ({"kv_events": KvEvents(False)}, "advice", "no KV events", "--kv-events-config"),
        ({"kv_events": KvEvents(True)}, "advice", "missed KV events", "replay"),
        ({"metrics_problem": "http_401"}, "advice", "metrics", "token_env"),
        ({"missing": ("kv_usage",)}, "advice", "lack kv_usage", "update"),
        ({"reports_cached": False}, "advice", "cached", "--enable-prompt-tokens-details"),
        ({"reports_cached": None, "probe_problem": "no answer"}, "advice", "completion failed", ""),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_each_lack_has_its_advice(changes: dict[str, Any], level: str, what: str, do: str) -> None:
    """What is wrong, and the flag of the very engine that mends it."""
    (found,) = say(well(**changes), well("10.0.0.2:1"))
    assert found.level == level
    assert what in found.what
    assert do in found.do
    assert found.where == "10.0.0.1:1"


def test_the_flags_are_those_of_the_engine() -> None:
    """SGLang calls the same things otherwise."""
    lacks = {
        "prefix_caching": False,
        "kv_events": KvEvents(False),
        "metrics_problem": "http_404",
        "reports_cached": False,
    }
    told = " ".join(finding.do for finding in say(well(engine="sglang", **lacks)))
    flags = ("--disable-radix-cache", "--kv-events-config", "--enable-metrics", "--enable-cache-report")
    assert all(flag in told for flag in flags)


def test_what_is_configured_or_has_no_metrics_by_nature_is_no_lack() -> None:
    """Declared models need no listing, and Ollama no metrics."""
    assert say(well(models=(), models_problem="http_404"), models=("m",)) == []
    assert say(well(engine="ollama", metrics_problem="none")) == []


def test_blocks_of_different_size_are_a_problem_where_tokens_are_used() -> None:
    """Prompts are cut by one size, and engines with another one go by text."""
    both = well(), well("10.0.0.2:1", block_tokens=32)
    (found,) = say(*both)
    assert (found.level, found.where) == (Level.PROBLEM, "pool p")
    assert "16 tokens at 1, 32 tokens at 1" in found.what
    assert {finding.level for finding in say(*both, tokens=None)} == {Level.ADVICE}


def test_events_without_tokens_are_of_no_use() -> None:
    """Which tokenizer to use depends on whether the engines have one to offer."""
    (found,) = say(well(), tokens=None)
    assert found.do == "add `tokens: {}` to the pool"
    (found,) = say(well(tokenizes_chat=False), tokens=None)
    assert "source: local" in found.do


def test_events_that_nobody_hears_are_of_no_use() -> None:
    """What an engine publishes must be listened to, and read with tokens."""
    told = [finding.do for finding in say(well(), tokens=None, kv_events=None)]
    assert any("kv_events" in do for do in told)
    assert any("tokens" in do for do in told)


def test_events_of_an_engine_that_cannot_be_asked_are_advised() -> None:
    """Older ones do not say whether they publish; what to switch on is told all the same, once for the pool."""
    silent = {"kv_events": None}
    (found,) = say(well(**silent), well("10.0.0.2:1", **silent), tokens=None, kv_events=None)
    assert (found.level, found.where) == (Level.ADVICE, "pool p")
    assert "vllm can publish them" in found.what
    assert all(part in found.do for part in ("--kv-events-config", "`kv_events:", "`tokens: {}`"))
    assert say(well(engine="llama-cpp", **silent), tokens=None, kv_events=None) == []


def test_tokens_without_events_are_of_no_use() -> None:
    """Whether nobody listens or no engine publishes; one that does not say is believed."""
    (found,) = say(well(kv_events=None), kv_events=None)
    assert (found.level, "without `kv_events`" in found.what) == (Level.PROBLEM, True)
    found, advice = say(well(kv_events=KvEvents(False)))
    assert (found.level, "no engine publishes" in found.what) == (Level.PROBLEM, True)
    assert (advice.level, advice.where) == (Level.ADVICE, "10.0.0.1:1")
    assert say(well(kv_events=None)) == []


def test_different_engines_in_one_pool_are_noticed() -> None:
    """Their metrics and their speed differ."""
    (found,) = say(well(), well("10.0.0.2:1", engine="sglang"))
    assert "sglang, vllm" in found.what


@pytest.mark.parametrize(
    ("level", "wake_s", "do"),
    [
        (SleepLevel.UNKNOWN, 0.0, "POST http://10.0.0.1:1/wake_up"),
        (SleepLevel.WEIGHTS_OFFLOADED, 30.0, "nothing"),
        (SleepLevel.DISCARD_ALL, 30.0, "load its weights"),
    ],
)
def test_e17_a_sleeper_is_told_of(level: SleepLevel, wake_s: float, do: str) -> None:
    """It is no fault, but somebody may wonder why it gets no requests."""
    (found,) = say(well(asleep=True, sleep_level=level), queue=QueueConfig(wake_s=wake_s))
    assert found.level is Level.ADVICE
    assert "it sleeps" in found.what
    assert do in found.do
    assert say(well(asleep=False)) == []
