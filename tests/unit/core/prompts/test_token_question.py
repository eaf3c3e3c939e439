"""What a tokenizer is asked, and what it cannot be asked."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.prompts import RequestHead, classify, parse
from ext_proc.core.prompts.token_question import TokenQuestion, Unasked, read_question

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}]


def asked(body: bytes, path: str = CHAT, *, complete: bool = True, encoding: str = "") -> TokenQuestion | Unasked:
    """Ask for a body as an exchange does."""
    route = classify("POST", path)
    assert route is not None
    head = RequestHead(path=path, content_encoding=encoding)
    return read_question(parse(route, head, body, complete=complete), head, body, 1 << 20)


def question(path: str = CHAT, **members: Any) -> TokenQuestion:
    """Ask for a body that can be asked for."""
    made = asked(json.dumps({"model": "m", **members}).encode(), path)
    assert isinstance(made, TokenQuestion), made
    return made


def members(made: TokenQuestion) -> dict[str, Any]:
    """Read what would be sent."""
    read: dict[str, Any] = json.loads(b"{" + made.members + b"}")
    return read


def test_a_conversation_is_asked_with_its_tools_and_template_arguments() -> None:
    """Whatever the template prints is in the question; sampling is not."""
    made = question(messages=HELLO, tools=TOOLS, temperature=0.5, chat_template_kwargs={"enable_thinking": False})
    assert members(made) == {"messages": HELLO, "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": False}}
    assert made.chat


def test_the_order_inside_a_schema_is_kept() -> None:
    """Templates print it as it stands, so it changes tokens."""
    assert b'{"b": 1, "a": 2}' in question(messages=HELLO, tools=TOOLS).members


def test_a_completion_is_asked_as_text_or_is_tokens_already() -> None:
    """A prompt that comes as token ids needs no tokenizer."""
    assert members(question(COMPLETION, prompt="once")) == {"prompt": "once"}
    made = question(COMPLETION, prompt=[5, 6, 7], cache_salt="s")
    assert (made.ids, made.members, made.salt) == ((5, 6, 7), b"", "s")


def test_salt_and_adapter_are_told_apart_from_the_text() -> None:
    """They separate caches and are no part of what is tokenized."""
    plain, salted = question(messages=HELLO), question(messages=HELLO, cache_salt="t1", lora_path="legal")
    assert plain.digest == salted.digest
    assert (salted.salt, salted.adapter) == ("t1", "legal")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}, "attachment"),
        ({"messages": HELLO, "documents": [{"text": "d"}]}, "unsupported"),
        ({"messages": HELLO, "truncate_prompt_tokens": 5}, "unsupported"),
        ({"messages": HELLO, "reasoning_effort": "low"}, "unsupported"),
        ({"messages": HELLO, "cache_salt": 7}, "unsupported"),
        ({"messages": [{"role": "user", "content": {"odd": 1}}]}, "unsupported"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "unsupported"),
    ],
    ids=["image", "documents", "truncated prompt", "effort", "odd salt", "odd content", "lone surrogate"],
)
def test_what_tokens_do_not_tell_apart_is_not_asked(body: dict[str, Any], reason: str) -> None:
    """Images have the same tokens; members that /tokenize does not know would give others than the engine uses."""
    assert asked(json.dumps({"model": "m", **body}).encode()) == reason


def test_several_prompts_and_other_operations_are_not_asked() -> None:
    """Only what has one prompt and is generated from is looked up."""
    assert asked(b'{"model":"m","prompt":["a","b"]}', COMPLETION) is Unasked.UNSUPPORTED
    assert asked(b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}', "/v1/messages") == (
        "operation"
    )


def test_a_body_that_was_cut_is_not_asked() -> None:
    """Tokens of a beginning are not those of the prompt: the template adds its own end."""
    assert asked(b'{"model":"m","messages":[{"role":"user","content":"abc', complete=False) is Unasked.TRUNCATED


def test_a_compressed_body_is_asked_like_a_plain_one() -> None:
    """The question is about the text, however it came."""
    body = json.dumps({"model": "m", "messages": HELLO}).encode()
    assert asked(gzip.compress(body), encoding="gzip") == asked(body)
    assert asked(b"\xef\xbb\xbf" + body) == asked(body)


@given(
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1),
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1),
)
def test_different_texts_are_different_questions(one: str, other: str) -> None:
    """The cache must not answer one text with the tokens of another."""
    first, second = (question(messages=[{"role": "user", "content": text}]) for text in (one, other))
    assert (first.digest == second.digest) == (one == other)
    assert first.digest != question(COMPLETION, prompt=one).digest


@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda tail: b'{"messages":[' + tail))
def test_no_bytes_raise(body: bytes) -> None:
    """Whatever comes, there is a question or a reason."""
    assert isinstance(asked(body), TokenQuestion | Unasked)
