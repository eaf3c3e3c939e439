"""Child processes that never outlive the process that started them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

STOP_TIMEOUT = 5.0

# Runs in the child and becomes the real program: the signal (1 = PR_SET_PDEATHSIG, 15 = SIGTERM) survives the exec.
# Not a preexec_fn, because that needs a fork, and gRPC's threads do not survive a fork.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def die_with_parent(*argv: str | Path) -> list[str]:
    """Prefix a command so that the kernel ends it with this process (Linux; elsewhere it stays as it is).

    The signal is SIGTERM. It follows the thread that starts the command, so start children from a thread that stays.
    """
    command = [str(part) for part in argv]
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


async def spawn(
    *argv: str | Path, output: IO[bytes] | int | None = None, env: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start a child that ends with this process; `output` takes its stdout and stderr (a file, or asyncio's PIPE).

    It gets no stdin and a session of its own, so that Ctrl-C reaches this process alone, which then stops it in order.
    """
    return await asyncio.create_subprocess_exec(
        *die_with_parent(*argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output if output is None else asyncio.subprocess.STDOUT,
        env=env,
        start_new_session=True,
    )


async def stop(process: asyncio.subprocess.Process, grace: float = STOP_TIMEOUT) -> int:
    """Ask a child to end, make it end after `grace` seconds, and return its exit code."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), grace)
        except TimeoutError:
            process.kill()
    return await process.wait()
