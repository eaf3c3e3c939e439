"""Stacks for wire tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.wire.stack import Stack, running_stack


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """Run three engines behind Envoy and kvpicker; afterwards Envoy must have found no fault with us."""
    async with running_stack(tmp_path) as running:
        yield running
        assert await running.violations() == {}
