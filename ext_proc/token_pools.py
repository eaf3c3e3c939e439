"""Makes what finds the exact tokens of requests, for the pools whose configuration asks for it."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from ext_proc.config import Config
from ext_proc.core.errors import ConfigError
from ext_proc.core.pool import Registry
from ext_proc.core.rehearsal import Asked, understood
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_hits import TokenPrompt
from ext_proc.sources.adapters import Adapters
from ext_proc.sources.api_keys import ApiKeys, read_keys
from ext_proc.sources.engine_tokenizer import EngineTokenizer
from ext_proc.sources.local_tokenizer import LocalTokenizer
from ext_proc.sources.token_lookup import Count, PoolTokens, TokenLookup, Told


class TokenPools:
    """The token source of one process, which follows the configuration.

    Args:
        registry: the endpoints.
        resident: what engines report that they hold.
        count: counts each lookup by pool and result.
        told: tells the size of blocks of engines that have reported none yet.

    Attributes:
        keys: the API keys of the engines.
    """

    def __init__(self, registry: Registry, resident: ResidentIndex, count: Count, told: Told) -> None:
        self.keys = ApiKeys()
        self._registry = registry
        self._resident = resident
        self._count = count
        self._told = told
        self._session: aiohttp.ClientSession | None = None
        self._lookup: TokenLookup | None = None
        self._settings: object = None

    @property
    def source(self) -> TokenLookup | None:
        """What exchanges ask; None where every pool goes by text."""
        return self._lookup

    def configure(self, config: Config, session: aiohttp.ClientSession | None = None) -> None:
        """Follow a configuration; what was learnt stays unless its settings changed.

        Args:
            config: the configuration.
            session: the HTTP client, the first time.

        Raises:
            ConfigError: a local tokenizer cannot be used, or an API key is not there.
        """
        self._session = session or self._session
        keys = read_keys(config)
        wanted = {name: pool.tokens for name, pool in config.pools.items() if pool.tokens is not None}
        settings = (wanted, config.prompts.inspect_bytes)
        if self._session is None or settings == self._settings:
            self.keys.use(keys)
            return
        pools = pool_tokens(config, self._session, self.keys)
        self.keys.use(keys)
        self.close()
        self._settings = settings
        if pools:
            adapters = Adapters(self._session, self.keys)
            inspect_bytes = config.prompts.inspect_bytes
            self._lookup = TokenLookup(self._registry, self._resident, adapters, self._count, inspect_bytes, self._told)
            self._lookup.configure(pools)

    async def rehearse(self, asked: Asked, inspect_bytes: int) -> TokenPrompt | None:
        """Find the tokens of a request that is only asked about; None where they are not to be had in time."""
        request = understood(asked, inspect_bytes)
        if self._lookup is None or request is None or request.unhashed is not None:
            return None
        found = self._lookup.rehearse(request, asked.head, asked.body)
        return found if found is None or isinstance(found, TokenPrompt) else await found

    def close(self) -> None:
        """Drop all that is under way."""
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None


def pool_tokens(config: Config, session: aiohttp.ClientSession, keys: ApiKeys) -> dict[str, PoolTokens]:
    """Make the tokenizers of the pools that have one.

    Raises:
        ConfigError: a local one cannot be used.
    """
    made = {}
    for name, pool in config.pools.items():
        settings = pool.tokens
        if settings is None:
            continue
        local = local_tokenizer(name, config)
        tokenizer = EngineTokenizer(session, keys) if local is None else local
        made[name] = PoolTokens(tokenizer, settings.deadline_ms / 1000, settings.cache_tokens)
    return made


def local_tokenizer(pool: str, config: Config) -> LocalTokenizer | None:
    """Load the tokenizer of a pool; None for one that has none of its own.

    Raises:
        ConfigError: it cannot be used.
    """
    settings = config.pools[pool].tokens
    if settings is None or settings.tokenizer is None:
        return None
    try:
        return LocalTokenizer(Path(settings.tokenizer), settings.cache_tokens)
    except ConfigError as error:
        raise ConfigError(str(error), path=f"pools.{pool}.tokens.tokenizer") from error
