"""Asks engines for the tokens of prompts: `POST /tokenize`, as vLLM and SGLang answer it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec

from ext_proc.core.model import Endpoint
from ext_proc.core.prompts.token_question import TokenQuestion
from ext_proc.sources.api_keys import NO_HEADERS, ApiKeys
from ext_proc.sources.bounded import read_bounded
from ext_proc.sources.tokenizing import TokenizeError

PATH: Final = "/tokenize"
TIMEOUT_S: Final = 2.0
"""Longer than any pick waits: an answer that comes too late for one request serves the next with the same text."""

MAX_BYTES: Final = 32 * 1024 * 1024
REST_S: Final = 10.0
"""How long an engine that failed is not asked again, if another one can be."""

_CLIENTS_FAULT: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})


class _Answer(msgspec.Struct, gc=False):
    tokens: list[int]


_DECODER: Final = msgspec.json.Decoder(_Answer)


class EngineTokenizer:
    """Asks the engines that serve a model in turn; all of them have its tokenizer.

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
        self._turn = 0
        self._resting: dict[str, float] = {}

    async def tokens(self, question: TokenQuestion, model: str | None, endpoints: Sequence[Endpoint]) -> Sequence[int]:
        """Return the token ids of a prompt.

        Raises:
            TokenizeError: the engine that was asked does not give them.
        """
        endpoint = self._next(endpoints)
        headers = self._keys.headers(endpoint.pool)
        try:
            return await fetch_tokens(self._session, endpoint.address, question, model, headers=headers)
        except TokenizeError as error:
            if error.reason != "rejected":
                self._resting[endpoint.address] = self._clock() + REST_S
            raise

    def close(self) -> None:
        """Do nothing: the HTTP client belongs to others."""

    def _next(self, endpoints: Sequence[Endpoint]) -> Endpoint:
        now = self._clock()
        if self._resting:
            self._resting = {address: until for address, until in self._resting.items() if until > now}
        awake = [endpoint for endpoint in endpoints if endpoint.address not in self._resting]
        if not awake:
            raise TokenizeError("resting")
        self._turn += 1
        return awake[self._turn % len(awake)]


async def fetch_tokens(
    session: aiohttp.ClientSession,
    address: str,
    question: TokenQuestion,
    model: str | None,
    *,
    headers: Mapping[str, str] = NO_HEADERS,
    timeout_s: float = TIMEOUT_S,
) -> list[int]:
    """Ask one engine, with a bound on time and size; a redirect is not followed, since prompts go nowhere else.

    Raises:
        TokenizeError: it does not give them; `rejected` if it does not like the prompt itself.
    """
    named = b'"model":' + msgspec.json.encode(model) + b"," if model else b""
    try:
        async with session.post(
            f"http://{address}{PATH}",
            data=b"{" + named + question.members + b"}",
            headers={"Content-Type": "application/json", **headers},
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            if response.status in _CLIENTS_FAULT:
                raise TokenizeError("rejected")
            if response.status != HTTPStatus.OK:
                raise TokenizeError(f"http_{response.status}")
            return _read(await read_bounded(response, MAX_BYTES, TokenizeError("too_large")))
    except TimeoutError as error:
        raise TokenizeError("timeout") from error
    except (aiohttp.ClientError, OSError) as error:
        raise TokenizeError("unreachable") from error


def _read(body: bytes) -> list[int]:
    try:
        return _DECODER.decode(body).tokens
    except (ValueError, RecursionError) as error:
        raise TokenizeError("no_tokens") from error
