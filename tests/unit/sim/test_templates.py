"""The simulated model's chat template."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.sim.errors import ApiError
from ext_proc.sim.templates import render_anthropic, render_chat, render_responses

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be brief"}


def test_roles_and_texts_follow_each_other() -> None:
    """A prompt is its messages in order, and ends where the assistant begins."""
    rendered = render_chat({"messages": [SYSTEM, USER]})
    assert rendered == b"<|system|>\nbe brief<|end|>\n<|user|>\nhi<|end|>\n<|assistant|>\n"


def test_text_parts_equal_text() -> None:
    """Content as text and as a list of text parts is the same prompt."""
    parts = {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
    assert render_chat({"messages": [parts]}) == render_chat({"messages": [USER]})


def test_the_next_turn_continues_prompt_and_answer() -> None:
    """A conversation that goes on begins with the prompt and the answer of its last turn."""
    first = render_chat({"messages": [USER]})
    then = render_chat({"messages": [USER, {"role": "assistant", "content": "hello"}, USER]})
    assert then.startswith(first + b"hello<|end|>\n")


def test_one_conversation_is_one_prompt_in_all_apis() -> None:
    """OpenAI chat, OpenAI responses and Anthropic messages of one conversation share the cache."""
    chat = render_chat({"messages": [SYSTEM, USER]})
    assert render_anthropic({"system": "be brief", "messages": [USER]}) == chat
    assert render_responses({"instructions": "be brief", "input": "hi"}) == chat
    assert render_responses({"instructions": "be brief", "input": [USER]}) == chat


def test_one_tool_is_one_prompt_in_both_forms() -> None:
    """OpenAI's and Anthropic's descriptions of a tool render alike."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    function = {"name": "find", "description": "finds", "parameters": schema}
    openai = {"tools": [{"type": "function", "function": function}], "messages": [USER]}
    anthropic = {"tools": [{"name": "find", "description": "finds", "input_schema": schema}], "messages": [USER]}
    assert render_chat(openai) == render_anthropic(anthropic)


def test_images_count_by_their_content() -> None:
    """Different images make different prompts, without their bytes in the prompt."""
    prompts = []
    for letter in "ab":
        image = {"type": "image_url", "image_url": {"url": "data:," + letter * 10_000}}
        prompts.append(render_chat({"messages": [{"role": "user", "content": [image]}]}))
    assert prompts[0] != prompts[1]
    assert len(prompts[0]) < 100


@pytest.mark.parametrize(
    "messages", [None, [], "hi", [3], [{"content": "x"}], [{"role": "user", "content": 3}]], ids=repr
)
def test_malformed_messages_are_the_clients_fault(messages: Any) -> None:
    """What is not a list of messages is a 400."""
    with pytest.raises(ApiError) as caught:
        render_chat({"messages": messages})
    assert caught.value.status == 400
