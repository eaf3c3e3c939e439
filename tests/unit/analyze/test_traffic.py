"""Lines of every kind, and lines that are none."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from ext_proc.analyze.formats import LineReader, UnusableError
from ext_proc.analyze.lines import BrokenFileError, lines
from ext_proc.analyze.record import Record
from ext_proc.analyze.traffic import Traffic
from ext_proc.core.errors import ConfigError
from ext_proc.core.hashing import PromptHasher
from ext_proc.core.prompts import RequestHead, classify, parse
from tests.unit.analyze.bodies import RULES, chat, record, words

BODY = chat(RULES, "Do you have Middlemarch?")


def read(value: Any) -> Record:
    """Read a line that holds this value."""
    return LineReader(PromptHasher()).read(json.dumps(value).encode())


def traffic(*names: object, stdin: bytes = b"") -> Traffic:
    """Make traffic of files."""
    return Traffic([str(name) for name in names], LineReader(PromptHasher()), io.BufferedReader(io.BytesIO(stdin)))


def test_a_bare_body_is_hashed_as_the_picker_hashes_it() -> None:
    """Analysis and serving agree on what a prefix is."""
    found = read(BODY)
    route = classify("POST", "/v1/chat/completions")
    assert route is not None
    served = parse(route, RequestHead(), json.dumps(BODY).encode(), complete=True)
    assert list(found.chain) == PromptHasher().chain(served)
    assert found.prompt_tokens == served.prompt_tokens
    assert found.sizes[:2] == [64, 64]
    assert found.model == "acme/chat-8b"


@pytest.mark.parametrize(
    "line",
    [
        {"body": BODY},
        {"body": json.dumps(BODY)},
        {"path": "/v1/chat/completions", "body": BODY},
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": BODY},
        {"model": "acme/chat-8b", "system": RULES, "max_tokens": 5, "messages": BODY["messages"][1:]},
        {"body": {key: value for key, value in BODY.items() if key != "model"}, "model": "acme/chat-8b"},
    ],
    ids=["wrapper", "text in a wrapper", "with a path", "batch file", "anthropic", "model outside"],
)
def test_all_ways_to_write_one_request_give_one_chain(line: Any) -> None:
    """What surrounds a conversation does not change its prefix."""
    assert list(read(line).chain) == list(read(BODY).chain)


@pytest.mark.parametrize(
    ("body", "first"),
    [
        ({"prompt": "x" * 300}, b"\xfe"),
        ({"input": "x" * 300}, b"\xff"),
        ({"text": "x" * 300}, b"\xfe"),
        ({"input_ids": list(range(300))}, b"\xf6"),
    ],
    ids=["completion", "response", "generate", "token ids"],
)
def test_the_operation_shows_from_the_members(body: Any, first: bytes) -> None:
    """A body without a path is still read by its own rules."""
    found = read(body)
    assert found.prompt[:1] == first
    assert len(found.chain) >= 1


def test_a_trace_of_block_ids() -> None:
    """Only whole blocks count; equal ids are equal blocks; times are milliseconds."""
    one = read({"timestamp": 27_000, "input_length": 1100, "output_length": 52, "hash_ids": [0, 7, 9]})
    two = read({"timestamp": 30_000, "input_length": 1024, "output_length": 1, "hash_ids": [0, 8]})
    assert (one.at, one.prompt_tokens, one.output_tokens, one.sizes) == (27.0, 1100, 52, [512, 512])
    assert one.chain[0] == two.chain[0]
    assert one.chain[1] != two.chain[1]


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        (12.5, 12.5),
        (1_764_437_000, 1_764_437_000),
        (1_764_437_000_500, 1_764_437_000.5),
        (1_764_437_000_500_000, 1_764_437_000.5),
        (1_764_437_000_500_000_000, 1_764_437_000.5),
        ("2025-11-29T17:23:20Z", 1_764_437_000),
        ("2025-11-29T18:23:20+01:00", 1_764_437_000),
        ("2025-11-29T17:23:20", 1_764_437_000),
        ("1764437000.5", 1_764_437_000.5),
        ("yesterday", None),
        (None, None),
        (True, None),
        (1e300, None),
        ([], None),
    ],
)
def test_times_in_any_unit(timestamp: Any, seconds: float | None) -> None:
    """What cannot be read as a time is no time."""
    assert record(BODY, timestamp=timestamp).at == seconds


@pytest.mark.parametrize(
    ("members", "tokens"),
    [
        ({"output_tokens": 7}, 7),
        ({"usage": {"completion_tokens": 8}}, 8),
        ({"usage": {"output_tokens": 9}}, 9),
        ({"usage": {"completion_tokens": "many"}}, None),
        ({"output_tokens": -1}, None),
        ({}, None),
    ],
)
def test_output_tokens_where_they_are_known(members: dict[str, Any], tokens: int | None) -> None:
    """Nonsense counts as unknown."""
    assert record(BODY, **members).output_tokens == tokens


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\x00\xff\xfe\x01binary", "not a JSON object"),
        (b"[1, 2]", "a JSON array and not an object; jq -c '.\\[]' makes lines of one"),
        (b"{", "the beginning of a JSON object; jq -c . writes one object a line"),
        (b"[", "a JSON array and not an object; jq -c '.\\[]' makes lines of one"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"body": "not json"}', "body is not JSON"),
        (b'{"body": [1]}', "body is not a JSON object"),
        (b'{"body": {"messages": []}}', "no prompt"),
        (b'{"hello": "world"}', "no prompt"),
        (
            b'{"level": "info", "event": "request_finished", "prompt_tokens": 9}',
            "a line of a log .*replay takes the log.*",
        ),
        (b'{"path": "/metrics", "body": {}}', "path of no known operation"),
        (b'{"path": "/v1/embeddings", "body": {"input": "x"}}', "not a request that generates text"),
        (b'{"input": "x", "encoding_format": "float"}', "not a request that generates text"),
        (b'{"model": 7, "prompt": "x"}', "model is not a name"),
        (b'{"hash_ids": "abc"}', "hash_ids is not a list of whole numbers"),
        (b'{"hash_ids": [1, true]}', "hash_ids is not a list of whole numbers"),
        (b'{"hash_ids": [1], "input_length": -5}', "input_length is not a number of tokens"),
        (b'{"hash_ids": [1], "input_length": 1e999}', "input_length is not a number of tokens"),
        (b'{"path": "/' + b"x" * 5000 + b'", "body": {}}', "path too long"),
    ],
)
def test_hostile_and_useless_lines_say_why(line: bytes, reason: str) -> None:
    """Whatever a line holds, it is either a record or a reason."""
    with pytest.raises(UnusableError, match=f"^{reason}$"):
        LineReader(PromptHasher()).read(line)


def test_a_byte_order_mark_does_no_harm() -> None:
    """Files of Windows begin with one."""
    assert list(LineReader(PromptHasher()).read(b"\xef\xbb\xbf" + json.dumps(BODY).encode()).chain)


def test_odd_text_is_read_leniently() -> None:
    """Lone surrogates and invalid UTF-8 are what clients send; engines take them."""
    line = b'{"messages": [{"role": "user", "content": "\\ud800 caf\xe9 ' + b"x" * 400 + b'"}]}'
    assert LineReader(PromptHasher()).read(line).prompt_tokens > 100


def test_files_of_several_kinds_are_read_in_order(tmp_path: Path) -> None:
    """Plain, compressed and from standard input; blank lines are no lines."""
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.gz"
    plain.write_bytes(json.dumps(chat(RULES, "one")).encode() + b"\n\n")
    packed.write_bytes(gzip.compress(json.dumps(chat(RULES, "two")).encode() + b"\n"))
    third = gzip.compress(json.dumps(chat(RULES, "three")).encode())
    found = traffic(plain, packed, "-", stdin=third)
    ends = [record.prompt[-5:] for record in found.records()]
    assert [end.split(b"\xfe")[-1] for end in ends] == [b"one", b"two", b"three"]
    assert found.lines == 3


def test_bad_lines_are_counted_and_named(tmp_path: Path) -> None:
    """Reading goes on behind them; the first ones are named by file and line."""
    path = tmp_path / "mixed.jsonl"
    good = json.dumps(BODY).encode()
    path.write_bytes(b"\n".join([good, b"oops", good, *[b"{}"] * 10]))
    found = traffic(path)
    assert len(list(found.records())) == 2
    assert found.unusable == {"not a JSON object": 1, "no prompt": 10}
    assert found.examples[:2] == [f"{path}:2: not a JSON object", f"{path}:4: no prompt"]
    assert len(found.examples) == 5


def test_a_cut_gzip_file_gives_what_it_holds(tmp_path: Path) -> None:
    """What comes before the cut is used, and the cut is named."""
    path = tmp_path / "cut.gz"
    rows = [json.dumps(chat(words(number, 200), words(-number, 200))).encode() for number in range(200)]
    whole = gzip.compress(b"\n".join(rows))
    path.write_bytes(whole[: len(whole) // 2])
    found = traffic(path)
    assert 20 < len(list(found.records())) < 180
    assert "cannot be read further" in found.examples[-1]
    assert str(path) in found.examples[-1]


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Unlike a bad line, it is a mistake of who runs the command."""
    with pytest.raises(ConfigError, match=r"nothing\.jsonl: No such file"):
        list(traffic(tmp_path / "nothing.jsonl").records())


def test_lines_are_bounded() -> None:
    """A line without end is skipped in pieces, and the next one is read."""
    stream = io.BytesIO(b"short\n" + b"x" * 1000 + b"\nnext\n" + b"y" * 10 + b"\n" + b"z" * 11)
    assert list(lines(stream, longest=10)) == [b"short\n", None, b"next\n", b"y" * 10 + b"\n", None]


def test_a_stream_that_fails_says_so() -> None:
    """Broken compression is no crash."""
    stream = gzip.GzipFile(fileobj=io.BytesIO(b"\x1f\x8b\x08garbage that is no gzip"))
    with stream, pytest.raises(BrokenFileError, match="cannot be read further"):
        list(lines(stream))
