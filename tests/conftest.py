"""What holds for all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A machine under load must not fail a property.
settings.register_profile("kvpicker", deadline=None)
settings.load_profile("kvpicker")

_WITH_PROCESSES = ("tests/wire/", "tests/local/", "tests/fault/")


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Tests that start Envoys and engines run one after the other on one worker; others whenever there is time."""

    def _split_scope(self, nodeid: str) -> str:
        return "processes" if nodeid.startswith(_WITH_PROCESSES) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Share the tests among workers, where there are several."""
    return Scheduling(config, log)
