"""Asks the admin server of a running kvpicker."""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from ext_proc.core.errors import ConfigError
from ext_proc.core.names import READ_HEADERS
from ext_proc.core.rehearsal import Asked

TIMEOUT_S: Final = 30.0

_LONGEST_COMPLAINT = 300


async def ask(admin: str, asked: Asked) -> dict[str, Any]:
    """Return what the kvpicker whose admin server has this URL would do with a request.

    Raises:
        ConfigError: it cannot be reached, or does not answer as it should.
    """
    url = f"{admin if '://' in admin else f'http://{admin}'}".rstrip("/") + "/debug/explain"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"`{admin}` is no URL of an admin server; write http://HOST:PORT", path="--admin")
    headers = {name: value for name, value in asked.headers.items() if name in READ_HEADERS}
    query = {"path": asked.path, "method": asked.method}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, params=query, data=asked.body, headers=headers) as response,
        ):
            status, text = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise ConfigError(
            f"no kvpicker answers at {url}: {_why(error)}; is it running, and is this its `admin.listen`?",
            path="--admin",
        ) from None
    return _understood(url, status, text)


def _why(error: Exception) -> str:
    """Say in plain words why a connection failed."""
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_S:g} seconds"
    if isinstance(error, aiohttp.InvalidURL):
        return "this is not a URL"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name is not known"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return os.strerror(error.os_error.errno).lower()
    return str(error) or type(error).__name__


def _understood(url: str, status: int, text: bytes) -> dict[str, Any]:
    try:
        told = msgspec.json.decode(text, type=dict[str, Any])
    except ValueError:
        told = {"error": text[:_LONGEST_COMPLAINT].decode("utf-8", "replace")}
    if status == HTTPStatus.OK and "verdict" in told:
        return told
    complaint = str(told.get("error", "this is no explanation"))[:_LONGEST_COMPLAINT]
    advice = "; is it a kvpicker of this version?" if status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND) else ""
    raise ConfigError(f"{url} answered {status}: {complaint}{advice}", path="--admin")
