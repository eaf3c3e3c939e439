"""Asks one engine whether it is well, with a bound on time and size."""

from __future__ import annotations

import errno
from collections.abc import Mapping

import aiohttp
import msgspec

from ext_proc.core.errors import KvpickerError
from ext_proc.core.health_states import Verdict
from ext_proc.core.model import Endpoint
from ext_proc.sources.api_keys import NO_HEADERS
from ext_proc.sources.probe_rules import judged, judged_generation

MAX_BYTES = 4096
GENERATION_PATIENCE = 10.0
"""Times the usual patience: a generation may have to wait for its turn."""

LOCAL_ERRORS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.ENETDOWN, errno.EACCES}
)
"""Failures of this machine, which say nothing of an engine."""


class LocalError(KvpickerError):
    """A probe could not be sent, for a reason on this machine."""


class Finding(msgspec.Struct, frozen=True):
    """What a probe found.

    Attributes:
        verdict: its meaning.
        found: the answer in a word.
        asleep: whether the engine says that it sleeps; None if it was not asked or does not say.
    """

    verdict: Verdict
    found: str
    asleep: bool | None = None


def open_session() -> aiohttp.ClientSession:
    """Make the HTTP client for all probes; each opens its own connection, since that is part of what is probed."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), cookie_jar=aiohttp.DummyCookieJar()
    )


async def ask_health(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    path: str,
    engine: str,
    timeout_s: float,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Finding:
    """Ask for the page of health.

    Raises:
        LocalError: the question could not be sent.
    """
    url, patience = f"http://{endpoint.address}{path}", aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(url, headers=headers, allow_redirects=False, timeout=patience) as response:
            body = await response.content.read(MAX_BYTES)
            status, retry_after = response.status, "Retry-After" in response.headers
    except Exception as error:  # noqa: BLE001  whatever it is, the probe has not been answered
        return failure(error)
    return Finding(judged(engine, status, body, retry_after=retry_after), f"http_{status}")


async def ask_generation(
    session: aiohttp.ClientSession, endpoint: Endpoint, timeout_s: float, headers: Mapping[str, str] = NO_HEADERS
) -> Finding:
    """Have one token generated.

    Raises:
        LocalError: the question could not be sent.
    """
    url = f"http://{endpoint.address}/v1/completions"
    patience = aiohttp.ClientTimeout(total=timeout_s * GENERATION_PATIENCE)
    asked: dict[str, object] = {"prompt": "1", "max_tokens": 1}
    if endpoint.models:
        asked["model"] = min(endpoint.models)
    try:
        async with session.post(url, json=asked, headers=headers, allow_redirects=False, timeout=patience) as response:
            await response.content.read(MAX_BYTES)
            status = response.status
    except Exception as error:  # noqa: BLE001  as above
        return failure(error)
    return Finding(judged_generation(status), f"generation_http_{status}")


def failure(error: Exception) -> Finding:
    """Understand why nothing was answered.

    Raises:
        LocalError: for a reason on this machine.
    """
    if is_local(error):
        raise LocalError(str(error)) from error
    if isinstance(error, TimeoutError):
        return Finding(Verdict.FAILED, "timeout")
    if isinstance(error, aiohttp.ClientConnectorError):
        return Finding(Verdict.FAILED, "refused" if error.errno == errno.ECONNREFUSED else "unreachable")
    if isinstance(error, aiohttp.ClientResponseError):
        # Somebody is there and speaks another protocol.
        return Finding(Verdict.UNSUPPORTED, "not_http")
    if isinstance(error, aiohttp.ClientError | OSError):
        return Finding(Verdict.FAILED, "reset")
    raise error


def is_local(error: BaseException | None) -> bool:
    """Tell a failure of this machine from one of the engine."""
    return isinstance(error, OSError) and error.errno in LOCAL_ERRORS
