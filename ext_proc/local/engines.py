"""The engines of the local stack: simulated ones, or the user's own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import aiohttp
import msgspec

from ext_proc.core import addresses
from ext_proc.core.errors import ConfigError
from ext_proc.local.child import Child, kvpicker
from ext_proc.local.lifeline import Lifeline
from ext_proc.sim.options import DEFAULT_MODEL
from ext_proc.sim.scheduler import PRESETS
from ext_proc.sources.models import ListingError, read_listing

SIMULATED: Final = 3
PRESET: Final = "h100-8b"
HTTP_PORT: Final = 80
ANSWER_TIMEOUT: Final = 10.0


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of the stack.

    Attributes:
        name: what people call it.
        address: `ip:port`, in the notation that Envoy prints.
        models: the models it listed, in its order.
        simulated: whether the stack started it.
    """

    name: str
    address: str
    models: tuple[str, ...]
    simulated: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Its entry in kvpicker's configuration; the user's engines are asked for their models by kvpicker."""
        if not self.simulated:
            return {"address": self.address}
        preset = PRESETS[PRESET]
        return {
            "address": self.address,
            "models": list(self.models),
            "kv_tokens": preset.kv_tokens,
            "prefill_rate": round(1 / preset.b),
            "labels": {"name": self.name},
        }


async def start_simulated(stack: AsyncExitStack, lifeline: Lifeline) -> tuple[list[Engine], list[Child]]:
    """Start the simulated engines as processes that `stack` stops.

    Raises:
        ChildFailed: one does not start.
    """
    children = []
    for number in range(1, SIMULATED + 1):
        name = f"sim-{number}"
        command = kvpicker("sim-engine", "--port", "0", "--preset", PRESET, "--name", name)
        children.append(await stack.enter_async_context(Child(name, lifeline, *command, announces="address")))
    announcements = await asyncio.gather(*(child.announcement() for child in children))
    engines = [
        Engine(name=child.name, address=said["address"], models=(DEFAULT_MODEL,), simulated=True)
        for child, said in zip(children, announcements, strict=True)
    ]
    return engines, children


async def find_given(urls: Sequence[str]) -> list[Engine]:
    """Resolve the user's engines and ask each for its models.

    Raises:
        ConfigError: a URL cannot be used, or its engine does not answer as one.
    """
    parts = [_parse(url) for url in urls]
    found = [await _resolve(url, part) for url, part in zip(urls, parts, strict=True)]
    for place, address in enumerate(found):
        if address in found[:place]:
            raise ConfigError(f"{urls[place]} is the same engine as {urls[found.index(address)]}", path="--engine")
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        listings = await asyncio.gather(*(_models(session, url, one) for url, one in zip(urls, found, strict=True)))
    return [
        Engine(name=address, address=address, models=models) for address, models in zip(found, listings, strict=True)
    ]


def _parse(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}", path="--engine") from None
    if parts.scheme == "https":
        raise ConfigError(f"{url}: Envoy talks plain HTTP to the engines here; use http://", path="--engine")
    if parts.scheme != "http" or not parts.hostname or port == 0:
        raise ConfigError(f"{url!r}: write http://HOST:PORT, as in http://127.0.0.1:8000", path="--engine")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise ConfigError(f"{url}: leave out everything after the port; clients send their own path", path="--engine")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"the URL of {parts.hostname} holds a user or password; neither is sent", path="--engine")
    return parts


async def _resolve(url: str, parts: SplitResult) -> str:
    """Look the host up once, since Envoy's override_host knows resolved addresses only."""
    host, port = parts.hostname or "", parts.port or HTTP_PORT
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return addresses.join(str(infos[0][4][0]), port)
    except OSError as error:
        raise ConfigError(f"{url}: {host} cannot be resolved: {error.strerror}", path="--engine") from None
    except ValueError as error:
        raise ConfigError(f"{url}: {error}", path="--engine") from None


async def _models(session: aiohttp.ClientSession, url: str, address: str) -> tuple[str, ...]:
    """Ask for the models, in the order in which the engine lists them."""
    try:
        async with session.get(f"http://{address}/v1/models", allow_redirects=False) as response:
            if response.status != HTTPStatus.OK:
                raise ConfigError(f"{url} answers GET /v1/models with status {response.status}", path="--engine")
            body = await response.read()
        known = read_listing(body).models
    except aiohttp.ClientConnectorError as error:
        number = error.os_error.errno or 0  # below 0 for a name that leads nowhere
        why = os.strerror(number).lower() if number > 0 else str(error)
        raise ConfigError(f"{url} cannot be reached: {why}; is the engine running?", path="--engine") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ConfigError(f"{url} cannot be reached: {str(error) or type(error).__name__}", path="--engine") from None
    except ListingError as error:
        raise ConfigError(f"{url} does not list its models at /v1/models ({error.reason})", path="--engine") from None
    return tuple(entry["id"] for entry in msgspec.json.decode(body)["data"] if entry.get("id") in known)
