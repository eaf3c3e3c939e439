"""Renders complete Envoy configurations from typed objects, one per profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.bootstrap.command import add_arguments, deliver, run
from ext_proc.bootstrap.options import EnvoyOptions

if TYPE_CHECKING:
    from ext_proc.bootstrap.document import render, to_yaml

__all__ = ["EnvoyOptions", "add_arguments", "deliver", "render", "run", "to_yaml"]


def __getattr__(name: str) -> object:
    """Import what needs Envoy's typed messages on first use: they take half a second, and most commands do without."""
    if name not in {"render", "to_yaml"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ext_proc.bootstrap import document  # noqa: PLC0415

    return getattr(document, name)
