"""Prints an explanation as a table, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 160
"""Columns where the output is no terminal, so that nothing is cut."""

_TERMS = {
    "queue_ms": "queue",
    "prefill_ms": "prefill",
    "interference_ms": "interference",
    "backlog_ms": "backlog",
    "memory_ms": "KV memory",
    "copying_ms": "copying",
}


_UNREAD = {
    "not_json": "the body is not valid JSON, so neither its model nor its prompt was read",
    "no_prompt": "nothing of a prompt stands where this kind of request has it; --path says which kind it is",
    "not_an_object": "the body is JSON but no object, so neither its model nor its prompt was read",
    "too_deep": "the body is nested too deeply to be read",
    "encoding_broken": "the body cannot be decompressed",
    "encoding_unknown": "the body is compressed in a way that is not known",
}


def show(told: Mapping[str, Any], output: TextIO) -> None:
    """Print what a rehearsal told."""
    console = Console(file=output, highlight=False)
    if not console.is_terminal:
        console = Console(file=output, highlight=False, width=WIDTH)
    for name, value in _facts(told):
        console.print(Text(f"{name:10}{value}"), soft_wrap=True)
    candidates: Sequence[Mapping[str, Any]] = told.get("candidates", ())
    if candidates:
        console.print()
        console.print(_table(candidates, [told["endpoint"], *told["fallbacks"]]))


def _facts(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("verdict", _verdict(told))]
    if "operation" in told:
        facts.append(("request", _request(told)))
    if "strategy" in told:
        facts.append(("strategy", _strategy(told)))
    facts += [("filter", text) for text in told.get("filters", ())]
    for removal in told["removed"]:
        facts.append(("removed", f"{', '.join(removal['endpoints'])}: {removal['why']} ({removal['filter']})"))
    facts += [("note", text) for text in told["notes"]]
    return facts


def _strategy(told: Mapping[str, Any]) -> str:
    inside, replaced = told.get("inside"), told.get("replaced")
    left = f", which leaves the choice to {inside}" if inside else ""
    return f"{told['strategy']}{left}" + (f", in place of {replaced}, which failed" if replaced else "")


def _verdict(told: Mapping[str, Any]) -> str:
    unread = _UNREAD.get(told.get("unhashed") or "")
    return f"{_fate(told)}; {unread}" if unread else _fate(told)


def _fate(told: Mapping[str, Any]) -> str:
    if told["verdict"] == "picked":
        fallbacks = "".join(f", then {address}" for address in told["fallbacks"])
        return f"{told['endpoint']} ({told['reason']}){fallbacks}"
    if told["verdict"] == "refused":
        return f"refused with {told['status']} {told['reason']}: {told['message']}"
    return f"left to Envoy's own choice ({told['reason']})"


def _request(told: Mapping[str, Any]) -> str:
    parts = [f"{told['operation']} of {told['model'] or 'no model'}", f"about {told['prompt_tokens']:,} prompt tokens"]
    if told.get("prompt_blocks"):
        parts.append(f"{told['prompt_blocks']} blocks")
    if told["unhashed"]:
        parts.append(f"prefixes are not looked at ({told['unhashed']})")
    if told["truncated"]:
        parts.append("only its beginning was read")
    return ", ".join(parts)


def _table(candidates: Sequence[Mapping[str, Any]], chosen: Sequence[str]) -> Table:
    in_seconds = "cost_ms" in candidates[0]
    table = Table(box=None, pad_edge=False)
    scorers = list(candidates[0].get("scores", ()))
    names = [*_TERMS.values(), "cost in ms"] if in_seconds else [*scorers, "cost"]
    for name in ("", "endpoint"):
        table.add_column(name)
    for name in ("cached tokens", "in flight", *names):
        table.add_column(name, justify="right")
    for row in candidates:
        address = str(row["endpoint"])
        cells = [_rank(address, chosen), address, f"{row['hit_tokens']:,}", f"{row['in_flight']:,}"]
        if row.get("filtered"):
            costs = [""] * (len(names) - 1) + ["filtered out"]
        else:
            costs = [_number(row[name]) for name in ((*_TERMS, "cost_ms") if in_seconds else ())]
            if not in_seconds:
                costs = [f"{row['scores'][name]:.2f}" for name in scorers] + [_cost(row["cost"], bool(scorers))]
        table.add_row(*map(Text, (*cells, *costs)))
    return table


def _rank(address: str, chosen: Sequence[str]) -> str:
    return f"{chosen.index(address) + 1}." if address in chosen else ""


def _cost(value: float | None, fine: bool) -> str:
    """Write a cost that is no time: a count, or where scores make it up, a share."""
    return f"{value:.3f}" if fine and value is not None else _number(value)


def _number(value: float | None) -> str:
    """Write a number; what is not finite comes as None through JSON."""
    return "endless" if value is None else f"{value:,.1f}"
