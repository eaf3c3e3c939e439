"""From configuration to a source of tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from ext_proc.assembly import check
from ext_proc.config import Config, parse
from ext_proc.core.errors import ConfigError
from ext_proc.core.pool import Registry
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.sources.api_keys import ApiKeys
from ext_proc.token_pools import TokenPools, pool_tokens
from tests.unit.sources.tokenizer_files import write

POOLS = """
pools:
  text: {endpoints: ["10.0.0.1:1"]}
  exact: {endpoints: ["10.0.0.2:1"], tokens: %s}
"""


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession() as session:
        yield session


def config(tokens: str = "{}") -> Config:
    """Read a configuration with these settings for one of two pools."""
    return parse(POOLS % tokens)


def token_pools() -> TokenPools:
    """Make the parts, without endpoints."""
    return TokenPools(Registry(), ResidentIndex(), lambda _pool, _result: None, lambda _slot: None)


async def test_only_pools_that_ask_for_it_have_tokens(http: aiohttp.ClientSession) -> None:
    """The deadline is in seconds from there on."""
    made = pool_tokens(config("{deadline_ms: 50}"), http, ApiKeys())
    assert {name: pool.deadline_s for name, pool in made.items()} == {"exact": 0.05}


async def test_without_such_a_pool_exchanges_ask_nobody(http: aiohttp.ClientSession) -> None:
    """Pools that go by text pay nothing."""
    pools = token_pools()
    pools.configure(parse("pools: {text: {endpoints: ['10.0.0.1:1']}}"), http)
    assert pools.source is None


async def test_what_was_learnt_survives_other_changes(http: aiohttp.ClientSession) -> None:
    """A reload that leaves these settings alone leaves the cache alone; one that removes them ends it."""
    pools = token_pools()
    pools.configure(config(), http)
    source = pools.source
    assert source is not None
    pools.configure(parse((POOLS % "{}") + "drain_s: 1\n"))
    assert pools.source is source
    pools.configure(config("{deadline_ms: 5}"))
    assert pools.source not in (None, source)
    pools.configure(parse("pools: {text: {endpoints: ['10.0.0.1:1']}}"))
    assert pools.source is None


async def test_a_local_tokenizer_is_loaded_from_its_folder(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """The same files that the engine has."""
    made = pool_tokens(config(f"{{source: local, tokenizer: {write(tmp_path)}}}"), http, ApiKeys())
    made["exact"].tokenizer.close()


@pytest.mark.parametrize(
    ("settings", "told"),
    [("{source: local}", "missing; `source: local` needs"), ("{tokenizer: /x}", "the folder of a tokenizer goes with")],
)
def test_folder_and_source_go_together(settings: str, told: str) -> None:
    """A folder that nobody reads, and a source without one, are mistakes."""
    with pytest.raises(ConfigError, match=rf"pools\.exact\.tokens\.tokenizer: {told}"):
        config(settings)


def test_the_check_command_loads_the_tokenizer(tmp_path: Path) -> None:
    """A folder without a tokenizer is found before it is needed, with the field at fault."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text(POOLS % f"{{source: local, tokenizer: {tmp_path}}}")
    with pytest.raises(ConfigError, match=r"pools\.exact\.tokens\.tokenizer: .*tokenizer\.json cannot be read"):
        check(path)
    write(tmp_path)
    check(path)


async def test_api_keys_follow_the_configuration(http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed variable counts from the next reload on; one that is gone is refused, and the old key stays."""
    monkeypatch.setenv("ENGINE_KEY", "s3cret")
    pools, keyed = token_pools(), parse("pools: {text: {endpoints: ['10.0.0.1:1'], api_key_env: ENGINE_KEY}}")
    pools.configure(keyed, http)
    assert (pools.keys.headers("text"), pools.keys.headers("other")) == ({"Authorization": "Bearer s3cret"}, {})
    monkeypatch.setenv("ENGINE_KEY", "other")
    pools.configure(keyed)
    assert pools.keys.headers("text") == {"Authorization": "Bearer other"}
    monkeypatch.delenv("ENGINE_KEY")
    with pytest.raises(ConfigError):
        pools.configure(keyed)
    assert pools.keys.headers("text") == {"Authorization": "Bearer other"}
