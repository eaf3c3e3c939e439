"""Runs checks against the picker that can be broken."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from ext_proc.conformance.check import Settings
from ext_proc.conformance.modes import Mode
from ext_proc.conformance.suite import Result, chosen, run_all
from ext_proc.conformance.target import Address, Target
from tests.conformance.breaks import BREAKS
from tests.conformance.choosing import POOL
from tests.conformance.picker import Picker

SETTINGS: Final = Settings(
    model="acme/chat-8b",
    endpoints=POOL,
    complete=True,
    single=True,
    patience_s=1.5,
    silence_s=0.06,
    prompt_s=0.6,
    limit_s=5.0,
    huge_bytes=400_000,
    bomb_mib=1,
    streams=40,
)
"""Sizes that make the suite short; what is tried stays the same."""

_DEAR: Final = frozenset({"body.splits", "response.splits"})
"""Checks that cost as much as all others of their group; they are tried with the breaks that they must notice."""

_AT_ONCE: Final = 4
"""Pickers at once: a hanging one is only waited for."""


async def results(
    broken: str, patterns: Sequence[str], modes: Sequence[Mode], besides: Collection[str] = ()
) -> list[Result]:
    """Try the chosen checks, and none of some others, against a picker that is broken in one way, or in none."""
    checks = [(check, mode) for check, mode in chosen(patterns, modes) if check.id not in besides]
    async with Picker(broken).serving() as where:
        address = Address(where=where)
        async with Target(address, address, SETTINGS.patience_s) as target:
            await target.reach()
            return await run_all(target, SETTINGS, checks)


async def noticed(names: Iterable[str]) -> dict[str, list[Result]]:
    """Return for each break what came of the checks that it is tried with."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> tuple[str, list[Result]]:
        async with turns:
            broken = BREAKS[name]
            return name, await results(name, broken.patterns, broken.modes, _DEAR - broken.checks)

    return dict(await asyncio.gather(*map(one, names)))
