"""Shows progress: a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console

PLAIN_WIDTH = 120


def console(stream: IO[str]) -> Console:
    """Make a console; what is no terminal has no width of its own, so tables get one that fits them."""
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


class Steps:
    """Names each step while it lasts and says how long it took.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show `text` until the block ends; a step that fails says nothing more."""
        started = time.monotonic()
        if self.console.is_terminal:
            with self.console.status(f"{text} …"):
                yield
        else:
            self.say(f"{text} …")
            yield
        self.say(f"{text}: done in {time.monotonic() - started:.1f} s")

    def say(self, text: str) -> None:
        """Print a line as it is, whatever its length, so that it can be copied."""
        self.console.print(text, soft_wrap=True)
