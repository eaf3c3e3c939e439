"""Each check fails at a picker that is broken in the way it looks for, and at no other."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from ext_proc.conformance.modes import ALL
from ext_proc.conformance.suite import CHECKS, Result, Verdict
from tests.conformance.breaks import BREAKS
from tests.conformance.trying import noticed, results

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, list[Result]]:
    """Try all breaks that tests ask for, some at a time."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    asked = (
        item.callspec.params.get("name") for item in items if hasattr(item, "callspec") and item.path == request.path
    )
    return asyncio.run(noticed(name for name in asked if name))


@pytest.mark.parametrize("name", BREAKS)
def test_a_break_is_noticed_by_its_checks_and_by_no_other(name: str, found: dict[str, list[Result]]) -> None:
    """Exactly the checks fail that look at what is broken; the others of their groups pass."""
    failed = {result.check.id: result.evidence for result in found[name] if result.verdict is not Verdict.PASSED}
    assert set(failed) == BREAKS[name].checks, failed


async def test_the_unbroken_picker_passes_everything() -> None:
    """No check fails or is skipped without a reason, in any mode."""
    assert {
        f"{result.check.id}[{result.mode}]": result.evidence
        for result in await results("", (), ALL)
        if result.verdict is not Verdict.PASSED
    } == {}


def test_every_check_has_a_break() -> None:
    """A check that nothing can fail would say nothing."""
    broken = set().union(*(one.checks for one in BREAKS.values()))
    assert {check.id for check in CHECKS} - broken == set()
    assert broken - {check.id for check in CHECKS} == set()


def test_every_break_breaks_something() -> None:
    """The names that the picker asks for are those that are tried."""
    sources = "".join(
        (HERE / f"{name}.py").read_text("utf-8") for name in ("picker", "answering", "choosing", "decorating")
    )
    assert {name for name in BREAKS if f'"{name}"' not in sources} == set()
    assert set(re.findall(r'has\("([a-z0-9-]+)"\)', sources)) - set(BREAKS) == set()
