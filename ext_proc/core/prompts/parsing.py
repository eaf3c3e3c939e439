"""Turns the bytes of a request into an InferenceRequest, whatever the bytes are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from ext_proc.core.model import GENERATING, InferenceRequest, Operation, Unhashed
from ext_proc.core.names import SESSION_HEADERS
from ext_proc.core.prompts import encodings, multipart
from ext_proc.core.prompts.anthropic import MessageBody
from ext_proc.core.prompts.body import Body
from ext_proc.core.prompts.encodings import Ending
from ext_proc.core.prompts.jsonbody import check_size, decode, loads, normalise, short
from ext_proc.core.prompts.native import GenerateBody
from ext_proc.core.prompts.openai import ChatBody, CompletionBody, InputBody
from ext_proc.core.prompts.repair import repair, top_level_string
from ext_proc.core.prompts.responses import ResponseBody
from ext_proc.core.prompts.routes import Route, model_in_query, response_in_path

INSPECT_BYTES = 8 * 1024 * 1024
"""How much of a compressed body is decoded by default."""

_LARGE = 2 * 1024 * 1024
_LONGEST_SESSION = 256

_DECODERS: dict[Operation, msgspec.json.Decoder[Any]] = {
    operation: msgspec.json.Decoder(body)
    for operation, body in {
        Operation.CHAT: ChatBody,
        Operation.COMPLETION: CompletionBody,
        Operation.RESPONSE: ResponseBody,
        Operation.MESSAGE: MessageBody,
        Operation.GENERATE: GenerateBody,
        Operation.EMBEDDING: InputBody,
        Operation.SCORE: InputBody,
        Operation.MEDIA: InputBody,
        Operation.COUNT_TOKENS: Body,
        Operation.LOOKUP: Body,
    }.items()
}
_NAMES = frozenset({b"model", b"cache_salt", b"lora_path", b"previous_response_id", b"prompt_cache_key"})


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """What the headers say of a request; values as they stand there, empty if absent.

    Attributes:
        path: path with query string.
        content_type: the Content-Type header.
        content_encoding: the Content-Encoding header.
        session: a client's name for its conversation.
    """

    path: str = ""
    content_type: str = ""
    content_encoding: str = ""
    session: str = ""

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        """Read it from headers with lower-case names, the path as `:path`."""
        get = headers.get
        session = next((headers[name][:_LONGEST_SESSION] for name in SESSION_HEADERS if name in headers), "")
        return cls(get(":path", ""), get("content-type", ""), get("content-encoding", ""), session)


def parse_head(route: Route, head: RequestHead) -> InferenceRequest:
    """Understand a request without a body from its path: a model in the query, a response id in the path."""
    model = model_in_query(head.path)
    return InferenceRequest(
        operation=route.operation,
        api=route.api,
        model=short(model) if model else None,
        unhashed=Unhashed.NOT_GENERATION if route.operation not in GENERATING else Unhashed.NO_BODY,
        previous_response=response_in_path(head.path),
        session=head.session,
    )


def parse(
    route: Route,
    head: RequestHead,
    body: bytes,
    *,
    complete: bool,
    inspect_bytes: int = INSPECT_BYTES,
) -> InferenceRequest:
    """Understand a request with a body; never raises, whatever the bytes are.

    Args:
        route: what `classify` found.
        head: what the headers say.
        body: the body's bytes as the client sent them, or their beginning.
        complete: False if `body` is only the beginning.
        inspect_bytes: bound on what is read, before and after decompression; of more the beginning is used.

    Of a truncated body the beginning is used. Members behind the cut do not exist then, so a body that carries
    its tools, system prompt or cache_salt behind the messages has another key than the whole of it.
    """
    if len(body) > inspect_bytes:
        body, complete = body[:inspect_bytes], False
    if head.content_encoding:
        coding = encodings.coding(head.content_encoding)
        if coding is None:
            return _without_prompt(route, head, body, complete, Unhashed.ENCODING_UNKNOWN)
        if coding and body:
            return _parse_encoded(route, head, body, complete, encodings.decode(coding, body, inspect_bytes))
    return _parse_plain(route, head, body, complete)


def _parse_encoded(
    route: Route, head: RequestHead, body: bytes, complete: bool, decoded: encodings.Decoded
) -> InferenceRequest:
    complete = complete and decoded.ending is Ending.WHOLE
    request = _parse_plain(route, head, decoded.data, complete)
    if complete and request.unhashed is Unhashed.NOT_JSON:
        # Some decoders cannot tell that their input stopped too early; the JSON can.
        complete = False
        request = _parse_plain(route, head, decoded.data, complete)
    is_useless = request.model is None and not request.prompt
    if is_useless and decoded.ending is not Ending.WHOLE:
        return _without_prompt(route, head, body, complete, Unhashed.ENCODING_BROKEN)
    return request


def _without_prompt(route: Route, head: RequestHead, body: bytes, complete: bool, reason: Unhashed) -> InferenceRequest:
    """Understand a body in no readable encoding; one that is plain JSON all the same shows its model."""
    plain = _parse_plain(route, head, body, complete)
    return _unread(route, head, complete, reason, plain.model)


def _parse_plain(route: Route, head: RequestHead, body: bytes, complete: bool) -> InferenceRequest:
    if body[:1] != b"{" or body[1:2] == b"\0":
        body = normalise(body)
        if body[:1] != b"{":
            return _parse_other(route, head, body, complete)
    try:
        text = body if complete else repair(body, _NAMES)
        if len(text) > _LARGE:
            check_size(text)
        parsed: Body = decode(_DECODERS[route.operation], text)
        prompt, tokens = parsed.read()
    except RecursionError:
        return _unread(route, head, complete, Unhashed.TOO_DEEP, _model_of_deep(body))
    except ValueError:
        return _unread(route, head, complete, Unhashed.NOT_JSON)
    model = parsed.model if isinstance(parsed.model, str) else ""
    unhashed = None if model and prompt else _unhashed(parsed, prompt)
    if route.operation not in GENERATING:
        unhashed = Unhashed.NOT_GENERATION
    previous = parsed.previous() if isinstance(parsed, ResponseBody) else None
    return InferenceRequest(
        operation=route.operation,
        api=route.api,
        model=short(model) if model else None,
        prompt=b"" if unhashed else prompt,
        prompt_tokens=tokens,
        output_tokens=parsed.output_tokens(),
        namespace=() if parsed.cache_salt is None and parsed.lora_path is None else parsed.namespace(),
        unhashed=unhashed,
        truncated=not complete,
        stream=parsed.stream is True,
        previous_response=short(previous) if isinstance(previous, str) and previous else None,
        session=head.session or parsed.session(),
    )


def _unhashed(parsed: Body, prompt: bytes) -> Unhashed | None:
    if parsed.has_odd_model():
        return Unhashed.ODD_MODEL
    return None if prompt else Unhashed.NO_PROMPT


def _parse_other(route: Route, head: RequestHead, body: bytes, complete: bool) -> InferenceRequest:
    model = multipart.form_field(head.content_type, body, "model")
    if not body:
        reason = Unhashed.NO_BODY
    elif route.operation not in GENERATING:
        reason = Unhashed.NOT_GENERATION
    else:
        reason = _why_no_object(body if complete else repair(body))
    return _unread(route, head, complete, reason, model)


def _why_no_object(body: bytes) -> Unhashed:
    try:
        check_size(body)
        loads(body)
    except RecursionError:
        return Unhashed.TOO_DEEP
    except ValueError:
        return Unhashed.NOT_JSON
    return Unhashed.NOT_AN_OBJECT


def _model_of_deep(body: bytes) -> str | None:
    found = top_level_string(body, b"model")
    try:
        model = loads(found) if found else None
    except ValueError:
        return None
    return short(model) if isinstance(model, str) and model else None


def _unread(
    route: Route, head: RequestHead, complete: bool, unhashed: Unhashed, model: str | None = None
) -> InferenceRequest:
    return InferenceRequest(
        operation=route.operation,
        api=route.api,
        model=model,
        unhashed=unhashed,
        truncated=not complete,
        session=head.session,
    )
