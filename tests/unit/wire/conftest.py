"""A picker over three idle endpoints, and the observer that notes what it hears."""

from __future__ import annotations

import pytest

from tests.unit.wire.picking import Picking


@pytest.fixture
def picking() -> Picking:
    """Wire everything below the transport."""
    return Picking()
