"""What the checks say of themselves."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from ext_proc import conformance
from ext_proc.conformance import checks
from ext_proc.conformance.check import Case, Check, Failed, Level, Settings
from ext_proc.conformance.modes import ALL, NONE, Mode
from ext_proc.conformance.suite import CHECKS, Verdict, attempt, chosen
from ext_proc.conformance.target import Address, Target


def test_every_check_that_is_written_is_tried() -> None:
    """None is forgotten in its module's list, and no two share an id."""
    names = [module.name for module in pkgutil.iter_modules(checks.__path__)]
    modules = [importlib.import_module(f"{checks.__name__}.{name}") for name in names]
    written = {value.id for module in modules for value in vars(module).values() if isinstance(value, Check)}
    assert {check.id for check in CHECKS} == written
    assert len(CHECKS) == len(written)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_a_check_says_what_is_required_and_by_whom(check: Check) -> None:
    """One sentence, a source, and modes in their order."""
    assert check.requirement.endswith(".")
    assert check.requirement[:1].isupper() or check.requirement.startswith(("clear_route_cache", "override_"))
    assert check.source
    assert check.modes == NONE or list(check.modes) == [mode for mode in ALL if mode in check.modes]


def test_checks_are_chosen_by_pattern_and_mode() -> None:
    """What has no mode is chosen in any."""
    assert {(check.id, mode) for check, mode in chosen(["body.cut", "health.live*"], [Mode.LEAN])} == {
        ("body.cut", Mode.LEAN),
        ("health.liveness", Mode.ANY),
    }
    assert chosen(["body.cut"], [Mode.DUPLEX]) == []


async def test_words_of_a_target_become_one_line() -> None:
    """Evidence is short and prints everywhere, and a check that hangs fails."""

    async def loud(_: Case) -> str:
        raise Failed("a\nb\x1b[31m" + "x" * 1000)

    async def late(_: Case) -> str:
        raise TimeoutError

    nobody = Address(where="127.0.0.1:1")
    case = Case(Target(nobody, nobody, 1.0), Mode.LEAN, Settings())
    results = [await attempt(case, Check("a.b", "It.", "we", Level.MUST, ALL, each)) for each in (loud, late)]
    assert [result.verdict for result in results] == [Verdict.FAILED, Verdict.FAILED]
    assert results[0].evidence.startswith("a b\\x1b[31mxxx")
    assert len(results[0].evidence) < 300
    assert results[1].evidence == "no answer in time"


def test_nothing_of_the_picker_is_used() -> None:
    """The checks would be no judge of kvpicker if they shared code with it."""
    sources = [path.read_text("utf-8") for path in Path(conformance.__file__).parent.rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"(?:from|import) (ext_proc[.\w]*)", text)}
    assert {name for name in used if not name.startswith("ext_proc.conformance")} == set()
