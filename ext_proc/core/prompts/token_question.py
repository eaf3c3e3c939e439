"""What a tokenizer must be asked to know the exact tokens of a request, read from the request's body."""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec
from xxhash import xxh3_128_intdigest

from ext_proc.core.model import InferenceRequest, Operation
from ext_proc.core.prompts import encodings
from ext_proc.core.prompts.jsonbody import normalise
from ext_proc.core.prompts.parsing import RequestHead

_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text", "refusal"})
_ABSENT: Final = (b"", b"null")


class Unasked(enum.StrEnum):
    """Why the exact tokens of a request cannot be asked for."""

    OPERATION = "operation"
    TRUNCATED = "truncated"
    ATTACHMENT = "attachment"
    UNSUPPORTED = "unsupported"


class TokenQuestion(msgspec.Struct, frozen=True, gc=False):
    """What decides on the tokens of a prompt, beside the model.

    Attributes:
        members: the members of a body for `/tokenize`, as JSON without the braces; empty where the ids are given.
        chat: True if a chat template renders the prompt.
        ids: the tokens themselves, where the client sent those.
        salt: the request's `cache_salt`; empty without.
        adapter: the LoRA adapter that the body names beside the model (SGLang's `lora_path`); empty without.
    """

    members: bytes = b""
    chat: bool = False
    ids: tuple[int, ...] = ()
    salt: str = ""
    adapter: str = ""

    @property
    def digest(self) -> int:
        """A hash that tells texts apart (xxh3_128); salt and adapter are not in it."""
        return xxh3_128_intdigest(self.members, self.chat)


class _Part(msgspec.Struct, gc=False):
    type: str = "text"


class _Message(msgspec.Struct, gc=False):
    content: str | list[_Part | str] | None = None


class _Common(msgspec.Struct, gc=False):
    """What both kinds of body may hold; what no tokenizer can be told of makes a question impossible."""

    cache_salt: str | None = None
    lora_path: str | None = None
    add_special_tokens: msgspec.Raw = msgspec.Raw()
    truncate_prompt_tokens: Any = None
    prompt_embeds: Any = None


class _Chat(_Common, gc=False):
    messages: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    tool_choice: msgspec.Raw = msgspec.Raw()
    chat_template: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()
    continue_final_message: msgspec.Raw = msgspec.Raw()
    add_generation_prompt: msgspec.Raw = msgspec.Raw()
    reasoning_effort: Any = None
    documents: Any = None
    functions: Any = None


class _Completion(_Common, gc=False):
    prompt: str | list[int] | None = None


_CHAT_MEMBERS: Final = (
    "messages",
    "tools",
    "tool_choice",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "add_special_tokens",
)
_CHAT: Final = msgspec.json.Decoder(_Chat)
_COMPLETION: Final = msgspec.json.Decoder(_Completion)
_MESSAGES: Final = msgspec.json.Decoder(list[_Message])


def read_question(
    request: InferenceRequest, head: RequestHead, body: bytes, inspect_bytes: int
) -> TokenQuestion | Unasked:
    """Read what to ask from the body of a request that was understood already; never raises.

    Only what engines of today tokenize alike for `/tokenize` and for the request itself is asked: no images, whose
    tokens do not tell them apart, and no members that change the prompt without being known to `/tokenize`.

    Args:
        request: what was understood of it.
        head: what the headers say.
        body: the body's bytes as the client sent them.
        inspect_bytes: bound on what is read after decompression.
    """
    if request.operation not in (Operation.CHAT, Operation.COMPLETION):
        return Unasked.OPERATION
    if request.truncated:
        return Unasked.TRUNCATED
    coding = encodings.coding(head.content_encoding) if head.content_encoding else ""
    text = encodings.decode(coding, body, inspect_bytes).data if coding else body
    try:
        return _read(request.operation, text if text[:1] == b"{" else normalise(text))
    except (ValueError, RecursionError):
        return Unasked.UNSUPPORTED


def _read(operation: Operation, text: bytes) -> TokenQuestion | Unasked:
    if operation is Operation.COMPLETION:
        return _read_completion(_COMPLETION.decode(text))
    chat = _CHAT.decode(text)
    if bytes(chat.messages) in _ABSENT:
        return _read_completion(_COMPLETION.decode(text))
    # What an effort does to the template's arguments differs between engines and versions.
    if chat.documents or chat.functions or chat.reasoning_effort is not None or _is_odd(chat):
        return Unasked.UNSUPPORTED
    if any(_is_attachment(part) for message in _MESSAGES.decode(chat.messages) for part in _parts(message)):
        return Unasked.ATTACHMENT
    members = [_member(name, value) for name in _CHAT_MEMBERS if (value := bytes(getattr(chat, name))) not in _ABSENT]
    return TokenQuestion(b",".join(members), chat=True, salt=chat.cache_salt or "", adapter=chat.lora_path or "")


def _read_completion(body: _Completion) -> TokenQuestion | Unasked:
    if not body.prompt or _is_odd(body):
        return Unasked.UNSUPPORTED
    salt, adapter = body.cache_salt or "", body.lora_path or ""
    if isinstance(body.prompt, list):
        return TokenQuestion(ids=tuple(body.prompt), salt=salt, adapter=adapter)
    members = [_member("prompt", msgspec.json.encode(body.prompt))]
    if (special := bytes(body.add_special_tokens)) not in _ABSENT:
        members.append(_member("add_special_tokens", special))
    return TokenQuestion(b",".join(members), salt=salt, adapter=adapter)


def _is_odd(body: _Common) -> bool:
    return body.truncate_prompt_tokens is not None or body.prompt_embeds is not None


def _parts(message: _Message) -> list[_Part | str]:
    return message.content if isinstance(message.content, list) else []


def _is_attachment(part: _Part | str) -> bool:
    return isinstance(part, _Part) and part.type not in _TEXT_TYPES


def _member(name: str, value: bytes) -> bytes:
    return b'"' + name.encode() + b'":' + value
