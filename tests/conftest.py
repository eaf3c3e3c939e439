"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A machine under load must not fail a property.
settings.register_profile("kvpicker", deadline=None)
settings.load_profile("kvpicker")
