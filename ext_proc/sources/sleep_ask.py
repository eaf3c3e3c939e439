"""Asks a vLLM whether it sleeps, and has it wake, with a bound on time and size."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import aiohttp
import msgspec

from ext_proc.core.errors import KvpickerError
from ext_proc.core.model import Endpoint
from ext_proc.sources.api_keys import NO_HEADERS

MAX_BYTES = 4096
_NO_SLEEP_MODE = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, 405, 501})


class NoSleepModeError(KvpickerError):
    """The engine does not say whether it sleeps, and will not the next time either."""


class _Told(msgspec.Struct):
    is_sleeping: bool


async def ask_sleep(
    session: aiohttp.ClientSession, endpoint: Endpoint, timeout_s: float, headers: Mapping[str, str] = NO_HEADERS
) -> bool | None:
    """Ask an engine whether it sleeps; None if it does not answer this time.

    Raises:
        NoSleepModeError: it never will, as it was started.
    """
    url, patience = f"http://{endpoint.address}/is_sleeping", aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(url, headers=headers, allow_redirects=False, timeout=patience) as response:
            if response.status in _NO_SLEEP_MODE:
                raise NoSleepModeError(f"http_{response.status}")
            body = await response.content.read(MAX_BYTES)
            return msgspec.json.decode(body, type=_Told).is_sleeping if response.status == HTTPStatus.OK else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


async def ask_wake(
    session: aiohttp.ClientSession, endpoint: Endpoint, timeout_s: float, headers: Mapping[str, str] = NO_HEADERS
) -> str:
    """Have an engine wake, and return what came of it: `ok` when it is awake, else why not, a metric label."""
    url, patience = f"http://{endpoint.address}/wake_up", aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.post(url, headers=headers, allow_redirects=False, timeout=patience) as response:
            await response.content.read(MAX_BYTES)
            return "ok" if response.status == HTTPStatus.OK else "refused"
    except TimeoutError:
        return "timeout"
    except (aiohttp.ClientError, OSError):
        return "unreachable"
