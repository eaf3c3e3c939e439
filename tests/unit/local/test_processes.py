"""Child processes end with their parent, and when they are told to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ext_proc.local.processes import spawn, stop

PARENT = """
import asyncio, sys
from ext_proc.local.processes import spawn

async def main():
    child = await spawn("sh", "-c", "echo $$; exec sleep 60")
    await child.wait()

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="a service of the Linux kernel")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_child_ends_with_its_parent(how: signal.Signals) -> None:
    """However the parent ends, the child ends too."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(how)
    deadline = time.monotonic() + 5
    while alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_output_and_exit_code() -> None:
    """A child's output and exit code can be read, and it keeps its process id through the start."""
    child = await spawn("sh", "-c", "echo $$; echo oops >&2; exit 3", output=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    assert await child.stdout.read() == f"{child.pid}\noops\n".encode()
    assert await child.wait() == 3


async def test_stop() -> None:
    """A child that obeys ends by the signal; stopping it twice is harmless."""
    child = await spawn("sleep", "60")
    assert await stop(child) == -signal.SIGTERM
    assert await stop(child) == -signal.SIGTERM


async def test_stop_stubborn() -> None:
    """A child that ignores the request is killed after the grace period."""
    child = await spawn(
        "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done", output=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"ready\n"
    assert await stop(child, grace=0.1) == -signal.SIGKILL


async def test_missing_program() -> None:
    """A program that is not there is a failed child."""
    child = await spawn("/nowhere/program", output=asyncio.subprocess.DEVNULL)
    assert await child.wait() == 1


async def test_session_of_its_own() -> None:
    """Ctrl-C in the terminal reaches the parent alone."""
    child = await spawn("sleep", "60")
    assert os.getsid(child.pid) != os.getsid(0)
    await stop(child)
