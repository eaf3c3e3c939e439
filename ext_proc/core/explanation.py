"""A decision in words and milliseconds: rows for tables, and one line that fits a response header.

The header line is for clients whom an operator trusts. It names no request, tenant or text of others, yet it tells of
their work what can be inferred: from the waits, and from the costs of strategies that count requests, how busy each
engine is; from `hit_tokens`, that somebody sent a prompt which begins like one's own, and to which engine.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ext_proc.core.model import CostTerms, Decision, FilterReport
from ext_proc.core.picker import Rejection

LONGEST_HEADER = 4096
"""Bytes of a header value that proxies and clients take without complaint."""

_MOST_ROWS = 64


def milliseconds(seconds: float) -> float:
    """Return seconds as milliseconds, to the microsecond."""
    return round(seconds * 1e3, 3)


def chosen_first(decision: Decision) -> list[CostTerms]:
    """Return the terms of all candidates: the chosen one, its fallbacks, then the others, the cheapest first."""
    order = {endpoint.address: place for place, endpoint in enumerate(decision.endpoints)}
    last = len(order)
    return sorted(decision.terms, key=lambda terms: (order.get(terms.endpoint.address, last), terms.cost))


def ranked_by(decision: Decision) -> dict[str, str]:
    """Name the strategy; where they exist, also the one inside that it left the choice to, and the one that failed."""
    told = {"strategy": decision.strategy}
    if decision.inside:
        told["inside"] = decision.inside
    if decision.replaced:
        told["replaced"] = decision.replaced
    return told


def costs(terms: CostTerms) -> dict[str, Any]:
    """Tell what a candidate costs: every term in milliseconds, or the bare cost of a strategy that counts otherwise.

    One that the strategy itself filtered out costs nothing that means anything.
    """
    if terms.filtered:
        return {"endpoint": terms.endpoint.address, "filtered": True, "hit_tokens": terms.hit_tokens}
    if not terms.in_seconds:
        return {"endpoint": terms.endpoint.address, "cost": terms.cost, "hit_tokens": terms.hit_tokens}
    return {
        "endpoint": terms.endpoint.address,
        "cost_ms": milliseconds(terms.cost),
        "queue_ms": milliseconds(terms.queue),
        "prefill_ms": milliseconds(terms.prefill),
        "interference_ms": milliseconds(terms.interference),
        "backlog_ms": milliseconds(terms.backlog),
        "memory_ms": milliseconds(terms.memory),
        "copying_ms": milliseconds(terms.copying),
        "hit_tokens": terms.hit_tokens,
    }


def header(made: Decision | Rejection) -> str:
    """Explain a decision in one line of JSON, printable ASCII of at most 4096 bytes.

    The chosen endpoint and its fallbacks are always in it; of the others the dearest are left out where needed.
    """
    return _header(made) if isinstance(made, Decision) else _header_of_rejection(made)


def _header(decision: Decision) -> str:
    told: dict[str, Any] = {
        "decision": decision.id,
        **ranked_by(decision),
        "reason": decision.reason,
        "endpoint": decision.chosen.address,
        "fallbacks": [endpoint.address for endpoint in decision.endpoints[1:]],
        "prompt_tokens": decision.request.prompt_tokens,
        "filters": _counts(decision.filters),
    }
    rows = [costs(terms) for terms in chosen_first(decision)[:_MOST_ROWS]]
    shown = len(rows)
    line = _line({**told, "candidates": rows, **_rest(decision, shown)})
    while len(line) > LONGEST_HEADER and shown:
        shown = min(shown - 1, shown * LONGEST_HEADER // len(line))
        line = _line({**told, "candidates": rows[:shown], **_rest(decision, shown)})
    return line[:LONGEST_HEADER]


def _header_of_rejection(rejection: Rejection) -> str:
    refusal = rejection.refusal
    return _line({"refused": refusal.reason, "status": refusal.status, "filters": _counts(rejection.filters)})


def _rest(decision: Decision, shown: int) -> dict[str, int]:
    left_out = len(decision.terms) - shown
    return {"left_out": left_out} if left_out else {}


def _counts(filters: tuple[FilterReport, ...]) -> list[str]:
    return [str(report) for report in filters]


def _line(content: dict[str, Any]) -> str:
    text = msgspec.json.encode(content).decode()
    return "".join(character if " " <= character <= "~" else "?" for character in text)
