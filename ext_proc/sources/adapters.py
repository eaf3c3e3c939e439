"""Knows which names of models are LoRA adapters, since their KV caches are apart from that of their base model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import aiohttp

from ext_proc.core.model import Endpoint
from ext_proc.sources.api_keys import ApiKeys
from ext_proc.sources.models import TIMEOUT_S, ListingError, fetch_listing
from ext_proc.sources.tokenizing import TokenizeError

KEPT_S: Final = 60.0
"""Adapters come and go while an engine runs, but a name hardly ever changes between adapter and model."""

_MOST_KEPT: Final = 1024


class Adapters:
    """Asks an engine that serves a model what kind of name it is, and remembers it for a minute.

    Args:
        session: the HTTP client.
        keys: the API keys of the engines.
        clock: monotonic seconds.
    """

    def __init__(
        self, session: aiohttp.ClientSession, keys: ApiKeys, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._session = session
        self._keys = keys
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[str, float]] = {}

    async def name(self, model: str | None, endpoints: Sequence[Endpoint]) -> str:
        """Return the adapter's name as engines report it; empty for a base model, whatever name it is asked by.

        Raises:
            TokenizeError: no engine says what the name stands for.
        """
        if model is None:
            return ""
        key = endpoints[0].pool, model
        known, now = self._known.get(key), self._clock()
        if known is not None:
            if known[1] > now:
                return known[0]
            self._known[key] = known[0], now + TIMEOUT_S  # one asks again, the others go on with what they know
        name = await self._ask(model, endpoints[0])
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        self._known[key] = name, self._clock() + KEPT_S
        return name

    async def _ask(self, model: str, endpoint: Endpoint) -> str:
        try:
            listing = await fetch_listing(self._session, endpoint.address, headers=self._keys.headers(endpoint.pool))
        except ListingError as error:
            raise TokenizeError("models") from error
        return model if model in listing.adapters else ""
