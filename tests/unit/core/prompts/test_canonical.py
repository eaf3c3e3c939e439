"""The canonical prompt: equal for what engines see alike, different for everything else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.unit.core.prompts.conftest import Read

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"q": {"type": "string", "description": "é"}}}
OPENAI_TOOL = {"type": "function", "function": {"name": "look", "description": "Look up.", "parameters": SCHEMA}}
PNG = "iVBORw0KGgo="

CHAT_FORM = {
    "tools": [OPENAI_TOOL],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rivers?"},
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": "Looking.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": "\\u00e9"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Rhine"},
        {"role": "user", "content": "More."},
    ],
}
ANTHROPIC_FORM = {
    "tools": [{"input_schema": SCHEMA, "name": "look", "description": "Look up."}],
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Rivers?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"q": "é"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "Rhine"}]},
                {"type": "text", "text": "More.", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ],
}
RESPONSES_FORM = {
    "tools": [{"type": "function", "name": "look", "description": "Look up.", "parameters": SCHEMA}],
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Rivers?"}]},
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"q":"é"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "Rhine"},
        {"role": "user", "content": "More."},
    ],
}


def _chat(*messages: Any, **rest: Any) -> dict[str, Any]:
    return {"messages": list(messages), **rest}


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_one_conversation_has_one_key_in_every_api(read: Read) -> None:
    """Chat, Anthropic and Responses forms of tools, system, thoughts, calls and results are equal."""
    chat = read(CHAT, CHAT_FORM).prompt
    assert read(MESSAGES, ANTHROPIC_FORM).prompt == chat
    assert read(RESPONSES, RESPONSES_FORM).prompt == chat


EQUAL = {
    "parts-and-string": (_user("ab"), _user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])),
    "null-and-absent": ({"role": "assistant", "content": None}, {"role": "assistant"}),
    "arguments": (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{ "a":1}'}}]},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": {"a": 1}, "name": "f"}}]},
    ),
    "image": (
        _user([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]),
        _user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}]),
    ),
    "metadata": (_user("a"), {"role": "user", "content": "a", "id": "m1", "cache_control": {"type": "ephemeral"}}),
    "image-address": (
        _user([{"type": "image_url", "image_url": {"url": "https://a/b.jpg", "detail": "low"}}]),
        _user([{"type": "image_url", "image_url": "https://a/b.jpg"}]),
    ),
    "unknown-part": (_user([{"type": "x", "a": 1, "b": 2}]), _user([{"b": 2, "a": 1, "type": "x"}])),
}


@pytest.mark.parametrize(("one", "other"), EQUAL.values(), ids=list(EQUAL))
def test_equal_for_the_engine_is_equal_here(read: Read, one: Any, other: Any) -> None:
    """Forms that render to the same tokens have the same key."""
    assert read(CHAT, _chat(one)).prompt == read(CHAT, _chat(other)).prompt


DIFFERENT = {
    "boundary": (_chat(_user("ab")), _chat(_user("a"), _user("b"))),
    "role": (_chat(_user("a")), _chat({"role": "assistant", "content": "a"})),
    "role-in-text": (_chat(_user("a")), _chat({"role": "", "content": "usera"})),
    "name": (_chat(_user("a")), _chat(_user("a") | {"name": "pat"})),
    "reasoning": (_chat({"role": "assistant", "content": "a"}), _chat({"role": "assistant", "reasoning_content": "a"})),
    "call": (
        _chat({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"q":1}'}}]}),
        _chat({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"q":2}'}}]}),
    ),
    "tools": (_chat(_user("a")), _chat(_user("a"), tools=[OPENAI_TOOL])),
    "documents": (_chat(_user("a")), _chat(_user("a"), documents=[{"text": "d"}])),
    "template-arguments": (_chat(_user("a")), _chat(_user("a"), chat_template_kwargs={"date_string": "1 May"})),
    "thinking": (_chat(_user("a")), _chat(_user("a"), chat_template_kwargs={"enable_thinking": False})),
    "effort": (_chat(_user("a"), reasoning_effort="low"), _chat(_user("a"), reasoning_effort="high")),
    "images-beside": (
        _chat(_user("a") | {"images": [PNG]}),
        _chat(_user("a") | {"images": [f"{PNG}A"]}),
    ),
    "text-and-prompt": (_chat(_user("a")), {"prompt": "a"}),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=list(DIFFERENT))
def test_different_for_the_engine_is_different_here(read: Read, one: Any, other: Any) -> None:
    """Conversations that render differently never share a key."""
    assert read(CHAT, one).prompt != read(CHAT, other).prompt


def test_what_a_template_says_last_leaves_the_beginning_alone(read: Read) -> None:
    """Turns that think and turns that do not share their conversation; another date at its top shares nothing."""
    turns = _chat(_user("a" * 900))
    plain = read(CHAT, turns).prompt
    assert read(CHAT, turns | {"chat_template_kwargs": {"enable_thinking": False}}).prompt.startswith(plain)
    dated = read(CHAT, turns | {"chat_template_kwargs": {"date_string": "1 May"}}).prompt
    assert dated[:20] != plain[:20]


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, _chat(_user("word " * 400))), ("/v1/completions", {"prompt": "word " * 400})]
)
def test_a_prompt_of_which_the_end_is_kept_shares_no_beginning(read: Read, path: str, body: dict[str, Any]) -> None:
    """VLLM keeps the last `truncate_prompt_tokens`; a limit above the prompt, or none that counts, changes nothing."""
    whole = read(path, body)
    kept = read(path, body | {"truncate_prompt_tokens": 50})
    assert (kept.prompt_tokens, kept.prompt[:9] != whole.prompt[:9]) == (50, True)
    longer = read(path, _longer(body) | {"truncate_prompt_tokens": 50})
    assert longer.prompt[:20] != kept.prompt[:20]
    for limit in (5000, -1, 0, None, True, "50"):
        assert read(path, body | {"truncate_prompt_tokens": limit}) == whole


def _longer(body: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": f"more {body['prompt']}"} if "prompt" in body else _chat(_user("more"), *body["messages"])


@pytest.mark.parametrize("field", ["conversation", "prompt", "reasoning"])
def test_what_a_responses_call_refers_to_is_part_of_its_prompt(read: Read, field: str) -> None:
    """A stored conversation, a stored prompt and an effort stand before the input."""
    values: list[Any] = [None, {"id": "a", "effort": "low"}, {"id": "b", "effort": "high"}]
    prompts = [read(RESPONSES, {"input": "hi", field: value}).prompt for value in values]
    assert len(set(prompts)) == 3
    assert read(RESPONSES, {"input": "hi", "conversation": "conv_1"}).session == "conv_1"
    effort = read(CHAT, _chat(_user("hi"), reasoning_effort="low")).prompt
    assert read(RESPONSES, {"input": "hi", "reasoning": {"effort": "low"}}).prompt == effort


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        ("/infill", {"input_prefix": "def f(", "input_suffix": "a"}, {"input_prefix": "def f(", "input_suffix": "b"}),
        ("/infill", {"input_prefix": "a", "input_extra": [{"text": "x"}]}, {"input_prefix": "a"}),
        ("/api/generate", {"prompt": "a", "system": "Be brief."}, {"prompt": "a"}),
        ("/api/generate", {"prompt": "a", "images": [PNG]}, {"prompt": "a"}),
    ],
    ids=["suffix", "files", "system", "images"],
)
def test_engines_own_calls_tell_prompts_apart(read: Read, path: str, one: Any, other: Any) -> None:
    """What stands beside the prompt in llama.cpp's and Ollama's calls is rendered with it."""
    assert read(path, one).prompt != read(path, other).prompt


PARTS = st.lists(
    st.text(max_size=3).map(lambda text: {"type": "text", "text": text})
    | st.text(max_size=3).map(lambda url: {"type": "image_url", "image_url": {"url": url}})
    | st.text(max_size=3).map(lambda text: {"type": "tool_use", "name": text, "input": {text: 1}}),
    max_size=3,
)
CONVERSATIONS = st.lists(
    st.fixed_dictionaries({"role": st.text(max_size=2) | st.just("user"), "content": st.text(max_size=4) | PARTS}),
    min_size=1,
    max_size=4,
)


def _meaning(messages: list[dict[str, Any]]) -> list[Any]:
    """Join neighbouring texts, which is all that the key forgets."""
    meaning: list[Any] = []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        joined: list[Any] = []
        for part in parts:
            if part["type"] != "text":
                joined.append(part)
            elif joined and isinstance(joined[-1], str):
                joined[-1] += part["text"]
            elif part["text"]:
                joined.append(part["text"])
        meaning.append((message["role"], joined))
    return meaning


@settings(deadline=None)
@given(CONVERSATIONS, CONVERSATIONS)
def test_keys_are_equal_only_for_equal_conversations(read: Read, one: list[Any], other: list[Any]) -> None:
    """Framing is unambiguous: no content imitates a boundary."""
    same = read(CHAT, _chat(*one)).prompt == read(CHAT, _chat(*other)).prompt
    assert same == (_meaning(one) == _meaning(other))


@settings(deadline=None)
@given(CONVERSATIONS, CONVERSATIONS)
def test_a_further_message_only_appends(read: Read, turns: list[Any], more: list[Any]) -> None:
    """The key of a conversation is a beginning of the key of its continuation."""
    assert read(CHAT, _chat(*turns, *more)).prompt.startswith(read(CHAT, _chat(*turns)).prompt)


def test_order_matters_only_inside_a_schema(read: Read) -> None:
    """Templates print the schema in its own order and everything around it in theirs."""
    inner = {"parameters": SCHEMA, "description": "Look up.", "name": "look"}
    outer = {"function": inner, "type": "function"}
    turned = {"function": inner | {"parameters": dict(reversed(SCHEMA.items()))}}
    key = read(CHAT, _chat(_user("a"), tools=[OPENAI_TOOL])).prompt
    assert read(CHAT, _chat(_user("a"), tools=[outer])).prompt == key
    assert read(CHAT, _chat(_user("a"), tools=[turned])).prompt != key


def test_whitespace_escapes_and_key_order_do_not_matter(read: Read) -> None:
    """The same object pretty-printed, escaped and in reverse order has the same key."""
    body = _chat(_user("é"), tools=[OPENAI_TOOL], model="m")
    compact = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    pretty = json.dumps(dict(reversed(body.items())), indent=4).encode()
    assert read(CHAT, compact).prompt == read(CHAT, pretty).prompt


def test_media_differ_early_and_equal_media_are_equal(read: Read) -> None:
    """Addresses that differ at their end, and messages of nothing but audio, have keys that differ at once."""
    pictures = [f"https://img.example/bucket/0000000000/pic{n:04d}.jpg" for n in range(40)]
    contents = [[{"type": "image_url", "image_url": {"url": url}}] for url in pictures]
    contents += [[{"type": "input_audio", "input_audio": {"data": f"{n}" * 3000, "format": "wav"}}] for n in range(9)]
    keys = [read(CHAT, _chat(_user(content))).prompt[:20] for content in contents]
    assert len(set(keys)) == len(contents)
    assert keys == [read(CHAT, _chat(_user(content))).prompt[:20] for content in contents]


def test_a_continued_response_is_no_fresh_conversation(read: Read) -> None:
    """The history of a continued response is in the engine, so its key equals no conversation that starts like it."""
    fresh = read(RESPONSES, {"input": "more"})
    follow_up = read(RESPONSES, {"input": "more", "previous_response_id": "resp_1"})
    assert follow_up.previous_response == "resp_1"
    assert follow_up.prompt != fresh.prompt


@pytest.mark.parametrize("system", [None, "", []], ids=repr)
def test_an_empty_system_prompt_is_none(read: Read, system: Any) -> None:
    """Engines render nothing for it."""
    assert read(MESSAGES, _chat(_user("a"), system=system)).prompt == read(CHAT, _chat(_user("a"))).prompt


def test_a_billing_line_stays_in_the_key(read: Read) -> None:
    """The engine sees the line that changes on every request, so no hit behind it may be claimed."""
    blocks = [
        [{"type": "text", "text": f"x-anthropic-billing-header: cch={n};"}, {"type": "text", "text": "y"}]
        for n in (1, 2)
    ]
    first, second = (read(MESSAGES, _chat(_user("a"), system=system)).prompt for system in blocks)
    assert first != second
