"""Tells people what the stack is, where the demonstration's requests went and why, and what it is worth."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from ext_proc.core.explanation import REASONS
from ext_proc.local.demo import Part, Sent
from ext_proc.local.engines import Engine
from ext_proc.local.result import Result
from ext_proc.local.stack import Stack

UNEXPLAINED: Final = "not known"
COLUMNS: Final = (
    "requests",
    "went to",
    "because",
    "cached tokens\nexpected",
    "\nfound",
    "\nof",
    "queue + prefill\n+ memory",
    "next\nbest",
    "first\ntoken",
)


def curl(url: str, model: str) -> str:
    """Return a command line that sends a chat request and shows the answer as it comes."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    return f"curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"


def command(run_by: str, found: str | None) -> str:
    """Return how a shell here runs kvpicker: by its name where it finds it, else by the path that it was run by.

    Args:
        run_by: how this process was run, `sys.argv[0]`.
        found: where a shell finds `kvpicker`; None if it does not.
    """
    if found is not None:
        return "kvpicker"
    return shlex.quote(sys.executable) + " -m ext_proc.cli" if run_by.endswith(".py") else shlex.quote(run_by)


def introduce(console: Console, stack: Stack) -> None:
    """Print where everything is."""
    engines = ", ".join(
        engine.address if engine.name == engine.address else f"{engine.name} {engine.address}"
        for engine in stack.engines
    )
    kvpicker = command(sys.argv[0], shutil.which("kvpicker"))
    lines = (
        "",
        f"entry    {stack.url}   (Envoy, with kvpicker behind it)",
        f"admin    {stack.admin_url}   (/metrics, /debug/endpoints, /debug/decisions)",
        f"engines  {engines}",
        'try it, with or without "stream":',
        curl(stack.url, stack.model),
        "ask where a request would go, or with curl's -i -H 'x-kvpicker-explain: 1' where it went:",
        f"{kvpicker} explain --request body.json --admin {stack.admin_url}",
        "take an engine out, and wait until its requests have ended:",
        f"{kvpicker} drain {stack.engines[0].address} --wait --admin {stack.admin_url} --token-file {stack.token_file}",
        "",
    )
    for line in lines:
        console.print(line, soft_wrap=True)


def show(console: Console, sent: Sequence[Sent], engines: Sequence[Engine]) -> None:
    """Print where each request went and why; requests with the same answer share a row."""
    names = {engine.address: engine.name for engine in engines}
    for part in Part:
        table = Table(title=f"{part.value} (times in ms)", title_justify="left", box=box.SIMPLE_HEAD)
        for column in COLUMNS:
            words = column in COLUMNS[:3]
            table.add_column(column, justify="left" if words else "right", overflow="fold", vertical="bottom")
        rows: dict[tuple[str, str], list[Sent]] = {}
        for one in sorted((one for one in sent if one.part is part), key=lambda one: one.number):
            rows.setdefault(_where_and_why(one, names), []).append(one)
        for (engine, why), group in rows.items():
            table.add_row(*_row(engine, why, group))
        console.print(table)
    for one in sent:
        if one.reply.error:
            console.print(f"{one.request_id} failed: {one.reply.error}", soft_wrap=True)


def conclude(console: Console, result: Result) -> None:
    """Print what it was worth."""
    console.print(f"requests  {result.requests}, of which {result.failures} failed")
    if result.cached_ratio is None:
        console.print("cached    not known: the engines report no cached tokens (vLLM: --enable-prompt-tokens-details)")
    else:
        console.print(f"cached    {result.cached_ratio:.1%} of all prompt tokens came from the engines' caches")
    if result.round_robin_cached_ratio is not None:
        console.print(
            f"          {result.round_robin_cached_ratio:.1%} with round robin: the same requests, replayed in the "
            "order sent on three empty simulated caches",
            soft_wrap=True,
        )
    if result.added_ms_p50 is not None:
        console.print(
            f"latency   kvpicker adds {result.added_ms_p50:.2f} ms (p50 of tiny requests through Envoy with it, less "
            "that through the same Envoy to the same engine without it)",
            soft_wrap=True,
        )
    console.print("versions  " + ", ".join(f"{name} {version}" for name, version in result.versions.items()))


def _where_and_why(one: Sent, names: Mapping[str, str]) -> tuple[str, str]:
    if one.reply.error:
        return "", "failed"
    if one.decision is None:
        return UNEXPLAINED, UNEXPLAINED
    endpoint = one.decision["endpoint"]
    reason = one.decision["reason"]
    return names.get(endpoint, endpoint), REASONS.get(reason, reason)


def _row(engine: str, why: str, group: Sequence[Sent]) -> list[str]:
    decisions = [one.decision for one in group if one.decision is not None]
    chosen = [_chosen(decision) for decision in decisions]
    return [
        _numbers([one.number for one in group]),
        engine,
        why,
        _span(decision["predicted_cached_tokens"] for decision in decisions),
        _span(one.reply.cached_tokens for one in group),
        _span(one.reply.prompt_tokens for one in group),
        " + ".join(_span(terms.get(f"{name}_ms") for terms in chosen) for name in ("queue", "prefill", "memory")),
        _span(_next_best(decision) for decision in decisions),
        _span(None if one.reply.ttft is None else one.reply.ttft * 1e3 for one in group),
    ]


def _numbers(numbers: Iterable[int]) -> str:
    """Write ascending numbers, runs of them shortened: `1-3, 5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _chosen(decision: Mapping[str, Any]) -> dict[str, Any]:
    """Find the terms of the endpoint that was chosen."""
    candidates: list[dict[str, Any]] = decision["candidates"]
    return next((terms for terms in candidates if terms["endpoint"] == decision["endpoint"]), {})


def _next_best(decision: Mapping[str, Any]) -> float | None:
    """Find the lowest cost of the endpoints that were not chosen, in milliseconds; None if it is no time."""
    others = [terms for terms in decision["candidates"] if terms["endpoint"] != decision["endpoint"]]
    return min((terms["cost_ms"] for terms in others if terms.get("cost_ms") is not None), default=None)


def _span(values: Iterable[float | None]) -> str:
    """Write the smallest and the largest value, as whole numbers."""
    known = [round(value) for value in values if value is not None]
    if not known:
        return "-"
    low, high = min(known), max(known)
    return str(low) if low == high else f"{low}-{high}"
