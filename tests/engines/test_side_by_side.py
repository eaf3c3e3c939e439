"""kvpicker, round robin and peers from PyPI, on the same engines with the same conversations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import environments
from benchmarks.engines.contestants import Contestant, kvpicker, peer
from benchmarks.engines.conversations import Plan
from benchmarks.engines.side_by_side import Run, cached_ratio, compare, standings, summary, table
from benchmarks.engines.vllm_engine import VllmEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

REPETITIONS = 5
PEERS = {"smg": "smg==1.13.0", "sglang-router": "sglang-router==0.3.2"}


def _peers(cache: Path, results: dict[str, Any]) -> list[Contestant]:
    """Return the peers that can be installed; why another cannot is told in the results."""
    found = []
    for name, requirement in PEERS.items():
        try:
            environment = environments.peer(cache, requirement)
        except environments.InstallError as error:
            results.setdefault("not_installed", {})[name] = str(error)
            continue
        found.append(peer(f"{name} (cache_aware)", environment, name, cache / "logs" / f"{name}.log"))
    return found


def _tell(run: Run) -> None:
    mean = 1e3 * sum(answer.seconds for answer in run.answers) / len(run.answers)
    told = f"cached {cached_ratio(run.answers):.3f}, mean {mean:.0f} ms, requests by engine {run.spread}"
    print(f"\n{run.repetition} {run.contestant}: {told}", end="", flush=True)  # noqa: T201  it takes minutes


async def test_kvpicker_side_by_side(
    cache: Path, model: Path, engines: list[VllmEngine], results: dict[str, Any]
) -> None:
    """Every request is answered, and going by text or by tokens beats taking turns, in cached tokens and in time."""
    tokens = {"source": "local", "tokenizer": str(model), "deadline_ms": 200}
    contestants = [
        kvpicker("round-robin", "round-robin"),
        kvpicker("kvpicker text"),
        kvpicker("kvpicker tokens", tokens=tokens),
        *_peers(cache, results),
    ]
    within_s = float(os.environ.get("ENGINES_WITHIN_S", "420"))
    runs = await compare(contestants, engines, Plan(), REPETITIONS, tell=_tell, within_s=within_s)
    print(f"\n{table(runs)}")  # noqa: T201  what the run is for
    told = standings(runs)
    results["contestants"] = summary(runs)
    best = max((one.cached_ratio for name, one in told.items() if "cache_aware" in name), default=None)
    turns, text, exact = (told[name] for name in ("round-robin", "kvpicker text", "kvpicker tokens"))
    if best is not None:
        fastest = min(told, key=lambda name: told[name].mean_ms)
        results["wanted"] = {
            "text_at_least_best_peer": text.cached_ratio >= best,
            "tokens_above_best_peer": exact.cached_ratio > best,
            "kvpicker_fastest": fastest.startswith("kvpicker"),
        }
    assert all(one.failed == 0 for one in told.values())
    assert text.cached_ratio > turns.cached_ratio
    assert exact.cached_ratio > turns.cached_ratio
    assert min(text.mean_ms, exact.mean_ms) < turns.mean_ms
