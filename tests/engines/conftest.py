"""Real engines for all tests of this folder, which `make test-engines` runs and `make test` does not."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from benchmarks.engines import environments
from benchmarks.engines.tiny_model import make_adapter, make_model
from benchmarks.engines.vllm_engine import Ports, VllmEngine, free_ports
from tests.engines.stage import ADAPTER, Stage, running_stage

ENGINES = 2
BLOCKS = 500
"""Blocks of an engine's cache: 16,000 tokens, less than half of what the conversations come to."""


@pytest.fixture(scope="session")
def cache() -> Path:
    """Return the folder where environments are kept between runs."""
    return Path(os.environ.get("ENGINES_CACHE", ".engines")).absolute()


@pytest.fixture(scope="session")
def results() -> Iterator[dict[str, Any]]:
    """Collect what the last line of the run tells."""
    told: dict[str, Any] = {}
    yield told
    file = os.environ.get("ENGINES_RESULTS")
    if file:
        Path(file).write_text(json.dumps(told), encoding="utf-8")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the model's folder."""
    return make_model(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engines(
    cache: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[VllmEngine]]:
    """Run two engines, both with an adapter."""
    environment = environments.vllm(cache)
    adapter = make_adapter(tmp_path_factory.mktemp("adapter"))
    logs = cache / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    ports = free_ports(3 * ENGINES)
    cores = sorted(os.sched_getaffinity(0))
    made = [
        VllmEngine(
            environment,
            model,
            Ports(*ports[3 * number : 3 * number + 3]),
            logs / f"engine-{number}.log",
            blocks=BLOCKS,
            adapters=[(ADAPTER, adapter)],
            core=cores[number % len(cores)],
        )
        for number in range(ENGINES)
    ]
    try:
        for engine in made:
            await engine.start()
        for engine in made:
            await engine.ready()
        yield made
    finally:
        for engine in made:
            await engine.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def stage(tmp_path: Path, engines: list[VllmEngine]) -> AsyncIterator[Stage]:
    """Put kvpicker and Envoy before the engines, with empty caches; tokens come from the engines themselves."""
    async with running_stage(tmp_path, engines, {"source": "engine", "deadline_ms": 1_000}) as running:
        yield running
