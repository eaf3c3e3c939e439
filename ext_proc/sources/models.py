"""Learns which models an engine serves by asking it: `GET /v1/models`."""

from __future__ import annotations

import asyncio
import random
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import msgspec

from ext_proc.core.errors import KvpickerError
from ext_proc.core.prompts.jsonbody import short
from ext_proc.sources.api_keys import NO_HEADERS, ApiKeys
from ext_proc.sources.bounded import read_bounded
from ext_proc.sources.watches import Watches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.core.model import Endpoint
    from ext_proc.core.pool import Change, Registry
    from ext_proc.core.snapshot import Snapshot

TIMEOUT_S = 2.0
MAX_BYTES = 1024 * 1024
REFRESH_S = 60.0
"""Adapters come and go while an engine runs."""

FIRST_RETRY_S = 0.25
LAST_RETRY_S = 2.5
"""Cap of the doubling wait after failures: with the time limit, an engine that comes back is known in five seconds."""

CONCURRENCY = 16


class ListingError(KvpickerError):
    """An engine did not say what it serves; `reason` is a metric label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Listing(msgspec.Struct, frozen=True):
    """What an engine says it serves.

    Attributes:
        models: every name it accepts.
        secondary: those that are adapters, or further names of another one.
        adapters: those that are adapters.
    """

    models: frozenset[str]
    secondary: frozenset[str]
    adapters: frozenset[str] = frozenset()


def read_listing(body: bytes) -> Listing:
    """Understand the answer to `GET /v1/models` (OpenAI list object).

    vLLM and SGLang mark a LoRA adapter with `parent` and give several names of one model the same `root`.

    Raises ListingError for anything that is no such list, or an empty one.
    """
    try:
        listed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ListingError("not_json") from error
    entries = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(entries, list):
        raise ListingError("not_a_list")
    models: set[str] = set()
    secondary: set[str] = set()
    adapters: set[str] = set()
    roots: dict[str, str] = {}
    for name, root, is_adapter in map(_entry, entries):
        if not name:
            continue
        models.add(name)
        if is_adapter:
            adapters.add(name)
        if is_adapter or roots.setdefault(root, name) != name:
            secondary.add(name)
    if not models:
        raise ListingError("no_models")
    return Listing(frozenset(models), frozenset(secondary), frozenset(adapters))


async def fetch_listing(
    session: aiohttp.ClientSession,
    address: str,
    *,
    headers: Mapping[str, str] = NO_HEADERS,
    timeout_s: float = TIMEOUT_S,
) -> Listing:
    """Ask one engine, with a bound on time and size.

    A redirect is not followed: requests go to this address, so what another one serves is of no use.

    Raises ListingError.
    """
    try:
        async with session.get(
            f"http://{address}/v1/models",
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            if response.status != HTTPStatus.OK:
                raise ListingError(f"http_{response.status}")
            return read_listing(await read_bounded(response, MAX_BYTES, ListingError("too_large")))
    except TimeoutError as error:
        raise ListingError("timeout") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ListingError("unreachable") from error


class ModelLearner:
    """Keeps asking the engines whose models nobody declared, and tells the registry."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        registry: Registry,
        on_change: Callable[[Change], None],
        on_failure: Callable[[Endpoint, str, Exception], None],
        *,
        keys: ApiKeys | None = None,
        rng: random.Random | None = None,
        timeout_s: float = TIMEOUT_S,
        refresh_s: float = REFRESH_S,
        concurrency: int = CONCURRENCY,
    ) -> None:
        """Ask nothing yet; see `run`.

        Args:
            session: HTTP client.
            registry: which endpoints there are, and who is told.
            on_change: takes each change that an answer made.
            on_failure: takes an endpoint, the reason (a metric label) why it is not learnt, and the error; once
                until the reason changes or the engine answers.
            keys: the API keys of the engines; None where they want none.
            rng: spreads the waits, so that many engines are not asked at one moment.
            timeout_s: seconds for one answer.
            refresh_s: seconds between two questions to an engine that answers.
            concurrency: engines asked at one time.
        """
        self._session = session
        self._registry = registry
        self._on_change = on_change
        self._on_failure = on_failure
        self._keys = keys or ApiKeys()
        self._rng = rng or random.Random()  # noqa: S311 - jitter is no secret
        self._timeout_s = timeout_s
        self._refresh_s = refresh_s
        self._turns = asyncio.Semaphore(concurrency)
        self._watches: Watches[Endpoint, _Watch] = Watches(registry, _wanted, lambda _watch, _endpoint: True)

    async def run(self) -> None:
        """Follow the registry until cancelled; no engine and no callback can end this."""
        await self._watches.run(lambda endpoint: _Watch((asyncio.create_task(self._follow(endpoint)),)))

    async def _follow(self, endpoint: Endpoint) -> None:
        failures = 0
        reported = ""
        while True:
            try:
                await self._ask(endpoint)
            except Exception as error:  # noqa: BLE001 - one engine's surprise must not leave it unknown for ever
                failures += 1
                reason = error.reason if isinstance(error, ListingError) else "internal"
                if reason != reported:
                    self._on_failure(endpoint, reason, error)
                reported = reason
            else:
                failures = 0
                reported = ""
            await asyncio.sleep(self._wait(failures))

    async def _ask(self, endpoint: Endpoint) -> None:
        async with self._turns:
            headers = self._keys.headers(endpoint.pool)
            listing = await fetch_listing(self._session, endpoint.address, headers=headers, timeout_s=self._timeout_s)
        change = self._registry.learn(endpoint.address, endpoint.generation, listing.models, listing.secondary)
        if change is not None:
            self._on_change(change)

    def _wait(self, failures: int) -> float:
        if failures == 0:
            return self._refresh_s * self._rng.uniform(0.8, 1.2)
        longest = FIRST_RETRY_S * 2.0 ** min(failures - 1, 16)
        return min(LAST_RETRY_S, longest) * self._rng.uniform(0.5, 1.0)


class _Watch(NamedTuple):
    """One endpoint under observation."""

    tasks: tuple[asyncio.Task[None], ...]


def _wanted(snapshot: Snapshot) -> dict[int, Endpoint]:
    return {endpoint.generation: endpoint for endpoint in snapshot.undeclared}


def _entry(entry: Any) -> tuple[str, str, bool]:
    """Return name, root and whether it is an adapter; an empty name for an entry that names no model."""
    name = entry.get("id") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        return "", "", False
    root = entry.get("root")
    # As the name is kept that a request asks for.
    return short(name), root if isinstance(root, str) and root else name, bool(entry.get("parent"))
