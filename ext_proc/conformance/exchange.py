"""Plays Envoy's part in one HTTP exchange, and keeps all that the target answered.

Nothing is judged here but silence: a check looks at one thing in the transcript and must not fail for another.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import grpc
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc

from ext_proc.conformance import messages
from ext_proc.conformance.answers import PATIENCE, Answer
from ext_proc.conformance.check import Case, Failed
from ext_proc.conformance.messages import Request, Response
from ext_proc.conformance.modes import Mode
from ext_proc.conformance.stream import Stream

_MOST: Final = 4_000
"""Answers to one request that are kept."""


@dataclasses.dataclass
class Transcript:
    """What came of an exchange.

    Attributes:
        answers: all answers in order.
        replies: in serial modes, each message's kind with the first answer after it; None if the stream ended.
        unanswered: what was waited for in vain; empty if nothing was.
        extra: answers that came when none was due.
        ended: whether the target ended the stream before the client closed its half.
        over: whether the stream ended in the end.
        status: how it ended; None if that is not known.
    """

    answers: list[Answer] = dataclasses.field(default_factory=list)
    replies: list[tuple[str, Answer | None]] = dataclasses.field(default_factory=list)
    unanswered: str = ""
    extra: list[Answer] = dataclasses.field(default_factory=list)
    ended: bool = False
    over: bool = False
    status: grpc.StatusCode | None = None

    @property
    def kinds(self) -> list[str]:
        """The kinds of all answers."""
        return [answer.kind for answer in self.answers]

    @property
    def refusal(self) -> ext_proc.ImmediateResponse | None:
        """The answer to the client in place of an engine's, if there is one."""
        return next((answer.refusal for answer in self.answers if answer.refusal is not None), None)

    @property
    def refused(self) -> int:
        """The HTTP status of the refusal; 0 if there is none."""
        status = None if self.refusal is None else self.refusal.status
        return 0 if status is None else int(status.code)

    @property
    def picks(self) -> list[Answer]:
        """The answers that name an endpoint, in header or metadata."""
        return [answer for answer in self.answers if answer.values]

    @property
    def said(self) -> str:
        """What came of it, in a few words."""
        if self.unanswered:
            return f"no answer to {self.unanswered} in time"
        if self.refused:
            return f"refused with {self.refused}"
        if self.status is not None and self.status is not grpc.StatusCode.OK:
            return f"the stream ended with {self.status.name}"
        return f"answers: {', '.join(dict.fromkeys(self.kinds)) or 'none'}"

    def pick(self) -> Answer:
        """Return the answer with the pick.

        Raises:
            Failed: there is none.
        """
        if self.unanswered or not self.picks:
            raise Failed(f"no pick; {self.said}")
        return self.picks[0]

    def destination(self) -> str:
        """Return the first address that was picked, wherever it stands; raises Failed if none was."""
        return self.pick().values[0].partition(",")[0].strip()

    def pieces(self, kind: str) -> list[ext_proc.StreamedBodyResponse]:
        """Return the pieces of a body in full duplex."""
        return [answer.piece for answer in self.answers if answer.kind == kind and answer.piece is not None]

    def body(self, kind: str) -> bytes:
        """Return the body that goes on in full duplex."""
        return b"".join(piece.body for piece in self.pieces(kind))

    def ends(self, kind: str) -> list[int]:
        """Return at which pieces of a body it was said to end."""
        return [number for number, piece in enumerate(self.pieces(kind)) if piece.end_of_stream]


async def play(
    case: Case, request: Request, response: Response | None = None, *, linger: bool = False, twice: bool = False
) -> Transcript:
    """Send a request and, if it is not refused, an engine's answer.

    Args:
        case: where and how.
        request: what the client sends.
        response: what the engine answers; None ends the exchange before it does.
        linger: whether to wait for answers that nobody asked for.
        twice: whether the last message is sent once more.
    """
    async with case.stream() as stream:
        player = _Player(stream, case, Transcript())
        parts = request_messages(request, case.mode)
        try:
            await player.ask([*parts, parts[-1]] if twice else parts, "request", request.trailers is not None)
            if response is not None and not player.over:
                await player.ask(_response_messages(response, case.mode), "response", response.trailers is not None)
        except TimeoutError:
            player.transcript.unanswered = player.awaited
        await player.finish(linger)
        return player.transcript


