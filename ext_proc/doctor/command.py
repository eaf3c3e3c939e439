"""The options of the command `kvpicker doctor`, and which engines it asks."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from ext_proc.assembly import scrape_token
from ext_proc.config import Config, load, parse_endpoints
from ext_proc.core.errors import ConfigError
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.doctor.advice import findings
from ext_proc.doctor.examination import TIMEOUT_S, Examination, examine
from ext_proc.doctor.finding import Finding, Level
from ext_proc.doctor.running import heard, misfits
from ext_proc.sources.api_keys import NO_HEADERS, read_keys
from ext_proc.sources.kv_publishers import publishers
from ext_proc.sources.scrape import metrics_source
from ext_proc.token_pools import local_tokenizer

HELP: Final = "ask each configured engine what it can tell, and say what to switch on"

DESCRIPTION: Final = """\
Asks every engine of a configuration file what it is, whether its metrics, KV events and
tokenizer can be used, and whether block sizes agree; says in plain words what is wrong,
what to switch on, and what that would bring. Only reads, unless --probe is given. If a
kvpicker runs with this file, it says how listening to KV events goes, and which settings
of its Envoy keep it from its part.

The exit status is 0 if nothing is wrong (advice is not wrong), 1 if there is a problem,
2 if the configuration cannot be used.
"""

_AT_ONCE: Final = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the `doctor` command."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("config", type=Path, help="configuration file")
    add("--probe", action="store_true", help="have each engine generate one token, to see what its usage tells")
    add("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help="bound on each question (%(default)g)")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; return 1 if there is a problem, else 0.

    Raises:
        ConfigError: the configuration cannot be used, or names no engine.
    """
    config = load(arguments.config)
    registry = registered(config)
    examined, of_envoy = asyncio.run(_examine(config, registry, arguments))
    found = [*of_envoy, *findings(examined, config.pools)]
    if arguments.json:
        told = {"engines": examined, "findings": found}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
    else:
        from ext_proc.doctor.report import show  # noqa: PLC0415  slow to import; not needed for JSON

        show(examined, found, sys.stdout)
    return int(any(finding.level is Level.PROBLEM for finding in found))


async def _examine(
    config: Config, registry: Registry, arguments: argparse.Namespace
) -> tuple[list[Examination], list[Finding]]:
    """Ask all engines, and the kvpicker that runs with the configuration, if one does."""
    listening, of_envoy, examined = await asyncio.gather(
        heard(config, arguments.config, arguments.timeout),
        misfits(arguments.config, arguments.timeout),
        examine_all(config, registry, probe=arguments.probe, timeout_s=arguments.timeout),
    )
    for one in examined:
        one.publishers = listening.get(one.endpoint, ())
    return examined, of_envoy


def registered(config: Config) -> Registry:
    """Register the endpoints that a configuration lists itself and in its files.

    Raises:
        ConfigError: a file cannot be used, or there is no endpoint at all.
    """
    registry = Registry(config.default_pool)
    for name, pool in config.pools.items():
        specs = [*pool.specs, *(_listed(name, pool.endpoints_file, pool.models) if pool.endpoints_file else ())]
        registry.replace(name, specs, frozenset(pool.models))
    if not registry.snapshot.endpoints:
        raise ConfigError("no endpoint is listed, here or in a file", path="pools")
    return registry


async def examine_all(config: Config, registry: Registry, *, probe: bool, timeout_s: float) -> list[Examination]:
    """Ask all engines, some at a time, and return what they answered in their order.

    Raises:
        ConfigError: the token for their metrics or a key is not there, or a local tokenizer cannot be used.
    """
    token, keys, turns, pools = scrape_token(config), read_keys(config), asyncio.Semaphore(_AT_ONCE), config.pools
    tokenizers = {name: local_tokenizer(name, config) for name in pools}
    async with aiohttp.ClientSession(auto_decompress=True) as session:

        async def ask(endpoint: Endpoint) -> Examination:
            pool = pools.get(endpoint.pool)
            source, events = metrics_source(endpoint, pool), publishers(endpoint, pool)
            async with turns:
                return await examine(
                    session,
                    endpoint,
                    source,
                    token=token,
                    headers=keys.get(endpoint.pool, NO_HEADERS),
                    probe=probe,
                    events=events,
                    local=tokenizers.get(endpoint.pool),
                    timeout_s=timeout_s,
                )

        try:
            return await asyncio.gather(*map(ask, registry.snapshot.endpoints))
        finally:
            for tokenizer in tokenizers.values():
                if tokenizer is not None:
                    tokenizer.close()


def _listed(pool: str, name: str, models: tuple[str, ...]) -> tuple[EndpointSpec, ...]:
    path = Path(name)
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path=f"pools.{pool}.endpoints_file") from None
    except UnicodeDecodeError as error:
        what = f"{path} is not UTF-8 text: byte {error.start}"
        raise ConfigError(what, path=f"pools.{pool}.endpoints_file") from None
    return parse_endpoints(text, str(path), models)
