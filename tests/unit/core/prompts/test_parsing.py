"""Whole requests: from bytes to an InferenceRequest."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.model import InferenceRequest, Operation, Unhashed
from ext_proc.core.prompts import RequestHead, classify, parse, parse_head
from ext_proc.core.prompts.framing import CALL, MESSAGE, TOOL
from tests.unit.core.cases import BodyCase, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.core.prompts.conftest import Read

CHAT = "/v1/chat/completions"
PATHS = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/generate", "/v1/embeddings", "/score", "/tokenize")
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
NAMES = """
    model messages role content type text name prompt input instructions tools function parameters
    input_schema arguments tool_calls tool_call_id id image_url url source data cache_salt max_tokens
    stream system input_ids sampling_params reasoning_content summary output call_id
    previous_response_id lora_path documents description tool_use_id thinking image_data functions
    function_call custom
"""
KEYS = NAMES.split()
WORDS = ("user", "text", "tool_use", "tool_result", "image_url", "function_call", "function_call_output", "reasoning")
ODD = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([*WORDS, "\ud83d", "{}"])
)
VALUES = st.recursive(
    ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
BODIES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)


def _understand(case: BodyCase) -> InferenceRequest:
    route = classify(case.method, case.path)
    assert route is not None
    head = RequestHead(
        path=case.path,
        content_type=case.headers.get("content-type", ""),
        content_encoding=case.headers.get("content-encoding", ""),
    )
    return parse(route, head, case.data(), complete=True) if route.wants_body else parse_head(route, head)


@pytest.mark.parametrize("case", load(), ids=str)
def test_reported_bodies_are_understood(case: BodyCase) -> None:
    """Bodies that broke other proxies give the right model and either a key or the reason for having none."""
    request = _understand(case)
    assert (request.model, request.unhashed, request.truncated) == (case.model, case.unhashed, case.truncated)
    assert bool(request.prompt) == (request.unhashed is None)
    assert _understand(case) == request


@settings(deadline=None)
@given(st.sampled_from(PATHS), BODIES, st.booleans(), st.integers(0, 400))
def test_values_of_any_type_are_tolerated(
    read: Read, path: str, body: dict[str, Any], complete: bool, cut: int
) -> None:
    """Whatever stands where, whole or cut, there is an answer, and the same bytes give the same answer."""
    data = json.dumps(body).encode()
    request = read(path, data[: len(data) if complete else cut], complete=complete)
    assert request == read(path, data[: len(data) if complete else cut], complete=complete)
    assert request.model is None or request.model.encode()
    assert all(part.encode() for part in request.namespace)


@settings(deadline=None)
@given(
    st.sampled_from(PATHS),
    st.binary(max_size=80),
    st.booleans(),
    st.sampled_from(["", "gzip", "deflate", "zstd", "br"]),
)
def test_no_bytes_are_too_odd(read: Read, path: str, body: bytes, complete: bool, encoding: str) -> None:
    """Garbage under any encoding gives an answer."""
    for data in (body, b"{" + body, b'{"messages":[{"role":"user","content":"' + body + b'"}]}'):
        assert read(path, data, complete=complete, content_encoding=encoding).operation


@settings(deadline=None)
@given(BODIES, st.integers(0, 300), st.binary(min_size=1, max_size=3))
def test_damaged_json_is_tolerated(read: Read, body: dict[str, Any], position: int, damage: bytes) -> None:
    """JSON with some bytes replaced gives an answer."""
    data = json.dumps(body).encode()
    read(CHAT, data[:position] + damage + data[position + len(damage) :])


CONVERSATION = {
    "model": "acme/chat-8b",
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "title": "é"}}}],
    "messages": [
        {"role": "system", "content": 'Grüße \\ "quoted" \U0001f600 {['},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": "on it",
            "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "Rhine", "tool_call_id": "c"},
    ],
}


def _without_unfinished(prompt: bytes) -> bytes:
    return prompt[: max(prompt.rfind(mark) for mark in (MESSAGE, TOOL, CALL))]


@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_key_of_a_cut_body_is_a_beginning_of_the_whole_key(read: Read, ascii_only: bool) -> None:
    """Cut at any byte, all but the unfinished piece of the key is shared with the whole body."""
    body = json.dumps(CONVERSATION, ensure_ascii=ascii_only).encode()
    whole = read(CHAT, body).prompt
    for end in range(len(body)):
        request = read(CHAT, body[:end], complete=False)
        assert request.truncated
        assert request.model in {None, "acme/chat-8b"}
        if request.prompt:
            assert whole.startswith(_without_unfinished(request.prompt))


@settings(deadline=None)
@given(st.text(min_size=1), st.booleans())
def test_cut_text_is_shared_to_the_last_character(read: Read, text: str, ascii_only: bool) -> None:
    """Where the cut falls into a message's text, the whole key of the cut body is shared."""
    body = json.dumps({"messages": [{"role": "user", "content": text}]}, ensure_ascii=ascii_only).encode()
    whole = read(CHAT, body).prompt
    for end in range(body.index(b'"content"'), len(body)):
        assert whole.startswith(read(CHAT, body[:end], complete=False).prompt)


