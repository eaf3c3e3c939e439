"""What is cleaned up after a process that was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ext_proc.local import guard

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"


def start(code: str) -> subprocess.Popen[str]:
    """Start a Python process in a session of its own and wait for its first line."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[str]]:
    """A process that does not mind SIGTERM."""
    with start(STUBBORN) as process:
        yield process
        process.kill()


def test_what_has_ended_is_not_ended_again() -> None:
    """A group that was taken back is none of those to end."""
    assert guard.follow(["+12\n", "+13\n", "-12\n"]) == {13}


def test_taking_back_an_unknown_group_does_nothing() -> None:
    """Orders may be repeated."""
    assert guard.follow(["-12\n", "+12\n", "-12\n", "-12\n"]) == set()


def test_a_process_is_asked_to_end() -> None:
    """SIGTERM is enough for a process that heeds it."""
    with start("import time; print('on', flush=True); time.sleep(60)") as process:
        guard.end({process.pid}, grace=0.1)
        assert process.wait(10) == -signal.SIGTERM


def test_a_stubborn_process_is_killed(stubborn: subprocess.Popen[str]) -> None:
    """SIGKILL follows when the grace is over."""
    guard.end({stubborn.pid}, grace=0.1)
    assert stubborn.wait(10) == -signal.SIGKILL


def test_groups_that_are_gone_are_no_error() -> None:
    """Ending nothing does nothing."""
    with start("print('on')") as process:
        process.wait(10)
    guard.end({process.pid}, grace=0.1)


def test_a_folder_goes_with_all_in_it(tmp_path: Path) -> None:
    """Removal is recursive."""
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner" / "file").write_text("x")
    guard.remove(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    """There may be nothing to remove."""
    guard.remove(tmp_path / "never")


def test_the_script_cleans_up_when_its_input_ends(tmp_path: Path, stubborn: subprocess.Popen[str]) -> None:
    """Run as a script, it ends the group that it was told of and removes its folder."""
    command = [sys.executable, "-I", "-S", guard.__file__, str(tmp_path)]
    subprocess.run(command, input=f"+{stubborn.pid}\n", text=True, check=True, timeout=10)
    assert stubborn.wait(10) == -signal.SIGKILL
    assert not tmp_path.exists()
