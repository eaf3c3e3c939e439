"""Turns what engines answered into findings in plain words: what is wrong, what to switch on, what it would bring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ext_proc.config import PoolConfig
from ext_proc.core.sleepers import SleepLevel
from ext_proc.doctor.events_advice import of_listening, of_ranks
from ext_proc.doctor.examination import Examination
from ext_proc.doctor.finding import Finding, Level

_METRICS: Final[Mapping[str, str]] = MappingProxyType(
    {"sglang": "start it with --enable-metrics", "llama-cpp": "start it with --metrics"}
)
_EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "vllm": "start it with --kv-events-config"
        """ '{"enable_kv_cache_events": true, "publisher": "zmq", "replay_endpoint": "tcp://*:5558"}'""",
        "sglang": """start it with --kv-events-config '{"publisher": "zmq", "endpoint": "tcp://*:5557"}'""",
    }
)
_USAGE: Final[Mapping[str, str]] = MappingProxyType(
    {"vllm": "start it with --enable-prompt-tokens-details", "sglang": "start it with --enable-cache-report"}
)
_PREFIXES: Final[Mapping[str, str]] = MappingProxyType(
    {"vllm": "start it with --enable-prefix-caching", "sglang": "start it without --disable-radix-cache"}
)
_UNAUTHORIZED: Final = frozenset({"http_401", "http_403"})
_KNOWN_METRICS: Final = "its load, its speed and the size of its KV cache, which are guessed until then"
_KNOWN_EVENTS: Final = "which prefixes it holds is known, not guessed: most where memory is short and prompts are long"


def findings(examined: Sequence[Examination], pools: Mapping[str, PoolConfig]) -> list[Finding]:
    """Say what is to be known of engines that were examined; problems first."""
    found = [finding for one in examined for finding in _of_engine(one, pools[one.pool])]
    for name, pool in pools.items():
        found += _of_pool(name, pool, [one for one in examined if one.pool == name and one.reachable])
    return sorted(found, key=lambda finding: finding.level is not Level.PROBLEM)


def _of_engine(one: Examination, pool: PoolConfig) -> Iterator[Finding]:
    at = one.endpoint
    if not one.reachable:
        yield Finding(Level.PROBLEM, at, f"nothing answers here ({one.models_problem})", "start it, or take it out")
        return
    if one.models_problem in _UNAUTHORIZED:
        what = f"it wants another API key than it gets ({one.models_problem})"
        yield Finding(Level.PROBLEM, at, what, "set `api_key_env` of its pool")
    elif one.models_problem and not pool.models:
        what = f"/v1/models does not say what it serves ({one.models_problem})"
        yield Finding(Level.PROBLEM, at, what, "set `models` of its pool")
    yield from _of_sleep(one, pool)
    yield from _of_metrics(one)
    if one.prefix_caching is False:
        do = _PREFIXES.get(one.engine, "switch its prefix cache on")
        yield Finding(
            Level.PROBLEM, at, "it keeps no prefixes", do, "cached tokens at all; routing by prefix needs them"
        )
    if one.kv_events is not None and not one.kv_events.enabled:
        yield Finding(Level.ADVICE, at, "it publishes no KV events", _EVENTS.get(one.engine, ""), _KNOWN_EVENTS)
    elif one.kv_events is not None and not one.kv_events.replay:
        do = "give its events a replay endpoint"
        yield Finding(Level.ADVICE, at, "missed KV events cannot be asked for", do, "no blind spot after a hiccup")
    if one.deaf:
        what = f"nothing listens where its KV events are to be heard ({', '.join(one.deaf)})"
        yield Finding(Level.PROBLEM, at, what, "correct `kv_events` of the pool, or start the engine with these ports")
    if pool.tokens is not None and pool.tokens.source == "engine" and not one.tokenizes_chat:
        what = "/tokenize takes no conversation" if one.tokenizes_text else "/tokenize does not answer"
        yield Finding(
            Level.PROBLEM,
            at,
            f"{what}, and the pool's `tokens` ask it",
            "update it, or use `tokens: {source: local, …}`",
        )
    if one.same_tokens is False:
        what = "the tokenizer of the pool makes other tokens than the engine"
        do = "give it the files of the engine's model, or set `tokens: {source: engine}`"
        yield Finding(Level.PROBLEM, at, what, do, "hits that are there are seen")
    yield from of_ranks(one, pool.kv_events)
    yield from of_listening(one)
    yield from _of_usage(one)


def _of_sleep(one: Examination, pool: PoolConfig) -> Iterator[Finding]:
    if not one.asleep:
        return
    what = "it sleeps, and gets no requests until it wakes"
    if one.sleep_level is SleepLevel.DISCARD_ALL:
        do = "have it load its weights and wake: kvpicker never wakes an engine that has discarded them"
    elif pool.queue.wake_s:
        do = "nothing: the pool's `queue.wake_s` has it woken when all that could serve a request sleep"
    else:
        do = f"wake it (POST http://{one.endpoint}/wake_up), or have kvpicker do so by the pool's `queue.wake_s`"
    yield Finding(Level.ADVICE, one.endpoint, what, do)


def _of_metrics(one: Examination) -> Iterator[Finding]:
    if one.metrics_problem == "none":
        return
    if one.metrics_problem:
        do = _METRICS.get(one.engine, "switch its metrics on, or set `metrics_path` and `metrics_port` of its pool")
        if one.metrics_problem in _UNAUTHORIZED:
            do = "set `scrape.token_env`"
        what = f"its metrics cannot be read ({one.metrics_problem})"
        yield Finding(Level.ADVICE, one.endpoint, what, do, _KNOWN_METRICS)
    elif one.missing:
        yield Finding(Level.ADVICE, one.endpoint, f"its metrics lack {', '.join(one.missing)}", "update kvpicker or it")


def _of_usage(one: Examination) -> Iterator[Finding]:
    if one.probe_problem:
        yield Finding(Level.ADVICE, one.endpoint, f"a tiny completion failed ({one.probe_problem})")
    elif one.reports_cached is False:
        yield Finding(
            Level.ADVICE,
            one.endpoint,
            "its answers do not say how many prompt tokens were cached",
            _USAGE.get(one.engine, "have it report prompt_tokens_details.cached_tokens"),
            "predictions are compared with the truth, and the index corrects itself",
        )


def _of_pool(name: str, pool: PoolConfig, examined: Sequence[Examination]) -> Iterator[Finding]:
    where = f"pool {name}"
    sizes = Counter(one.block_tokens for one in examined if one.block_tokens is not None)
    if len(sizes) > 1:
        told = ", ".join(f"{size} tokens at {count}" for size, count in sizes.most_common())
        level = Level.PROBLEM if pool.tokens is not None else Level.ADVICE
        brings = "exact prefixes for all of them; prompts are cut by the most common size, and the others go by text"
        yield Finding(level, where, f"block sizes differ: {told}", "give them the same block size", brings)
    kinds = sorted({one.engine for one in examined if one.engine})
    if len(kinds) > 1:
        yield Finding(
            Level.ADVICE, where, f"different engines share the pool: {', '.join(kinds)}", "set `engine` of each"
        )
    yield from _of_use(where, pool, examined)


def _of_use(where: str, pool: PoolConfig, examined: Sequence[Examination]) -> Iterator[Finding]:
    """Find whether events and tokens, which are of use only together, are both there."""
    publishing = [one for one in examined if one.kv_events is not None and one.kv_events.enabled]
    if publishing and pool.kv_events is None:
        do = "add `kv_events: {port: PORT, replay_port: PORT}` to the pool"
        yield Finding(Level.ADVICE, where, "engines publish KV events, and nobody listens", do, _KNOWN_EVENTS)
    elif pool.tokens is not None and pool.kv_events is None:
        what = "`tokens` is set without `kv_events`: exact tokens are of use only with them"
        yield Finding(Level.PROBLEM, where, what, "add `kv_events`, or remove `tokens`", _KNOWN_EVENTS)
    elif pool.kv_events is None:
        yield from _of_the_silent(where, examined)
    if (publishing or pool.kv_events is not None) and pool.tokens is None:
        do = "add `tokens: {}` to the pool"
        if not all(one.tokenizes_chat for one in publishing or examined):
            do = "add `tokens: {source: local, tokenizer: FOLDER}` to the pool"
        yield Finding(Level.ADVICE, where, "KV events are of no use by text alone", do, _KNOWN_EVENTS)
    if pool.kv_events is not None and examined and all(_publishes_nothing(one) for one in examined):
        what = "`kv_events` is set, but no engine publishes any"
        yield Finding(Level.PROBLEM, where, what, "switch them on at the engines, or remove it", _KNOWN_EVENTS)


def _of_the_silent(where: str, examined: Sequence[Examination]) -> Iterator[Finding]:
    """Advise engines that could publish KV events but cannot be asked whether they do, as vLLM before 0.31."""
    could = next((one.engine for one in examined if one.kv_events is None and one.engine in _EVENTS), None)
    if could is not None:
        what = f"nobody listens to KV events; {could} can publish them, and does not say here whether it does"
        do = f"{_EVENTS[could]}, and add `kv_events: {{port: PORT, replay_port: PORT}}` and `tokens: {{}}` to the pool"
        yield Finding(Level.ADVICE, where, what, do, _KNOWN_EVENTS)


def _publishes_nothing(one: Examination) -> bool:
    return one.kv_events is not None and not one.kv_events.enabled
