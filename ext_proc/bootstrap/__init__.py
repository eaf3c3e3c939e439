"""Renders complete Envoy configurations from typed objects, one per profile."""

from __future__ import annotations

from ext_proc.bootstrap.options import EnvoyOptions
from ext_proc.bootstrap.render import render, to_yaml

__all__ = ["EnvoyOptions", "render", "to_yaml"]
