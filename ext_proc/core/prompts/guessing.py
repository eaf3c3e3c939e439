"""Guesses the path of a body that came without one, from its members; both chat APIs give equal prompts."""

from __future__ import annotations

import re

import msgspec

from ext_proc.core.prompts.jsonbody import decode

CHAT = "/v1/chat/completions"

_EMBEDDING_MEMBERS = re.compile(rb'"(?:encoding_format|dimensions)"\s*:')


class _Members(msgspec.Struct, gc=False):
    """The members that tell APIs apart."""

    messages: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()
    text: msgspec.Raw = msgspec.Raw()
    input_ids: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Members)


def likely_path(body: bytes) -> str:
    """Return the path that a body was probably sent to, that of chats if nothing shows another."""
    try:
        members = decode(_decoder, body)
    except (ValueError, RecursionError):
        return CHAT
    if bytes(members.messages):
        return "/v1/messages" if bytes(members.system) else CHAT
    if bytes(members.input):
        return "/v1/embeddings" if _EMBEDDING_MEMBERS.search(body) else "/v1/responses"
    if bytes(members.prompt):
        return "/v1/completions"
    engine_native = (members.inputs, members.text, members.input_ids, members.token_ids)
    return "/generate" if any(bytes(held) for held in engine_native) else CHAT
