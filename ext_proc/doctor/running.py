"""Asks the kvpicker that runs with a configuration, if one does, how listening goes, and how Envoy is set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from ext_proc.config import Config
from ext_proc.core.errors import ConfigError
from ext_proc.core.kv_state import PublisherState
from ext_proc.core.misfits import MENDS, Misfit, degraded_reason
from ext_proc.doctor.finding import Finding, Level
from ext_proc.ops import admin_client


class _Shown(msgspec.Struct):
    address: str
    kv_events: tuple[PublisherState, ...] = ()


async def heard(config: Config, path: Path, timeout_s: float) -> dict[str, tuple[PublisherState, ...]]:
    """Return how it goes by endpoint; nothing where nobody listens, or no kvpicker of this version answers."""
    if all(pool.kv_events is None for pool in config.pools.values()):
        return {}
    try:
        url = admin_client.page(admin_client.admin_of(path), "/debug/endpoints")
        answer = await admin_client.ask("GET", url, timeout_s=timeout_s)
    except ConfigError:
        return {}
    listed: Any = answer.told.get("endpoints")
    try:
        return {one.address: one.kv_events for one in msgspec.convert(listed, list[_Shown], strict=False)}
    except msgspec.ValidationError:
        return {}


async def misfits(path: Path, timeout_s: float) -> list[Finding]:
    """Return how Envoy is set that the kvpicker cannot do its part; nothing where none of this version answers."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        url = admin_client.page(admin_client.admin_of(path), "/metrics")
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            page = await answer.text()
    except (ConfigError, aiohttp.ClientError, TimeoutError, ValueError):
        return []
    present = (misfit for misfit in Misfit if f'kvpicker_degraded{{reason="{degraded_reason(misfit)}"}} 1.0\n' in page)
    return [Finding(Level.PROBLEM, "Envoy", MENDS[misfit].meaning, MENDS[misfit].mend) for misfit in present]
