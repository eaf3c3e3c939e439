"""What a check is: a requirement with its source, and a function that tries it."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

from ext_proc.conformance.messages import Request
from ext_proc.conformance.modes import ALL, Mode
from ext_proc.conformance.stream import Stream
from ext_proc.conformance.target import Target

PROTOCOL: Final = "Endpoint Picker protocol v1"
PROTO: Final = "Envoy ext_proc proto"
ENVOY: Final = "Envoy 1.40, measured"
"""Where requirements come from."""


class Level(enum.StrEnum):
    """How much a requirement binds."""

    MUST = "MUST"
    SHOULD = "SHOULD"


class Failed(Exception):
    """The target does not do what is required; the message is the evidence, in one line."""


class Skipped(Exception):
    """The check cannot be made; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is known of the target, and how hard it is tried.

    Attributes:
        model: a model that it serves; empty sends requests without one.
        path: path of a request with a chat as its body.
        endpoints: addresses that it may pick.
        complete: whether those are all of them.
        single: whether the data plane takes one address, and no list of them.
        patience_s: seconds that an answer may take.
        silence_s: seconds after which a message that nobody asked for is no longer waited for.
        prompt_s: seconds that a small request should take, Envoy's message_timeout unless it is told otherwise.
        limit_s: seconds that a huge or hostile request may take.
        huge_bytes: size of a huge body.
        bomb_mib: MiB that a small body decompresses to.
        streams: streams that are open at once.
    """

    model: str = ""
    path: str = "/v1/chat/completions"
    endpoints: tuple[str, ...] = ()
    complete: bool = False
    single: bool = False
    patience_s: float = 5.0
    silence_s: float = 0.2
    prompt_s: float = 0.2
    limit_s: float = 20.0
    huge_bytes: int = 6 * 1024 * 1024
    bomb_mib: int = 64
    streams: int = 200


@dataclasses.dataclass(frozen=True)
class Case:
    """A check in one mode."""

    target: Target
    mode: Mode
    settings: Settings

    def stream(self) -> Stream:
        """Begin a stream."""
        return self.target.stream()

    @property
    def endpoint(self) -> str:
        """An address that may be picked.

        Raises:
            Skipped: none is known.
        """
        if not self.settings.endpoints:
            raise Skipped("no endpoint is known: name one with --endpoint")
        return self.settings.endpoints[0]

    def chat(self, text: str = "Where does the Rhône end?") -> bytes:
        """Write the body of a chat."""
        model = f'"model":"{self.settings.model}",' if self.settings.model else ""
        return f'{{{model}"messages":[{{"role":"user","content":"{text}"}}],"max_tokens":4}}'.encode()

    def request(self, *pieces: bytes, **changes: object) -> Request:
        """Make a request; one with a small chat if no body is given."""
        plain = Request(path=self.settings.path, pieces=pieces or (self.chat(),))
        return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


Try: TypeAlias = Callable[[Case], Awaitable[str]]
"""Returns what was seen, in one line; raises Failed or Skipped."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A requirement.

    Attributes:
        id: its name, group and subject.
        requirement: what is required, in one sentence.
        source: who requires it.
        level: how much it binds.
        modes: in which modes it is tried.
        attempt: tries it.
    """

    id: str
    requirement: str
    source: str
    level: Level
    modes: tuple[Mode, ...]
    attempt: Try


def check(id_: str, source: str, *, level: Level = Level.MUST, modes: tuple[Mode, ...] = ALL) -> Callable[[Try], Check]:
    """Make a check of a function, whose docstring is the requirement."""

    def made(attempt: Try) -> Check:
        return Check(id_, " ".join((inspect.getdoc(attempt) or "").split()), source, level, modes, attempt)

    return made


async def together(*attempts: Coroutine[Any, Any, None]) -> None:
    """Make several attempts at once; the first failure ends them all and is raised."""
    tasks = [asyncio.create_task(attempt) for attempt in attempts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def demand(met: bool, evidence: str) -> None:
    """Raise Failed with the evidence unless a requirement is met."""
    if not met:
        raise Failed(evidence)