def request_messages(request: Request, mode: Mode) -> list[tuple[str, bytes]]:
    """Write all messages of a request, each with its kind."""
    found = [("request_headers", messages.request_headers(request, mode))]
    pieces = request.pieces if mode in (Mode.STREAMED, Mode.DUPLEX) or not request.pieces else (request.body,)
    ends = request.trailers is None and request.last
    for number, piece in enumerate(pieces, 1):
        found.append(("request_body", messages.request_body(piece, last=ends and number == len(pieces))))
    if request.trailers is not None:
        found.append(("request_trailers", messages.request_trailers(request.trailers)))
    return found


def _response_messages(response: Response, mode: Mode) -> list[tuple[str, bytes]]:
    found = [("response_headers", messages.response_headers(response))]
    if mode not in (Mode.STREAMED, Mode.DUPLEX):
        return found
    for number, piece in enumerate(response.pieces, 1):
        last = response.trailers is None and number == len(response.pieces)
        found.append(("response_body", messages.response_body(piece, last=last)))
    if response.trailers is not None:
        found.append(("response_trailers", messages.response_trailers(response.trailers)))
    return found


class _Player:
    """Sends and waits as Envoy does in the mode of a case."""

    def __init__(self, stream: Stream, case: Case, transcript: Transcript) -> None:
        self.transcript = transcript
        self.awaited = ""
        self._stream = stream
        self._case = case

    @property
    def over(self) -> bool:
        """Whether Envoy would send nothing more."""
        return self._stream.ended or self.transcript.refusal is not None

    async def ask(self, parts: list[tuple[str, bytes]], side: str, trailers: bool) -> None:
        """Send messages, and wait for what must come of them."""
        if self._case.mode is Mode.DUPLEX:
            for _, message in parts:
                await self._stream.send(message)
            self.awaited = f"{side}_headers"
            await self._until(f"{side}_headers", whole=len(parts) == 1, trailers=trailers, side=side)
            return
        for kind, message in parts:
            if self.over:
                return
            self.awaited = kind
            await self._stream.send(message)
            answer = await self._next()
            self.transcript.replies.append((kind, answer))

    async def _until(self, headers: str, *, whole: bool, trailers: bool, side: str) -> None:
        """Wait for the answers in full duplex, until the last of them has come."""
        seen = self.transcript
        while not self.over:
            if headers in seen.kinds:
                self.awaited = f"the end of the {side}"
                last = f"{side}_trailers" in seen.kinds if trailers else whole or seen.ends(f"{side}_body")
                if last:
                    return
            await self._next()

    async def _next(self) -> Answer | None:
        while (answer := await self._stream.next()) is not None:
            self._keep(answer)
            if answer.kind != PATIENCE:
                return answer
        self.transcript.ended = True
        return None

    def _keep(self, answer: Answer) -> None:
        self.transcript.answers.append(answer)
        if len(self.transcript.answers) > _MOST:
            raise Failed(f"more than {_MOST:,} answers to one request")

    async def finish(self, linger: bool) -> None:
        """Close the client's half, and take what still comes."""
        seen = self.transcript
        if linger:
            await self._rest(self._case.settings.silence_s)
            seen.ended = self._stream.ended
        await self._stream.half_close()
        await self._rest(self._case.settings.patience_s if not seen.unanswered else self._case.settings.silence_s)
        seen.over = self._stream.ended
        if seen.over:
            seen.status = await self._stream.status()

    async def _rest(self, seconds: float) -> None:
        try:
            while (answer := await self._stream.next(seconds)) is not None:
                self._keep(answer)
                self.transcript.extra.append(answer)
        except TimeoutError:
            return
