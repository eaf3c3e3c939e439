"""Reads kvpicker's own log: its `request_finished` lines tell of lengths and times, not of prompts."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from ext_proc.core.model import GENERATING, Ending
from ext_proc.replay.lines import COARSE_BLOCK, TYPICAL_OUTPUT, Unshared, bounded, json_object, seconds_of
from ext_proc.sim.workload import SimRequest

_EVENT = "request_finished"
_ANSWERED = frozenset({Ending.OK, Ending.CLIENT_GONE})


class _FinishedLine(msgspec.Struct):
    time: str
    operation: str
    ending: str
    prompt_tokens: int
    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    completion_tokens: int | None = None


class DecisionLog:
    """Lines of kvpicker's log in JSON; a request came when its line was written less its duration.

    Lines of other events and of requests that no engine answered are passed over.
    """

    name: ClassVar[str] = "log"
    block_tokens: ClassVar[int] = COARSE_BLOCK
    note: ClassVar[str] = (
        "the log holds no prompts and no hashes of them: every prompt is taken as unique, so nothing can be cached; "
        "replay request bodies to compare what strategies make of prefixes"
    )

    def __init__(self) -> None:
        self._unshared = Unshared()
        self._decoder = msgspec.json.Decoder(_FinishedLine)

    @staticmethod
    def recognises(line: bytes) -> bool:
        """Tell whether a line is a log line of kvpicker's."""
        members = json_object(line)
        return "event" in members and "level" in members

    def read(self, line: bytes) -> SimRequest | None:
        """Return the request of a line; None if it is of another event or was not answered.

        Raises:
            ValueError: it is no JSON, or a field is missing or wrong.
        """
        members = json_object(line)
        if not members:
            raise ValueError("no JSON object; the log must be written with `log: {format: json}`")
        if members.get("event") != _EVENT:
            return None
        try:
            found = self._decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"{error}; the line must stand as kvpicker wrote it") from error
        if found.ending not in _ANSWERED or found.operation not in GENERATING:
            return None
        at = seconds_of(found.time, "time") - found.duration_ms / 1e3
        prompt = bounded(found.prompt_tokens, "prompt_tokens", 0) or 1
        output = TYPICAL_OUTPUT if found.completion_tokens is None else found.completion_tokens
        output = max(bounded(output, "completion_tokens", 0), 1)
        return SimRequest(at, prompt, output, self._unshared.blocks(prompt, self.block_tokens))
