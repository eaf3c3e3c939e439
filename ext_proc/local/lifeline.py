"""A private folder and child processes that are cleaned up even if this process is killed outright."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Self

from ext_proc.core.errors import ConfigError
from ext_proc.local import guard


class Lifeline:
    """Holds one end of a pipe; when the other end's process reads that it closed, it ends and removes what is left.

    Args:
        parent: where the private folder is made; None takes the system's place for temporary files.

    Attributes:
        folder: the private folder; it exists while the context is entered.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self.folder = Path()
        self._parent = parent
        self._pipe = -1
        self._guard: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        """Start the guard, then make the folder.

        Raises:
            ConfigError: there is no place for temporary files that can be written to.
        """
        try:
            parent = self._parent or Path(tempfile.gettempdir())
        except OSError as error:
            raise ConfigError(f"{error.strerror}; set TMPDIR to a folder that can be written to") from None
        self.folder = parent / f"kvpicker-{secrets.token_hex(8)}"
        await self._start_guard()
        try:
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            await self._close()
            raise ConfigError(
                f"cannot write to {parent}: {error.strerror}; set TMPDIR to a folder that can be written to"
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        """Remove the folder and let the guard end."""
        await self._close()

    def watch(self, pid: int) -> None:
        """Have the process group of a child ended, should this process be killed."""
        self._order(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        """Take back `watch`: the child has ended, and its number may come to mean something else."""
        self._order(f"-{pid}\n")

    async def _start_guard(self) -> None:
        reading, self._pipe = os.pipe()
        try:
            # A session of its own: a signal to the whole group of this process must not reach it.
            self._guard = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", guard.__file__, str(self.folder)),
                stdin=reading,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)

    async def _close(self) -> None:
        """The guard does the removal, on the same path as after a kill."""
        os.close(self._pipe)
        if self._guard is not None:
            await self._guard.wait()

    def _order(self, order: str) -> None:
        # Without a guard everything but a kill is still cleaned up.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, order.encode())
