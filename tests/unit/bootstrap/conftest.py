"""Fixtures of the experiments with a real Envoy."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.bootstrap.lab import Gateway, running


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    """A gateway that fails open, whose picker names its only engine."""
    async with running() as started:
        yield started


@pytest.fixture
async def closed() -> AsyncIterator[Gateway]:
    """The same, failing closed."""
    async with running(failure_mode="closed") as started:
        yield started


@pytest.fixture
async def trio() -> AsyncIterator[Gateway]:
    """A gateway with three engines."""
    async with running(engines=3) as started:
        yield started
