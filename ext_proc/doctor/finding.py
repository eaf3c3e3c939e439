"""One thing that the doctor found, in plain words."""

from __future__ import annotations

import enum

import msgspec


class Level(enum.StrEnum):
    """How much a finding matters: a problem hurts now, advice would bring something."""

    PROBLEM = "problem"
    ADVICE = "advice"


class Finding(msgspec.Struct, frozen=True):
    """One thing to know.

    Attributes:
        level: how much it matters.
        where: the endpoint or the pool it is about.
        what: what was found.
        do: what to switch on or to change.
        brings: what that would bring.
    """

    level: Level
    where: str
    what: str
    do: str = ""
    brings: str = ""
