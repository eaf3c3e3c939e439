"""Files, compressed or not, and standard input as numbered lines of bounded length."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

from ext_proc.core.errors import ConfigError

LONGEST_LINE = 64 * 1024 * 1024
"""Bytes; a longer line is skipped, and of it never more than this is held."""

_STANDARD_INPUT = "-"
_GZIP_MAGIC = b"\x1f\x8b"


class BrokenFileError(Exception):
    """A file cannot be read to its end."""


@contextmanager
def opened(name: str, standard_input: BinaryIO) -> Iterator[IO[bytes]]:
    """Open a file by its name, `-` for standard input; gzip is found by its first bytes.

    Raises:
        ConfigError: it cannot be opened.
    """
    if name == _STANDARD_INPUT:
        yield _decompressed(standard_input)
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115  closed below; only failing to open is an error of the user
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{name}: {why}; give a file of requests, one JSON object a line") from None
    with file:
        yield _decompressed(file)


def lines(stream: IO[bytes], longest: int = LONGEST_LINE) -> Iterator[bytes | None]:
    """Give the lines of a stream; None stands for one that is too long.

    Raises:
        BrokenFileError: the stream fails, as a gzip file does that was cut off.
    """
    while True:
        try:
            line = stream.readline(longest + 1)
            if len(line) > longest and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = stream.readline(longest)
                yield None
                continue
        except (OSError, EOFError, zlib.error) as error:
            raise BrokenFileError(f"cannot be read further ({error})") from None
        if not line:
            return
        yield line


def _decompressed(stream: BinaryIO) -> IO[bytes]:
    peek = getattr(stream, "peek", None)
    is_gzip = peek is not None and peek(len(_GZIP_MAGIC))[: len(_GZIP_MAGIC)] == _GZIP_MAGIC
    return cast("IO[bytes]", gzip.GzipFile(fileobj=stream)) if is_gzip else stream
