"""A table of what happens at the engines, drawn again and again from kvpicker's admin server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ext_proc.core.lifecycle import Stage
from ext_proc.local.engines import Engine
from ext_proc.ops import families

INTERVAL: Final = 1.0
TIMEOUT: Final = 2.0


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the admin server.

    Attributes:
        at: when, in monotonic seconds.
        endpoints: every endpoint with its load, as `/debug/endpoints` gives it.
        finished: requests that have ended.
        refused: requests that kvpicker answered itself.
        prompt_tokens: by endpoint, tokens of prompts.
        cached_tokens: by endpoint, how many of those were cached.
    """

    at: float
    endpoints: Sequence[Mapping[str, Any]]
    finished: float = 0.0
    refused: float = 0.0
    prompt_tokens: Mapping[str, float] = {}
    cached_tokens: Mapping[str, float] = {}


async def read(session: aiohttp.ClientSession, admin_url: str) -> Reading:
    """Take a reading; raises aiohttp.ClientError or TimeoutError if the admin server does not answer."""
    async with session.get(f"{admin_url}/debug/endpoints") as response:
        endpoints = (await response.json())["endpoints"]
    async with session.get(f"{admin_url}/metrics") as response:
        samples = _samples(await response.text())
    return Reading(
        at=time.monotonic(),
        endpoints=endpoints,
        finished=sum(value for _, value in samples.get(families.REQUESTS.name, ())),
        refused=sum(value for _, value in samples.get(families.REFUSALS.name, ())),
        prompt_tokens=_by_endpoint(samples.get(families.PROMPT_TOKENS.name, ())),
        cached_tokens=_by_endpoint(samples.get(families.CACHED_ACTUAL.name, ())),
    )


def table(reading: Reading, before: Reading, engines: Sequence[Engine]) -> Table:
    """Draw a reading; rates are those since `before`."""
    seconds = max(reading.at - before.at, 1e-9)
    rate = max(reading.finished - before.finished, 0.0) / seconds
    names = {engine.address: engine.name for engine in engines}
    title = f"{rate:.1f} requests/s, {reading.finished:,.0f} finished, {reading.refused:,.0f} refused"
    drawn = Table(title=title, title_justify="left", caption="Ctrl-C ends it", caption_justify="left")
    for column in ("engine", "state", "in flight", "queue ms", "prompt tokens/s", "cached"):
        drawn.add_column(column, justify="left" if column in {"engine", "state"} else "right", min_width=9)
    for endpoint in reading.endpoints:
        address = endpoint["address"]
        tokens = reading.prompt_tokens.get(address, 0.0)
        fresh = max(tokens - before.prompt_tokens.get(address, 0.0), 0.0)
        cached = f"{reading.cached_tokens.get(address, 0.0) / tokens:.0%}" if tokens else "-"
        drawn.add_row(
            names.get(address, address),
            endpoint["state"] if endpoint["lifecycle"] == Stage.ACTIVE else endpoint["lifecycle"],
            str(endpoint["in_flight"]),
            f"{endpoint['queue_ms']:.0f}",
            f"{fresh / seconds:,.0f}",
            cached,
        )
    return drawn


async def watch(console: Console, admin_url: str, engines: Sequence[Engine]) -> None:
    """Show the table until cancelled."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        before: Reading | None = None
        with Live(console=console, auto_refresh=False) as live:
            while True:
                # A table that stands still is better than none.
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    reading = await read(session, admin_url)
                    live.update(table(reading, before or reading, engines), refresh=True)
                    before = reading
                await asyncio.sleep(INTERVAL)


def _samples(text: str) -> dict[str, list[tuple[Mapping[str, str], float]]]:
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def _by_endpoint(samples: Sequence[tuple[Mapping[str, str], float]]) -> dict[str, float]:
    return {labels["endpoint"]: value for labels, value in samples}
