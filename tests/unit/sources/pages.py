"""Pages of metrics: a real one, and those of tests/cases/metrics.jsonl, re-created from public bug reports."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec

from ext_proc.core.signals import EngineSignals
from ext_proc.sources.scrape_engines import PageReader

_FOLDER = Path(__file__).parents[2] / "cases"

VLLM_PAGE = (_FOLDER / "vllm_metrics.txt").read_bytes()
"""Of an idle vLLM 0.32 that has just started."""


class _Case(msgspec.Struct):
    id: str
    pages: dict[str, str] = {}
    page_b64: str = ""


_CASES = [msgspec.json.decode(line, type=_Case) for line in (_FOLDER / "metrics.jsonl").read_bytes().splitlines()]


def case(number: str) -> dict[str, bytes]:
    """Return the pages of a case, by endpoint."""
    (found,) = (each for each in _CASES if each.id.startswith(f"{number}-"))
    if found.page_b64:
        return {"E1": base64.b64decode(found.page_b64)}
    return {name: text.encode() for name, text in found.pages.items()}


def signals(page: bytes | str, engine: str | None = None) -> EngineSignals:
    """Read one page."""
    return PageReader(engine).read(page.encode() if isinstance(page, str) else page, at=0.0).signals
