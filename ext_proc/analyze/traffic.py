"""Traffic from files: the records in them, and an account of the lines that held none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from ext_proc.analyze.formats import LineReader, UnusableError
from ext_proc.analyze.lines import BrokenFileError, lines, opened
from ext_proc.analyze.record import Record

EXAMPLES = 5


class Traffic:
    """Reads files one after the other; counts what it cannot use and goes on.

    Args:
        names: files, `-` for standard input.
        reader: makes records of lines.
        standard_input: where `-` is read from.
    """

    def __init__(self, names: Sequence[str], reader: LineReader, standard_input: BinaryIO) -> None:
        self.lines = 0
        self.unusable: Counter[str] = Counter()
        self.examples: list[str] = []
        self._names = names
        self._reader = reader
        self._standard_input = standard_input

    def records(self) -> Iterator[Record]:
        """Give the records of all files.

        Raises:
            ConfigError: a file cannot be opened.
        """
        for name in self._names:
            with opened(name, self._standard_input) as stream:
                yield from self._records_of(name, lines(stream))

    def _records_of(self, name: str, texts: Iterator[bytes | None]) -> Iterator[Record]:
        number = 0
        try:
            for number, text in enumerate(texts, 1):
                if text is not None and not text.strip():
                    continue
                self.lines += 1
                try:
                    if text is None:
                        raise UnusableError("line too long")  # noqa: TRY301  one place that counts
                    yield self._reader.read(text)
                except UnusableError as error:
                    self._note(name, number, str(error))
        except BrokenFileError as error:
            self._note(name, number + 1, str(error))

    def _note(self, name: str, number: int, reason: str) -> None:
        self.unusable[reason] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{name}:{number}: {reason}")
