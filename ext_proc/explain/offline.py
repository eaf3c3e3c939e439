"""Explains by a state that a kvpicker has shown, without that kvpicker."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ext_proc.assembly import build_core
from ext_proc.config import Config, load, located
from ext_proc.core.errors import ConfigError
from ext_proc.core.observer import NoObserver
from ext_proc.core.rehearsal import Asked, rehearse
from ext_proc.core.state import State, put_back
from ext_proc.ops.explanations import explain_rehearsal

_NOW = 0.0


def explain_by_state(path: Path, config_path: Path | None, asked: Asked) -> dict[str, Any]:
    """Return what the kvpicker of a state would have done with a request.

    Args:
        path: the file that holds the state.
        config_path: a configuration to decide by in place of the state's own; its endpoints do not count.
        asked: the request.

    Raises:
        ConfigError: a file cannot be used.
    """
    state = _read(path)
    config = _config_of(state, path) if config_path is None else load(config_path)
    _check_pools(state, config, config_path)
    kept = sum(len(endpoint.newest_blocks) for endpoint in state.endpoints)
    index = msgspec.structs.replace(config.index, max_blocks=max(config.index.max_blocks, kept))
    with located(config_path):
        core = build_core(msgspec.structs.replace(config, index=index), NoObserver())
    pools = {name: frozenset(pool.models) for name, pool in config.pools.items()}
    try:
        put_back(state, core, pools, _NOW)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{error}; write it anew from /debug/state", path="--state", where=str(path)) from None
    generator = random.Random(0)  # noqa: S311  breaks ties
    made = rehearse(core.picker, asked, _NOW, generator, inspect_bytes=config.prompts.inspect_bytes)
    told = explain_rehearsal(made)
    told["notes"] += _notes(state, kept)
    return told


def _read(path: Path) -> State:
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", path="--state", where=str(path)) from None
    except ValueError as error:
        raise ConfigError(f"this is not what /debug/state shows: {error}", path="--state", where=str(path)) from None


def _config_of(state: State, path: Path) -> Config:
    try:
        return msgspec.convert(state.config, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"its configuration is of another version ({state.version}): {error}; give one with --config",
            path="--state",
            where=str(path),
        ) from None


def _check_pools(state: State, config: Config, path: Path | None) -> None:
    """Refuse a configuration that has no strategy for the endpoints of the state."""
    pools = list(dict.fromkeys(endpoint.pool for endpoint in state.endpoints))
    missing = [pool for pool in pools if pool not in config.pools]
    if missing:
        raise ConfigError(
            f"the state has endpoints in {_listed(pools)}, the configuration has {_listed(config.pools)};"
            f" without {_listed(missing)} nothing can be decided, so name the pools as the state does",
            path="--config",
            where=str(path or ""),
        )


def _listed(pools: Iterable[str]) -> str:
    names = [f"`{pool}`" for pool in pools]
    return f"pool{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _notes(state: State, kept: int) -> list[str]:
    notes = ["decided by a written state, which holds no sessions, reputations or signals of engines"]
    blocks = sum(endpoint.blocks for endpoint in state.endpoints)
    if kept < blocks:
        notes.append(
            f"the state holds the {kept:,} blocks used last of {blocks:,}, so older prefixes seem not to be cached;"
            " ask for more with /debug/state?blocks="
        )
    return notes
