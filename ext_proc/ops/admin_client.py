"""Asks the admin server of a running kvpicker, and says in plain words why it cannot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from ext_proc.config import load
from ext_proc.core.errors import ConfigError

DEFAULT_ADMIN: Final = "http://127.0.0.1:9090"
TIMEOUT_S: Final = 30.0

_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  where others listen
_LONGEST_COMPLAINT = 300

_REASONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (aiohttp.InvalidURL, "this is not a URL"),
    (aiohttp.ClientConnectorDNSError, "its name is not known"),
    (aiohttp.ClientSSLError, "no TLS with a certificate that is trusted; admin servers speak plain http"),
    (aiohttp.ClientResponseError, "what answers is no HTTP; is it the gRPC server, `listen`?"),
)


class Unreachable(ConfigError):
    """No kvpicker answers."""


class Answer(NamedTuple):
    """What an admin server answered; `told` has an `error` where it answered no JSON object."""

    url: str
    status: int
    told: dict[str, Any]

    def complaint(self, otherwise: str) -> str:
        """Return what the server finds wrong, or else this."""
        return str(self.told.get("error", otherwise))[:_LONGEST_COMPLAINT]


def page(admin: str, path: str) -> str:
    """Return the URL of a page of the admin server with this URL.

    Raises:
        ConfigError: it is none.
    """
    url = f"{admin if '://' in admin else f'http://{admin}'}".rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"`{admin}` is no URL of an admin server; write http://HOST:PORT", path="--admin")
    return url + path


async def ask(
    method: str,
    url: str,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    timeout_s: float = TIMEOUT_S,
) -> Answer:
    """Ask for a page.

    Raises:
        Unreachable: no kvpicker answers.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, url, params=query, data=body, headers=headers) as response,
        ):
            status, text = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Unreachable(
            f"no kvpicker answers at {url}: {_why(error, timeout_s)}; is it running, and is this its `admin.listen`?",
            path="--admin",
        ) from None
    try:
        told = msgspec.json.decode(text, type=dict[str, Any])
    except ValueError:
        told = {"error": text[:_LONGEST_COMPLAINT].decode("utf-8", "replace")}
    return Answer(url, status, told)


def admin_of(path: Path | None) -> str:
    """Return the URL of the admin server that a configuration file names; without a file that of the default."""
    if path is None:
        return DEFAULT_ADMIN
    host, _, port = load(path).admin.listen.rpartition(":")
    if port == "0":
        raise ConfigError("port 0 takes any free port; name the admin server with --admin", path="admin.listen")
    return f"http://{_ANY_ADDRESS.get(host, host)}:{port}"


def _why(error: Exception, timeout_s: float) -> str:
    """Say in plain words why a connection failed."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} seconds"
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), "")
    if not reason and isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        reason = os.strerror(error.os_error.errno).lower()
    return reason or str(error) or type(error).__name__
