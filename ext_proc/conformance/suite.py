"""All checks, and running them."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import fnmatch
import time
from collections.abc import Callable, Sequence
from typing import Final

from ext_proc.conformance.check import Case, Check, Failed, Level, Settings, Skipped
from ext_proc.conformance.checks import (
    bodies,
    endings,
    health,
    hostile,
    mutations,
    order,
    parallel,
    picks,
    refusals,
    responses,
    subset,
)
from ext_proc.conformance.exchange import play
from ext_proc.conformance.modes import ALL, Mode
from ext_proc.conformance.target import Target

GROUPS: Final = (health, order, picks, subset, bodies, responses, refusals, mutations, endings, parallel, hostile)
CHECKS: Final[tuple[Check, ...]] = tuple(check for group in GROUPS for check in group.CHECKS)

_TIMES_LIMIT: Final = 4
_LEARNING: Final = 24
_LONGEST: Final = 240


class Verdict(enum.StrEnum):
    """What came of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclasses.dataclass(frozen=True)
class Result:
    """A check in one mode, and what came of it."""

    check: Check
    mode: Mode
    verdict: Verdict
    evidence: str
    seconds: float

    def breaks(self, *, strict: bool = False) -> bool:
        """Tell whether something that binds is not met; `strict` has all bind."""
        return self.verdict is Verdict.FAILED and (strict or self.check.level is Level.MUST)


def chosen(patterns: Sequence[str], modes: Sequence[Mode] = ALL) -> list[tuple[Check, Mode]]:
    """Return the checks whose id matches one of the patterns, in each of the modes; no pattern takes all."""
    return [
        (check, mode)
        for check in CHECKS
        if not patterns or any(fnmatch.fnmatchcase(check.id, pattern) for pattern in patterns)
        for mode in check.modes
        if mode in modes or mode is Mode.ANY
    ]


async def learn(target: Target, settings: Settings, modes: Sequence[Mode]) -> tuple[str, ...]:
    """Learn addresses of the pool from picks, by one if all are known; empty if there are none."""
    found: dict[str, None] = {}
    for number in range(1 if settings.complete else _LEARNING):
        case = Case(target, modes[0], settings)
        answer = next(iter((await play(case, case.request(case.chat(f"{number} {number}")))).picks), None)
        if answer is None:
            break
        for value in answer.values:
            found.update(dict.fromkeys(one.strip() for one in value.split(",")))
    return tuple(found)


async def run_all(
    target: Target,
    settings: Settings,
    checks: Sequence[tuple[Check, Mode]],
    begins: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Try checks one after the other; `begins` is told of each."""
    results = []
    for check, mode in checks:
        begins(f"{check.id} {mode}")
        results.append(await attempt(Case(target, mode, settings), check))
    return results


async def attempt(case: Case, check: Check) -> Result:
    """Try one check, in bounded time."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(_TIMES_LIMIT * case.settings.limit_s):
            verdict, evidence = Verdict.PASSED, await check.attempt(case)
    except Failed as failure:
        verdict, evidence = Verdict.FAILED, str(failure)
    except Skipped as reason:
        verdict, evidence = Verdict.SKIPPED, str(reason)
    except TimeoutError:
        verdict, evidence = Verdict.FAILED, "no answer in time"
    except Exception as error:  # noqa: BLE001  what a target says may confuse a check, but must not end the run
        verdict, evidence = Verdict.FAILED, f"the check could not go on: {type(error).__name__}: {error}"
    return Result(check, case.mode, verdict, _line(evidence), time.perf_counter() - began)


def _line(text: str) -> str:
    """Make of words of the target one short line that prints everywhere."""
    text = text.replace("\n", " ")
    if not text.isprintable():
        text = text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