@pytest.mark.parametrize(
    ("name", "encode"),
    [("gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress), ("br", brotli.compress)],
    ids=["gzip", "zstd", "br"],
)
def test_a_compressed_body_is_understood_like_its_plain_twin(
    read: Read, name: str, encode: Callable[[bytes], bytes]
) -> None:
    """Compression changes nothing of what is understood; of half the bytes the decoded beginning is used."""
    long = {"model": "m", "messages": [{"role": "user", "content": " ".join(str(n * n) for n in range(30_000))}]}
    body = encode(json.dumps(long).encode())
    plain = read(CHAT, long)
    assert read(CHAT, body, content_encoding=name) == plain
    for complete in (True, False):
        half = read(CHAT, body[: len(body) // 2], content_encoding=name, complete=complete)
        assert half.truncated
        assert len(half.prompt) > 100
        assert plain.prompt.startswith(half.prompt)


def test_a_compressed_body_beyond_the_limit_is_truncated() -> None:
    """Only the configured number of bytes is decoded for inspection."""
    route = classify("POST", CHAT)
    assert route is not None
    body = gzip.compress(json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 9000}]}).encode())
    request = parse(route, RequestHead(content_encoding="gzip"), body, complete=True, inspect_bytes=1000)
    assert (request.truncated, request.model, 900 < len(request.prompt) < 1000) == (True, "m", True)


@pytest.mark.parametrize(
    ("encoding", "reason"),
    [("lz4", Unhashed.ENCODING_UNKNOWN), ("gzip, br", Unhashed.ENCODING_UNKNOWN), ("gzip", Unhashed.ENCODING_BROKEN)],
)
def test_a_wrong_encoding_still_shows_the_model_of_plain_json(read: Read, encoding: str, reason: Unhashed) -> None:
    """A header that does not fit the body costs the key, not the route."""
    request = read(CHAT, HELLO, content_encoding=encoding)
    assert (request.model, request.unhashed, request.prompt) == ("m", reason, b"")


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7, "max_tokens": 5}, 7),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": True}, None),
        ({"max_tokens": 5.0}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 10**30}, None),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": float("nan")}, None),
        ({"max_tokens": float("inf")}, None),
    ],
    ids=str,
)
def test_only_sane_limits_count(read: Read, limits: dict[str, Any], expected: int | None) -> None:
    """A limit that is no sensible whole number never reaches load arithmetic."""
    assert read(CHAT, HELLO | limits).output_tokens == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"max_tokens": 9}),
        ("/v1/completions", {"max_tokens": 9}),
        ("/v1/responses", {"max_output_tokens": 9}),
        ("/generate", {"sampling_params": {"max_new_tokens": 9}}),
        ("/inference/v1/generate", {"sampling_params": {"max_tokens": 9}}),
        ("/completion", {"n_predict": 9}),
        ("/api/chat", {"options": {"num_predict": 9}}),
        ("/api/generate", {"options": {"num_predict": 9}}),
    ],
    ids=["messages", "completions", "responses", "sglang", "vllm", "llama.cpp", "ollama chat", "ollama generate"],
)
def test_each_api_has_its_own_limit(read: Read, path: str, body: dict[str, Any]) -> None:
    """The limit is found under the name that each API gives it."""
    assert read(path, body).output_tokens == 9


@pytest.mark.parametrize("stream", [1, "true", None, False, []], ids=repr)
def test_only_true_asks_for_a_stream(read: Read, stream: Any) -> None:
    """Other values than JSON true are not taken for it."""
    assert not read(CHAT, HELLO | {"stream": stream}).stream
    assert read(CHAT, HELLO | {"stream": True}).stream


def test_salts_are_kept_apart_from_each_other_and_from_adapters(read: Read) -> None:
    """Absent and null salts are one namespace; every other value, and the same value as an adapter, is its own."""
    salts = ["", "a", "ab", 1, "1", ["a"], "x\u0000y", "\ud83d"]
    spaces = {read(CHAT, HELLO | {"cache_salt": salt}).namespace for salt in salts}
    spaces |= {read(CHAT, HELLO | {"lora_path": "a"}).namespace, read(CHAT, HELLO).namespace}
    assert len(spaces) == len(salts) + 2
    assert read(CHAT, HELLO | {"cache_salt": None}).namespace == ()


