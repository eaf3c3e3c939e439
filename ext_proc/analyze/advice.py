"""What follows from the figures, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from ext_proc.analyze.breakers import Breaker
from ext_proc.analyze.engines import AFFINITY, ONE_CACHE, ROUND_ROBIN
from ext_proc.analyze.kinds import Kind
from ext_proc.analyze.report import WHOLE_BLOCKS, Report
from ext_proc.ops.text import counted

HARDLY: Final = 0.05
"""A share of prompt tokens below which it is not worth while to do anything."""

PAYS: Final = 0.05
"""A share of round robin's prefill that prefix-aware routing must avoid to be worth while."""

_FEW_REQUESTS: Final = 200
_HOT: Final = 0.3
_HOT_TOKENS: Final = 256
_MENDABLE: Final = 0.01
_NAMED_BREAKERS: Final = 3

REMEDIES: Final = {
    Kind.DATE: "put the date or time behind the constant text, or round it to the day",
    Kind.IDENTIFIER: "move the identifier behind the constant text, or out of the prompt",
    Kind.NUMBER: "move the number behind the constant text",
    Kind.TOOL_ORDER: "send tools in one order, for example sorted by name",
    Kind.TOOL_SET: "send one set of tools, equal to the byte; put those that change last",
    Kind.KEY_ORDER: "serialise JSON with sorted keys",
    Kind.WHITESPACE: "render the template with the same whitespace each time",
    Kind.SYSTEM: "keep the system prompt constant and give what changes in a later message",
    Kind.MESSAGE: "put the constant text first and what changes last",
    Kind.TRIMMED: "trim history seldom and much rather than a little with each turn, or summarise it",
    Kind.INSERTED: "append new messages at the end instead of in front",
    Kind.SALT: "share a cache_salt among those who may share a cache",
}


def advise(report: Report) -> Report:
    """Return the report with advice."""
    advice = [*_on_data(report), *_on_routing(report), *_on_caches(report), *_on_hot_spots(report)]
    advice += [_on_breaker(found) for found in report.breakers[:_NAMED_BREAKERS] if found.lost_share >= _MENDABLE]
    return msgspec.structs.replace(report, advice=tuple(advice))


def _on_data(report: Report) -> Iterator[str]:
    if report.source.requests < _FEW_REQUESTS:
        yield f"Only {counted(report.source.requests, 'request')}: take the figures as a hint."
    unusable = sum(report.source.unusable.values())
    if unusable > report.source.lines / 10:
        lines = counted(report.source.lines, "line")
        yield f"{unusable:,} of {lines} could not be used; look at why before you trust the rest."


def _on_routing(report: Report) -> Iterator[str]:
    ratios = {result.policy: result.hit_ratio for result in report.fleet.policies}
    before, after = ratios[ROUND_ROBIN], ratios[AFFINITY]
    reuse, engines, saved = report.reuse_ratio, report.fleet.engines, report.fleet.prefill_saved
    if reuse < HARDLY:
        yield (
            f"Your prefixes hardly repeat ({reuse:.1%} of prompt tokens, {WHOLE_BLOCKS}): "
            "least-request will do, and no cache-aware routing can gain much more than that."
        )
    elif engines == 1:
        yield f"With one engine there is nothing to route; its cache finds {after:.1%} of prompt tokens."
    elif saved < PAYS:
        yield (
            f"Prefixes repeat ({reuse:.1%}), but with caches of this size it hardly matters where a request goes: "
            f"round robin over {engines} engines finds {before:.1%} in them, prefix-aware routing {after:.1%}, "
            f"{max(saved, 0.0):.1%} less prefill. "
            "Least-wait does no harm; its gain is in balancing load."
        )
    else:
        yield (
            f"Prefix-aware routing pays: {after:.1%} of prompt tokens found in caches against {before:.1%} with round "
            f"robin over {engines} engines, {saved:.0%} less prefill. Use least-wait, which also minds the queues."
        )


def _on_caches(report: Report) -> Iterator[str]:
    ratios = {result.policy: result.hit_ratio for result in report.fleet.policies}
    missing = report.reuse_ratio - ratios[ONE_CACHE]
    if missing < 2 * HARDLY:
        return
    together = report.fleet.engines * report.fleet.kv_tokens
    enough = "" if report.tokens_for_most is None else f"; {report.tokens_for_most:,} would give nine tenths of that"
    yield (
        f"The caches are small for this traffic: all of them together ({together:,} tokens) could find "
        f"{ratios[ONE_CACHE]:.1%} of prompt tokens, of {report.reuse_ratio:.1%} that repeat{enough}. More KV memory or "
        "a tier of host memory would help."
    )


def _on_hot_spots(report: Report) -> Iterator[str]:
    for family in report.families:
        if family.request_share >= _HOT and family.prefix_tokens >= _HOT_TOKENS:
            yield (
                f"{family.request_share:.0%} of requests begin with the same {family.prefix_tokens:,} tokens. Every "
                "engine will soon hold them; a strategy that only follows prefixes would overload the first that does."
            )
            return


def _on_breaker(found: Breaker) -> str:
    # "Order of tools in tools" says nothing more.
    where = "" if found.kind.endswith(found.where) else f" in {found.where}"
    return (
        f"{found.kind[:1].upper()}{found.kind[1:]}{where}, {found.offset_tokens:,} tokens into the prompt, "
        f"keeps {found.request_share:.0%} of requests from sharing about {found.lost_tokens:,.0f} tokens each "
        f"({found.lost_share:.1%} of all): {REMEDIES[Kind(found.kind)]}."
    )
