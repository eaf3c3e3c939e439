"""Lets a request that continues a response wait until it is known which engine made that response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from ext_proc.core.affinity import Affinity
from ext_proc.core.model import InferenceRequest
from ext_proc.core.pool import Registry
from ext_proc.core.prompts import RequestHead
from ext_proc.core.token_hits import Found, TokenPrompt, TokenSource

LATE_S: Final = 0.5
"""Seconds after its end in which the maker of a response may not be known yet: the access log tells it, and rendered
configurations let its entries wait 0.2 s for company."""

LOOK_S: Final = 0.02
MOST_VAIN: Final = 8
"""Waits in a row that ended without word. Then makers are not told here, as where a conversation comes by kvpickers of
another Envoy too, and only one request in `ONE_IN` still tries."""

ONE_IN: Final = 16
MOST_WAITING: Final = 1_000


class Continuing:
    """Finds tokens of requests, and if they continue a response also waits for word of that.

    Only the engine that made a response can continue it (OpenAI Responses API). An agent does so at once, and then the
    access log may not have told yet which one that was.

    Args:
        tokens: knows the exact tokens of requests; None where every pool goes by text.
        responses: which endpoint made which response.
        registry: the endpoints; where a single one serves the model nothing need be known.
        is_silent: tells that nothing is heard of how requests end.
        timeout_s: seconds that Envoy waits for the pick; a quarter of it may be spent on waiting.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        tokens: TokenSource | None,
        responses: Affinity,
        registry: Registry,
        is_silent: Callable[[], bool],
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._responses = responses
        self._registry = registry
        self._is_silent = is_silent
        self._patience_s = min(LATE_S, timeout_s / 4)
        self._clock = clock
        self._waiting = 0
        self._vain = 0
        self._asked = 0

    def find(self, request: InferenceRequest, head: RequestHead, body: bytes) -> Found:
        """Look for the tokens; what continues a response that is not known is also given time."""
        found = None if self._tokens is None else self._tokens.find(request, head, body)
        name = request.previous_response
        if not name or self._is_known(name) or self._waiting >= MOST_WAITING or self._is_silent():
            return found
        if len(self._registry.snapshot.candidates(request.model)) <= 1 or not self._tries():
            return found
        return self._known(name, found)

    def _tries(self) -> bool:
        """Count a request that could wait, and tell whether it does."""
        if self._vain < MOST_VAIN:
            return True
        self._asked += 1
        return self._asked % ONE_IN == 0

    async def _known(self, name: str, found: TokenPrompt | Awaitable[TokenPrompt | None] | None) -> TokenPrompt | None:
        self._waiting += 1
        deadline = self._clock() + self._patience_s
        try:
            while not self._is_known(name) and self._clock() < deadline:  # noqa: ASYNC110  who learns it knows none
                await asyncio.sleep(LOOK_S)
            self._vain = 0 if self._is_known(name) else self._vain + 1
        finally:
            self._waiting -= 1
        return found if found is None or isinstance(found, TokenPrompt) else await found

    def _is_known(self, name: str) -> bool:
        return self._responses.address(name, self._clock()) is not None
