"""Which changes of the configuration take effect while kvpicker runs, and which wait for a restart."""

from __future__ import annotations

from ext_proc.config.settings import Config

RELOADABLE = frozenset(
    {
        "default_pool",
        "dns",
        "explain",
        "failure_mode",
        "gateway",
        "health",
        "kubernetes",
        "models",
        "pools",
        "prompts",
        "scrape",
        "tenants",
    }
)
"""Sections of the configuration that take effect without a restart."""


def waiting_for_restart(before: Config, after: Config) -> list[str]:
    """Name the sections whose change has no effect yet."""
    return [
        name
        for name in after.__struct_fields__
        if name not in RELOADABLE and getattr(after, name) != getattr(before, name)
    ]
