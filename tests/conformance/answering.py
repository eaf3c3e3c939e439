"""One stream of the picker that can be broken: which answers it gives."""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import TYPE_CHECKING, Any

import grpc
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc

from ext_proc.conformance.messages import DESTINATION, LB_NAMESPACE, SERVED, SUBSET, SUBSET_NAMESPACE
from tests.conformance import choosing, decorating, replies

if TYPE_CHECKING:
    from tests.conformance.picker import Picker

PARTIAL, STREAMED, DUPLEX = 3, 1, 4
HUGE = 310_000


class Answering:
    """Takes the messages of a stream, in serial modes and in full duplex.

    Attributes:
        done: whether the request has been answered in full.
        ended: whether the stream is to end.
    """

    def __init__(self, picker: Picker, context: Any) -> None:
        self.done = False
        self.ended = False
        self._picker = picker
        self._has = picker.has
        self._context = context
        self._mode = 0
        self._values: dict[str, bytes] = {}
        self._names: list[tuple[str, bytes]] = []
        self._hint: Any = None
        self._bodyless = False
        self._held = b""
        self._pieces = 0
        self._over = self._closed = self._given = False
        self._collected = b""

    async def greet(self) -> None:
        """Speak first, which nobody may."""
        await self._write(replies.answer("request_headers"))

    async def take(self, kind: str, part: Any, message: ext_proc.ProcessingRequest) -> None:
        """Take a message."""
        if self._over and not self._has("goes-on-after-refusal"):
            return
        if kind != "request_headers" and not self._names and self._has("begins-with-headers-only"):
            await self._fail()
        if kind == "request_headers" and self._names and self._has("dies-of-a-second-beginning"):
            self._picker.dead = True
            await self._fail()
        if message.protocol_config is not None:
            self._mode = int(message.protocol_config.request_body_mode)
        await getattr(self, f"_{kind}")(part, message)

    async def _write(self, *answers: ext_proc.ProcessingResponse) -> None:
        for one in answers:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # `append`, which Envoy still obeys
                data = bytes(one)
            await self._context.write(data)

    async def _fail(self) -> None:
        await self._context.abort(grpc.StatusCode.INTERNAL, "broken")

    # The request.

    async def _request_headers(self, part: ext_proc.HttpHeaders, message: ext_proc.ProcessingRequest) -> None:
        await self._read(part, message)
        upgrade = "upgrade" in self._values
        self._bodyless = part.end_of_stream or upgrade
        if part.end_of_stream and self._has("waits-for-a-body"):
            return
        if upgrade and self._has("waits-on-upgrade"):
            return
        if self._has("leaves-strange-paths-alone") and not self._values[":path"].startswith(b"/v1/"):
            await self._write(replies.answer("request_headers"))
            return
        if self._bodyless or (self._mode == STREAMED and not self._has("picks-late")):
            kind = "request_body" if self._has("answers-headers-as-body") else "request_headers"
            await self._pick(kind if self._mode != DUPLEX else "request_headers")
            self.done = self._bodyless
        elif self._mode != DUPLEX:
            if self._has("picks-twice"):
                await self._pick("request_headers")
                self._given = False
            else:
                kind = "request_body" if self._has("answers-headers-as-body") else "request_headers"
                await self._write(replies.answer(kind))

    async def _read(self, part: ext_proc.HttpHeaders, message: ext_proc.ProcessingRequest) -> None:
        headers = part.headers.headers if part.headers is not None else []
        self._names = [(header.key, header.raw_value) for header in headers]
        self._values = dict(self._names)
        metadata = {} if message.metadata_context is None else message.metadata_context.filter_metadata
        found = metadata[SUBSET_NAMESPACE].to_dict() if SUBSET_NAMESPACE in metadata else {}
        self._hint = found.get(SUBSET)
        self._picker.hint = self._hint
        if self._has("header-is-a-hint") and SUBSET in self._values:
            self._hint = [self._values[SUBSET].decode()]
        if self._has("headers-are-text") and not all(_is_text(value) for value in self._values.values()):
            await self._fail()
        if self._has("fails-on-strange-paths") and not self._values[":path"].startswith(b"/v1/"):
            await self._fail()

    async def _request_body(self, part: ext_proc.HttpBody, _message: object) -> None:
        self._pieces += 1
        if self._mode == DUPLEX:
            await self._collect(part)
            return
        self._held += part.body
        if self._has("waits-for-the-end") and self._mode == PARTIAL and not part.end_of_stream:
            return
        if self._has("stalls-on-huge-bodies") and len(self._held) > HUGE:
            return
        if self._given or (self._mode == STREAMED and not part.end_of_stream):
            await self._write(self._plain("request_body", part.body))
        else:
            await self._pick("request_headers" if self._has("answers-body-as-headers") else "request_body")
        self.done = part.end_of_stream
        if self.done and self._has("has-an-afterthought"):
            await self._write(replies.answer("response_trailers"))

    async def _request_trailers(self, _part: object, _message: object) -> None:
        if self._mode == DUPLEX:
            if self._has("waits-for-a-last-piece") or self._closed:
                return
            self._closed = True
            await self._release(last=False)
        trailer = replies.setter("x-more", b"1")
        change = ext_proc.CommonResponse(header_mutation=ext_proc.HeaderMutation(set_headers=[trailer]))
        kind = "request_body" if self._has("answers-trailers-as-body") and self._mode != DUPLEX else "request_trailers"
        await self._write(replies.answer(kind, change if self._has("changes-trailers") else None))
        self.done = True

    def _plain(self, kind: str, body: bytes) -> ext_proc.ProcessingResponse:
        if self._has("streams-in-every-mode"):
            return replies.piece(kind, body, last=False)
        return replies.answer(kind)

    async def _collect(self, part: ext_proc.HttpBody) -> None:
        if self._closed:
            if self._has("takes-the-end-twice"):
                await self._write(replies.piece("request_body", part.body, last=part.end_of_stream))
            return
        if self._has("loses-empty-beginnings") and self._pieces == 1 and not part.body:
            self._closed = True
        self._held += part.body
        if self._has("stalls-on-huge-bodies") and len(self._held) > HUGE:
            return
        if part.end_of_stream and not (self._has("ignores-an-empty-end") and not part.body and self._held):
            self._closed = True
            await self._release(last=True)
            self.done = True
            if self._has("has-an-afterthought"):
                await self._write(replies.answer("response_trailers"))
            self.ended = self._has("ends-after-the-request")

    async def _release(self, *, last: bool) -> None:
        body = self._held
        if self._has("writes-blanks-its-own-way") and body.startswith(b"{"):
            body = body.replace(b"\t", b" ")
        limit = 100_000 if self._has("long-request-pieces") else replies.LIMIT
        cut = replies.pieces("request_body", body, last=last, limit=limit) if body or last else []
        if self._has("body-before-headers"):
            await self._write(*cut)
        await self._pick("request_headers")
        if self._has("answers-headers-twice"):
            await self._write(replies.answer("request_headers"))
        if not self._over and not self._has("body-before-headers"):
            await self._write(*cut)

    async def _pick(self, kind: str) -> None:
        """Answer with the pick, or refuse."""
        if self._has("is-slow"):
            await asyncio.sleep(0.7)
        status = choosing.fault(self._has, self._values, self._held, bodyless=self._bodyless)
        if status < 0:
            await self._fail()
        hint = self._hint
        if self._has("mixes-streams"):
            await asyncio.sleep(0.01)
            hint = self._picker.hint
        if status > 0:
            await self._refuse(status)
            return
        try:
            allowed = choosing.allowed(self._has, hint, bodyless=self._bodyless)
        except (TypeError, ValueError, AttributeError):
            await self._fail()
            return
        if not allowed:
            await self._refuse(choosing.refusal_status(self._has))
            return
        self._picker.picks += 1
        address = allowed[self._picker.picks % len(allowed)]
        if self._has("obeys-the-client") and DESTINATION in self._values:
            address = self._values[DESTINATION].decode()
        if self._has("picks-lists"):
            address = ",".join(allowed)
        self._given = True
        draft = decorating.Draft(replies.picked(kind, address), kind, self._names)
        await self._write(*decorating.decorated(self._picker.broken, draft))

    async def _refuse(self, status: int) -> None:
        self._over = self.done = True
        await self._write(*decorating.refusal(self._has, status, self._held))

    # The answer.

    async def _response_headers(self, part: ext_proc.HttpHeaders, message: ext_proc.ProcessingRequest) -> None:
        metadata = {} if message.metadata_context is None else message.metadata_context.filter_metadata
        served = metadata[LB_NAMESPACE].to_dict().get(SERVED) if LB_NAMESPACE in metadata else ""
        if self._has("believes-what-served") and not isinstance(served, str):
            await self._fail()
        if self._has("ignores-early-answers") and self._mode == DUPLEX and not self.done:
            self._over = True
            return
        if self._has("waits-for-an-answers-body") and part.end_of_stream:
            return
        if self._has("answers-nothing"):
            await self._write(ext_proc.ProcessingResponse())
            return
        change = ext_proc.CommonResponse(clear_route_cache=True) if self._has("clears-routes-for-nothing") else None
        if self._has("rewrites-the-status"):
            status = ext_proc.HeaderMutation(set_headers=[replies.setter(":status", b"200")])
            change = ext_proc.CommonResponse(header_mutation=status)
        await self._write(replies.answer("response_headers", change))

    async def _response_body(self, part: ext_proc.HttpBody, _message: object) -> None:
        if self._has("trusts-usage") and b'"usage"' in part.body:
            try:
                int(json.loads(part.body.removeprefix(b"data: "))["usage"]["prompt_tokens"])
            except TypeError:
                await self._fail()
            except (ValueError, KeyError, OverflowError):
                pass
        if self._mode != DUPLEX:
            wrong = self._has("answers-answers-as-requests")
            await self._write(replies.answer("request_body" if wrong else "response_body"))
            return
        body = part.body
        if self._has("drops-the-end-mark"):
            body = body.replace(b"[DONE]", b"")
        if self._has("drops-single-bytes") and body == b"\n":
            body = b""
        if self._has("collects-answers"):
            self._collected += body
            if not part.end_of_stream:
                return
            body = self._collected
        limit = 100_000 if self._has("long-response-pieces") else replies.LIMIT
        await self._write(*replies.pieces("response_body", body, last=part.end_of_stream, limit=limit))
        self.ended = part.end_of_stream and self._has("ends-after-the-answer")

    async def _response_trailers(self, _part: object, _message: object) -> None:
        if self._collected:
            await self._write(*replies.pieces("response_body", self._collected, last=False))
        if not self._has("forgets-an-answers-trailers"):
            await self._write(replies.answer("response_trailers"))


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
