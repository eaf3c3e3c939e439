"""A fake API server for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.kube.following import Following
from tests.kube.server import FakeApi


@pytest.fixture
def api() -> FakeApi:
    """Make a server that has nothing yet."""
    return FakeApi()


@pytest.fixture
async def url(api: FakeApi) -> AsyncIterator[str]:
    """Serve, without TLS."""
    async with api.serving() as found:
        yield found


@pytest.fixture
def follower(url: str, tmp_path: Path) -> Callable[[float], Following]:
    """Make what follows the server; takes the seconds of silence after which a connection is dead."""
    return lambda inactivity: Following(url, tmp_path, inactivity)
