"""Asks the admin server of a running kvpicker."""

from __future__ import annotations

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
        what = str(error) or type(error).__name__
        raise ConfigError(
            f"no kvpicker answers at {url}: {what}; is it running, and is this its `admin.listen`?", path="--admin"
        ) from None
    return _understood(url, status, text)


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
