"""A private folder and children that do not outlive their owner."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.local.lifeline import Lifeline

OWNER = """
import asyncio, sys
from pathlib import Path
from ext_proc.local.lifeline import Lifeline
async def main():
    async with Lifeline(Path(sys.argv[1])) as lifeline:
        child = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
        lifeline.watch(child.pid)
        print(child.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_the_folder_is_private(tmp_path: Path) -> None:
    """Only its owner may look into it."""
    async with Lifeline(tmp_path) as lifeline:
        assert stat.S_IMODE(lifeline.folder.stat().st_mode) == 0o700


async def test_the_folder_is_gone_afterwards(tmp_path: Path) -> None:
    """Leaving the context removes it with all in it."""
    async with Lifeline(tmp_path) as lifeline:
        (lifeline.folder / "file").write_text("x")
    assert content(tmp_path) == []


async def test_the_folder_is_gone_after_an_error(tmp_path: Path) -> None:
    """An exception changes nothing."""
    with pytest.raises(KeyError):
        async with Lifeline(tmp_path):
            raise KeyError
    assert content(tmp_path) == []


async def test_a_forgotten_process_lives_on(tmp_path: Path) -> None:
    """What was taken back is not ended with the lifeline."""
    process = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    async with Lifeline(tmp_path) as lifeline:
        lifeline.watch(process.pid)
        lifeline.forget(process.pid)
    assert process.returncode is None
    process.kill()
    assert await process.wait() == -signal.SIGKILL


async def test_a_watched_process_ends_with_it(tmp_path: Path) -> None:
    """What was not taken back is ended."""
    process = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    async with Lifeline(tmp_path) as lifeline:
        lifeline.watch(process.pid)
    assert await asyncio.wait_for(process.wait(), 10) == -signal.SIGTERM


async def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    """The message says which place and what to set."""
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ConfigError, match=r"cannot write to .*/file: Not a directory; set TMPDIR"):
        await Lifeline(file).__aenter__()


async def test_a_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    """After SIGKILL of the owner its child and its folder go within 5 s."""
    command = (sys.executable, "-c", OWNER, str(tmp_path))
    owner = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    child = int(await owner.stdout.readline())
    owner.kill()
    await owner.wait()
    async with asyncio.timeout(5):
        while content(tmp_path) or alive(child):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def content(folder: Path) -> list[Path]:
    """List a folder."""
    return list(folder.iterdir())


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has reaped does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
