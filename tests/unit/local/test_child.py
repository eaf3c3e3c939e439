"""Child processes that say when they are ready."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ext_proc.local.child import Child, ChildFailed, describe
from ext_proc.local.lifeline import Lifeline


@pytest.fixture
async def lifeline(tmp_path: Path) -> AsyncIterator[Lifeline]:
    """A lifeline in a folder of the test."""
    async with Lifeline(tmp_path) as lifeline:
        yield lifeline


def python(lifeline: Lifeline, code: str) -> Child:
    """Make a child that runs some Python and announces itself by `address`."""
    return Child("engine", lifeline, sys.executable, "-c", code, announces="address")


READY = """print('{"address": "here"}', flush=True); import time; time.sleep(60)"""


async def test_the_announcement_is_the_line_with_the_field(lifeline: Lifeline) -> None:
    """Other lines, JSON or not, are passed over."""
    code = "print('hello'); print('{broken'); print('{\"event\": 1}'); " + READY
    async with python(lifeline, code) as child:
        assert await child.announcement() == {"address": "here"}


async def test_leaving_the_context_stops_it(lifeline: Lifeline) -> None:
    """A child is asked to end."""
    async with python(lifeline, READY) as child:
        await child.announcement()
        failure = asyncio.create_task(child.failure())
    assert "signal SIGTERM" in str(await failure)


async def test_a_child_that_ends_early_fails_with_the_end_of_its_log(lifeline: Lifeline) -> None:
    """The error names the process, its exit code and its last lines."""
    async with python(lifeline, "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)") as child:
        with pytest.raises(ChildFailed, match=r"^engine ended with exit code 3; the end of its log:\n"):
            await child.announcement()


async def test_a_silent_child_that_ends_says_so(lifeline: Lifeline) -> None:
    """No log is no error of its own."""
    async with python(lifeline, "") as child:
        with pytest.raises(ChildFailed, match="exit code 0 and logged nothing"):
            await child.announcement()


async def test_a_child_that_never_announces_fails_in_time(lifeline: Lifeline) -> None:
    """Waiting has a bound."""
    async with python(lifeline, "import time; time.sleep(60)") as child:
        with pytest.raises(ChildFailed, match="was not ready after 0 s"):
            await child.announcement(timeout_s=0.1)


async def test_only_the_last_lines_are_kept(lifeline: Lifeline) -> None:
    """A chatty child costs no memory, and its last words are the ones shown."""
    async with python(lifeline, "[print('line', n) for n in range(100_000)]") as child:
        shown = str(await child.failure())
    assert "line 99999" in shown
    assert len(shown.splitlines()) == 21


async def test_a_line_without_end_is_cut(lifeline: Lifeline) -> None:
    """No line is too long to read on after it."""
    async with python(lifeline, "print('x' * 3_000_000); " + READY) as child:
        assert await child.announcement() == {"address": "here"}


@pytest.mark.parametrize(("code", "text"), [(2, "exit code 2"), (-signal.SIGKILL, "signal SIGKILL")], ids=str)
def test_exit_codes_are_named(code: int, text: str) -> None:
    """Signals have their names."""
    assert describe(code) == text
