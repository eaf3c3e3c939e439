"""Reading request bodies."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.sim import tokens
from ext_proc.sim.asks import Ask, decode_object, prompt_list, read_chat, read_generate, read_message
from ext_proc.sim.errors import ApiError

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"3", b'"x"', b"null", b'{"a":NaN}', b"\xff", b"[" * 100_000], ids=lambda b: b[:9]
)
def test_what_is_not_a_json_object_is_the_clients_fault(body: bytes) -> None:
    """Broken, deep or other JSON is a 400, never a crash."""
    with pytest.raises(ApiError) as caught:
        decode_object(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"max_tokens": "5"},
        {"max_tokens": True},
        {"max_tokens": 1.5},
        {"n": 0},
        {"n": 10_000},
        {"stream": "yes"},
        {"stream_options": 3},
        {"cache_salt": ""},
        {"min_tokens": -1},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_is_the_clients_fault(fields: dict[str, Any]) -> None:
    """Each field is checked, and the error names it."""
    with pytest.raises(ApiError) as caught:
        read_chat({"messages": MESSAGES, **fields})
    assert (caught.value.status, caught.value.param) == (400, next(iter(fields)))


def test_a_byte_order_mark_does_no_harm() -> None:
    """Like Python's own JSON reader, the engine skips a byte order mark."""
    assert decode_object(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


def test_max_completion_tokens_is_the_modern_name() -> None:
    """OpenAI's later name of the limit goes before the older one."""
    ask = read_chat({"messages": MESSAGES, "max_tokens": 5, "max_completion_tokens": 7})
    assert ask.max_tokens == 7


def test_anthropic_requires_a_limit() -> None:
    """A messages request without max_tokens is refused, as Anthropic does."""
    with pytest.raises(ApiError, match="max_tokens"):
        read_message({"messages": MESSAGES})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("abcd", (b"abcd",)),
        ([1, 2], (tokens.from_ids([1, 2]),)),
        (["a", "b"], (b"a", b"b")),
        ([[1], [2]], (tokens.from_ids([1]), tokens.from_ids([2]))),
    ],
    ids=["text", "ids", "texts", "lists of ids"],
)
def test_completion_prompts_come_in_four_forms(value: Any, expected: tuple[bytes, ...]) -> None:
    """Text, token ids, and lists of either are understood."""
    assert prompt_list(value, "prompt") == expected


@pytest.mark.parametrize("value", [None, "", [], [""], [[]], [1, "a"], {"a": 1}, [None], [-1]], ids=repr)
def test_other_prompts_are_the_clients_fault(value: Any) -> None:
    """Empty and mixed prompts are a 400."""
    with pytest.raises(ApiError) as caught:
        prompt_list(value, "prompt")
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (Ask((b"x",)), 20),
        (Ask((b"x",), max_tokens=5), 5),
        (Ask((b"x",), max_tokens=500), 20),
        (Ask((b"x",), max_tokens=500, exact=True), 500),
        (Ask((b"x",), max_tokens=500, min_tokens=100), 100),
    ],
    ids=["natural", "limited", "stops before the limit", "ignore_eos", "min_tokens"],
)
def test_the_length_of_an_answer(ask: Ask, expected: int) -> None:
    """The model stops by itself, at the limit, or where vLLM's own fields make it."""
    assert ask.output_tokens(4) == expected


def test_sglang_puts_its_limits_into_sampling_params() -> None:
    """`/generate` takes text or ids, and its limits from an object of their own."""
    ask = read_generate({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 3}, "stream": True})
    assert (ask.prompts, ask.max_tokens, ask.stream) == ((tokens.from_ids([1, 2]),), 3, True)
