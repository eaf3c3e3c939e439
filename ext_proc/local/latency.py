"""Measures what kvpicker adds to the latency of a request: through it and past it, in turn, to the same engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import aiohttp
import msgspec

from ext_proc.core.errors import KvpickerError
from ext_proc.local.stack import PROBE

PAIRS: Final = 250
WARM_UP: Final = 50
REQUEST_TIMEOUT: Final = 10.0


class LatencyError(KvpickerError):
    """A request of the measurement was not answered."""


async def added_ms_p50(
    url: str,
    direct_url: str,
    pairs: int = PAIRS,
    warm_up: int = WARM_UP,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Median latency through Envoy with kvpicker minus that through the same Envoy without it, in milliseconds.

    Args:
        url: the entry, where kvpicker picks.
        direct_url: the way past it.
        pairs: how many requests are timed on each way; they alternate, so that both meet the same weather.
        warm_up: how many pairs are sent before.
        clock: seconds.

    Raises:
        LatencyError: a request failed.
    """
    body = msgspec.json.encode({"model": PROBE, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1})
    timings: dict[str, list[float]] = {url: [], direct_url: []}
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for pair in range(warm_up + pairs):
            ways = (url, direct_url) if pair % 2 else (direct_url, url)
            for way in ways:
                began = clock()
                await _ask(session, f"{way}/v1/chat/completions", body)
                seconds = clock() - began
                if pair >= warm_up:
                    timings[way].append(seconds)
    return (statistics.median(timings[url]) - statistics.median(timings[direct_url])) * 1e3


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes) -> None:
    try:
        async with session.post(url, data=body, headers={"content-type": "application/json"}) as response:
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise LatencyError(f"{url}: {str(error) or type(error).__name__}") from error
    if not response.ok:
        raise LatencyError(f"{url} answered with status {response.status}: {text[:200]}")
