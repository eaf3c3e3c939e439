"""Writes a file that a command was asked for: whole at the end or not at all, and never over what it reads."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ext_proc.core.errors import ConfigError

_STANDARD_INPUT = "-"


@contextmanager
def whole_file(path: Path | None, inputs: Iterable[str | Path], option: str) -> Iterator[Callable[[str], None]]:
    """Give a function that takes the text of the file; an existing file stays as it is until then.

    A place that cannot be written is refused at once, since that is better known before minutes of work. The text goes
    to a temporary file beside, which takes the place of the file at the end of the block; if the block fails or is
    interrupted, or gives no text, it is removed. What is no regular file, such as a pipe, is written as it is.

    Args:
        path: the file; None takes the text and writes nothing.
        inputs: what the command reads, `-` for standard input.
        option: by which the user named the file.

    Raises:
        ConfigError: the file is among the inputs, or cannot be written.
    """
    if path is None:
        yield _nowhere
    elif os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113  those of Path raise
        if path.is_dir():
            raise ConfigError(f"{path} is a directory; give {option} a file that can be written", path=option)
        yield partial(_write, path, path, option)
    else:
        if any(_is_same(path, name) for name in inputs):
            raise ConfigError(f"{path} is what is read; give another file", path=option)
        draft = _draft(path, option)
        try:
            yield partial(_write, draft, path, option)
            if draft.stat().st_size:
                with _refusals(path, option):
                    draft.replace(path.resolve())
        finally:
            draft.unlink(missing_ok=True)


def _draft(path: Path, option: str) -> Path:
    """Make the temporary file, with the rights of the file if that is there."""
    target = path.resolve()
    draft = target.parent / f".kvpicker-{secrets.token_hex(4)}.part"
    with _refusals(path, option):
        if target.exists():
            target.open("ab").close()
        draft.touch(exist_ok=False)
        if target.exists():
            shutil.copymode(target, draft)
    return draft


def _write(to: Path, path: Path, option: str, text: str) -> None:
    with _refusals(path, option):
        to.write_text(text, "utf-8")


@contextmanager
def _refusals(path: Path, option: str) -> Iterator[None]:
    """Tell the user why the file cannot be written."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{path}: {why}; give {option} a file that can be written", path=option) from error


def _is_same(path: Path, name: str | Path) -> bool:
    """Tell whether an input is the same file, whatever the names; standard input may be a file too."""
    try:
        written = path.stat()
        read = os.fstat(sys.stdin.fileno()) if str(name) == _STANDARD_INPUT else Path(name).stat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(read.st_mode) and os.path.samestat(written, read)


def _nowhere(_text: str) -> None:
    """Write nothing."""
