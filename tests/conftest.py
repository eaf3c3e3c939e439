"""What holds for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Tests that start Envoys and engines run one after the other, whatever runs beside them.
_WITH_PROCESSES = tuple(str(Path(__file__).parent / folder) for folder in ("wire", "local", "fault"))

# A machine under load must not fail a property.
settings.register_profile("kvpicker", deadline=None)
settings.load_profile("kvpicker")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests that start processes to one worker, where there are several."""
    for item in items:
        if str(item.path).startswith(_WITH_PROCESSES):
            item.add_marker(pytest.mark.xdist_group("processes"))
