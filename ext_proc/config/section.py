"""What all mappings of the configuration file have in common, and types that several of them use."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Port = Annotated[int, Meta(ge=1, le=65_535)]
Text = Annotated[str, Meta(min_length=1)]
"""Of a path or a name, which may be left out but not be empty: that would leave it out without a word."""

Seconds = Annotated[float, Meta(ge=0.1, le=86_400)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the configuration file."""
