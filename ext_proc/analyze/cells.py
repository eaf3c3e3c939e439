"""The rows of a report's tables, for whatever shows them; texts of prompts are a last column, where they are shown."""

from __future__ import annotations

from ext_proc.analyze.report import Report

TEXT = "text"
"""What heads the last column."""


def routing(report: Report) -> list[tuple[str, ...]]:
    """Return a row for each way of routing."""
    return [
        (result.policy, f"{result.hit_ratio:.1%}", f"{result.prefill_tokens:,}", f"{result.imbalance:.2f}")
        for result in report.fleet.policies
    ]


def families(report: Report) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Return a row for each family of prompts, and what heads further columns."""
    shown = (TEXT,) if any(family.excerpt for family in report.families) else ()
    rows = [
        (
            family.prefix,
            f"{family.prefix_tokens:,}",
            f"{family.requests:,}",
            f"{family.request_share:.1%}",
            f"{family.repeated_share:.1%}",
            *([family.excerpt] if shown else []),
        )
        for family in report.families
    ]
    return rows, shown


def breakers(report: Report) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Return a row for each thing that breaks prefixes, and what heads further columns."""
    shown = (TEXT,) if any(found.example for found in report.breakers) else ()
    return [found.cells(text=bool(shown)) for found in report.breakers], shown
