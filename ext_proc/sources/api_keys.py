"""The API keys that engines want with what kvpicker itself asks them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from ext_proc.config import Config
from ext_proc.core.errors import ConfigError

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ApiKeys:
    """The header that carries the key of each pool; it is shown nowhere else."""

    def __init__(self) -> None:
        self._headers: Mapping[str, Mapping[str, str]] = {}

    def use(self, headers: Mapping[str, Mapping[str, str]]) -> None:
        """Send these from now on, by pool; see `read_keys`."""
        self._headers = headers

    def headers(self, pool: str) -> Mapping[str, str]:
        """Return the headers for an engine of a pool; none where it has no key."""
        return self._headers.get(pool, NO_HEADERS)


def read_keys(config: Config) -> dict[str, Mapping[str, str]]:
    """Read the keys from the environment, as headers by pool.

    Raises:
        ConfigError: a variable that is to hold one is not set, or holds what no header can carry.
    """
    found: dict[str, Mapping[str, str]] = {}
    for name, pool in config.pools.items():
        if pool.api_key_env is None:
            continue
        key, path = os.environ.get(pool.api_key_env, ""), f"pools.{name}.api_key_env"
        if not key:
            raise ConfigError("the environment variable that it names is not set or empty", path=path)
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError("the environment variable that it names holds blanks or what is no ASCII", path=path)
        found[name] = {"Authorization": f"Bearer {key}"}
    return found
