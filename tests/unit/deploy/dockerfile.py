"""Reads a Dockerfile, as far as ours goes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy" / "container" / "Dockerfile"

KNOWN = {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "LABEL", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}


class Instruction(NamedTuple):
    """One instruction: its word and the rest of its line."""

    word: str
    text: str


def stages(text: str) -> list[list[Instruction]]:
    """Read a Dockerfile; the stages, each beginning with its FROM, after a first part without one.

    Raises:
        ValueError: there is a line that is no instruction known here.
    """
    found: list[list[Instruction]] = [[]]
    lines = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", text)).splitlines()
    for line in filter(str.strip, lines):
        word, _, rest = line.partition(" ")
        if word not in KNOWN or not rest.strip():
            raise ValueError(f"no instruction: {line}")
        if word == "FROM":
            found.append([])
        found[-1].append(Instruction(word, rest.strip()))
    return found


def texts(stage: list[Instruction], word: str) -> list[str]:
    """Return what stands behind each instruction of one word."""
    return [each.text for each in stage if each.word == word]


def copied(stage: list[Instruction]) -> list[tuple[list[str], str]]:
    """Return what a stage copies from the build's folder, and where to."""
    found = [shlex.split(text) for text in texts(stage, "COPY")]
    return [(words[:-1], words[-1]) for words in found if not words[0].startswith("--")]


def vector(stage: list[Instruction], word: str) -> list[str]:
    """Return the words of an ENTRYPOINT or CMD in JSON."""
    (text,) = texts(stage, word)
    words: list[str] = json.loads(text)
    return words
