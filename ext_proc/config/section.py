"""What all mappings of the configuration file have in common, and types that several of them use."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Port = Annotated[int, Meta(ge=1, le=65_535)]
Seconds = Annotated[float, Meta(ge=0.1, le=86_400)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the configuration file."""
