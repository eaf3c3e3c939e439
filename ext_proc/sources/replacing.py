"""Puts a file in the place of another as a whole, so that no reader and no crash ever sees half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file beside, and rename it into its place.

    Args:
        path: the file.
        content: all of it.
        mode: its permissions.

    Raises:
        OSError: it cannot be written; the old one stays.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