def test_a_cut_name_is_no_name(read: Read) -> None:
    """A model, salt or response id that the cut went through is not taken for a whole one."""
    body = b'{"messages":[{"role":"user","content":"x"}],"previous_response_id":"r","cache_salt":"abc","model":"acme/ch'
    request = read(CHAT, body, complete=False)
    assert (request.model, request.namespace) == (None, ("cache_salt=abc",))
    assert read(CHAT, body[: body.index(b"bc")], complete=False).namespace == ()


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        ("/v1/embeddings", {"input": "x" * 400}, 100),
        ("/v1/embeddings", {"input": ["x" * 400, "y" * 40]}, 110),
        ("/v1/embeddings", {"input": [[1, 2], [3]]}, 3),
        ("/v1/rerank", {"query": "x" * 40, "documents": ["y" * 40, {"text": "z" * 40}]}, 30),
        ("/score", {"text_1": "x" * 40, "text_2": None}, 10),
        ("/v1/images/generations", {"prompt": "x" * 40}, 10),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x" * 400}]}, 0),
        ("/tokenize", {"prompt": "x" * 400}, 0),
    ],
    ids=["text", "texts", "ids", "rerank", "score", "image", "count", "tokenize"],
)
def test_what_generates_nothing_is_weighed_and_never_hashed(
    read: Read, path: str, body: dict[str, Any], tokens: int
) -> None:
    """Embedding, scoring, media and counting calls leave no prefix behind; counting costs the engine nothing."""
    request = read(path, body | {"model": "m"})
    assert (request.prompt, request.unhashed) == (b"", Unhashed.NOT_GENERATION)
    assert (request.model, request.prompt_tokens) == ("m", tokens)


def test_a_body_less_request_is_understood_from_its_path() -> None:
    """A look-up of a stored response carries its id and the client's session."""
    route = classify("GET", "/v1/responses/resp_1")
    assert route is not None
    request = parse_head(route, RequestHead(path="/v1/responses/resp_1", session="s-1"))
    assert (request.operation, request.previous_response, request.session) == (Operation.LOOKUP, "resp_1", "s-1")


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf" + json.dumps(HELLO).encode(),
        b" \r\n\t" * 50 + json.dumps(HELLO).encode(),
        json.dumps(HELLO).encode("utf-16"),
        json.dumps(HELLO).encode("utf-32-be"),
        json.dumps(HELLO | {"x": float("nan")}).encode(),
        json.dumps(HELLO)[:-1].encode() + b',"x":1e999,"y":' + b"9" * 9000 + b',"z":"\\ud83d"}',
        b'{"m\\u006fdel":"n", "messages":[], ' + json.dumps(HELLO, indent=3).encode()[1:],
    ],
    ids=["bom", "blanks", "utf-16", "utf-32", "nan", "huge", "duplicates"],
)
def test_the_same_conversation_in_other_clothes_is_the_same(read: Read, body: bytes) -> None:
    """What engines read alike has one key and one model."""
    request, plain = read(CHAT, body), read(CHAT, HELLO)
    assert (request.prompt, request.model, request.unhashed) == (plain.prompt, "m", None)


@given(st.lists(st.sampled_from([b"model", b"mod\\u0065l", b"x"]), max_size=6), st.integers(0, 2), st.booleans())
@settings(deadline=None)
def test_the_model_is_the_one_that_engines_read(read: Read, keys: list[bytes], depth: int, deep: bool) -> None:
    """However the key is spelt and how often it is there, the last counts, also in a body too deep to be decoded."""
    nested = b"[" * 3000 + b"]" * 3000 if deep else b"[]"
    inner = b'{"a":' * depth + b'{"model":"inner"}' + b"}" * depth
    fields = [b'"%b":"m%d"' % (key, place) for place, key in enumerate(keys)]
    body = b"{" + b",".join([*fields[:3], b'"deep":' + nested, b'"nested":' + inner, *fields[3:]]) + b"}"
    plain = body.replace(nested, b"[]")
    assert read(CHAT, body).model == json.loads(plain).get("model")


def test_invalid_utf8_has_a_stable_key_of_its_own(read: Read) -> None:
    """A byte that is no UTF-8 takes part in the key without an error and never acts as framing."""
    bodies = [b'{"messages":[{"role":"user","content":"a%b"}]}' % byte for byte in (b"\xff", b"\xfe", b"")]
    prompts = [read(CHAT, body).prompt for body in bodies]
    assert len(set(prompts)) == 3
    assert all(prompt.count(MESSAGE) == 1 for prompt in prompts)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
def test_the_bodys_own_name_for_a_conversation_counts_where_no_header_gives_one(path: str, read: Read) -> None:
    """OpenAI's prompt_cache_key names it; the header, which the gateway may have set, goes first."""
    body = HELLO | {"prompt_cache_key": "thread-7"}
    assert read(path, body).session == "thread-7"
    assert read(path, body, session="s-1").session == "s-1"


@pytest.mark.parametrize("key", [None, 7, ["thread-7"], {}, ""], ids=repr)
def test_an_odd_name_for_a_conversation_is_none(key: object, read: Read) -> None:
    """What is no text names nothing."""
    assert not read(CHAT, HELLO | {"prompt_cache_key": key}).session


def test_a_long_name_for_a_conversation_is_kept_short(read: Read) -> None:
    """What waits for the outcome stays small, and two long names stay apart."""
    first, second = (read(CHAT, HELLO | {"prompt_cache_key": "k" * 100_000 + end}).session for end in "ab")
    assert first != second
    assert len(first) < 1000


def test_half_a_name_for_a_conversation_is_none(read: Read) -> None:
    """A body that is cut off inside the key does not tie the request to a stranger's conversation."""
    assert not read(CHAT, b'{"model":"m","prompt_cache_key":"thread-7', complete=False).session
