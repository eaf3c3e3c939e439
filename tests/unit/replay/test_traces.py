"""Readers of traces: what each format becomes, how formats are told apart, what is said of unusable lines."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.replay import traces
from ext_proc.replay.traces import Trace, read_trace

MOONCAKE = '{"timestamp": 1000, "input_length": 1100, "output_length": 7, "hash_ids": [3, 4, 5]}'
LATER = '{"timestamp": 2500, "input_length": 512, "output_length": 0, "hash_ids": [3]}'
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,1374,44
2023-11-16 18:15:47.1805900,396,109
"""
FINISHED = {
    "time": "2026-01-31T10:00:02Z", "level": "info", "event": "request_finished", "operation": "chat", "ending": "ok",
    "prompt_tokens": 1200, "completion_tokens": 40, "duration_ms": 1500.0,
}  # fmt: skip


def read(tmp_path: Path, text: str | bytes, format_: str = "", limit: int | None = None) -> Trace:
    """Read a trace with that content."""
    path = tmp_path / "trace"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(path, format_, limit)


def body(text: str, **members: Any) -> dict[str, Any]:
    """Make the body of a chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **members}


def lines(*values: Any) -> str:
    """Write values as JSON lines."""
    return "".join(json.dumps(value) + "\n" for value in values)


def test_mooncake_times_are_milliseconds_and_count_from_the_first(tmp_path: Path) -> None:
    """The id of a block that is not full is left out, and an answer has at least one token."""
    trace = read(tmp_path, f"{MOONCAKE}\n\n{LATER}\n")
    assert (trace.format, trace.block_tokens, trace.unusable) == ("mooncake", 512, 0)
    first, second = trace.requests
    assert (first.at, first.prompt_tokens, first.output_tokens, first.blocks) == (0.0, 1100, 7, (3, 4))
    assert (second.at, second.output_tokens, second.blocks) == (1.5, 1, (3,))


def test_azure_prompts_share_nothing(tmp_path: Path) -> None:
    """Seven digits of a second are read, and the note says that nothing can be cached."""
    trace = read(tmp_path, AZURE)
    assert (trace.format, [request.prompt_tokens for request in trace.requests]) == ("azure", [1374, 396])
    assert trace.requests[1].at == pytest.approx(0.5)
    assert len(set(trace.requests[0].blocks)) == 2
    assert not set(trace.requests[0].blocks) & set(trace.requests[1].blocks)
    assert "unique" in trace.note


def test_bodies_that_begin_alike_share_blocks(tmp_path: Path) -> None:
    """They are hashed as the server does it: equal beginnings have equal ids, and only those."""
    start = "word " * 400
    trace = read(tmp_path, lines(*(body(start + end * 100, timestamp=5) for end in ("one ", "two "))))
    one, two = (request.blocks for request in trace.requests)
    shared = sum(a == b for a, b in zip(one, two, strict=True))
    assert trace.format == "bodies"
    assert 2000 // (64 * 4) <= shared < len(one)


def test_the_apis_of_a_conversation_hash_alike(tmp_path: Path) -> None:
    """OpenAI's and Anthropic's forms of a conversation are one prefix here too."""
    text = "a question " * 60
    openai = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]}
    anthropic = {"model": "m", "system": "Be brief.", "messages": [{"role": "user", "content": text}], "max_tokens": 9}
    trace = read(tmp_path, lines({**openai, "timestamp": 1}, {**anthropic, "timestamp": 2}))
    assert trace.requests[0].blocks == trace.requests[1].blocks != ()


def test_a_wrapped_body_says_more(tmp_path: Path) -> None:
    """Time, path, output and session are taken from the wrapper; a body may be an object or its text."""
    wrapped = {"timestamp": "2026-01-31T10:00:00Z", "path": "/v1/completions", "output_tokens": 12, "session": "s"}
    plain = {**wrapped, "body": {"model": "m", "prompt": "x" * 600}}
    text = {**wrapped, "timestamp": 1769853601500, "body": json.dumps(plain["body"])}
    one, two = read(tmp_path, lines(plain, text)).requests
    assert (one.output_tokens, one.session, two.at) == (12, "s", 1.5)
    assert one.blocks == two.blocks != ()


@pytest.mark.parametrize(("members", "tokens"), [({}, 300), ({"max_tokens": 20}, 20), ({"max_tokens": 5000}, 300)])
def test_an_output_nobody_tells_of_is_typical(tmp_path: Path, members: dict[str, Any], tokens: int) -> None:
    """It is never longer than the client allows."""
    assert read(tmp_path, lines(body("hello", timestamp=1, **members))).requests[0].output_tokens == tokens


def test_bodies_without_times_are_read_in_their_order(tmp_path: Path) -> None:
    """Whoever replays them must say a rate."""
    assert not read(tmp_path, lines(body("a"), body("b"))).is_timed


def test_bodies_of_which_some_have_no_time_lose_these(tmp_path: Path) -> None:
    """They cannot be placed among the others."""
    trace = read(tmp_path, lines(body("a", timestamp=1), body("b")))
    assert (len(trace.requests), trace.unusable) == (1, 1)
    assert trace.first_unusable.endswith("trace: no `timestamp`, though other lines have one")


def test_the_log_tells_when_requests_came(tmp_path: Path) -> None:
    """A request came its duration before its line; other events and failures are passed over; order is by arrival."""
    later = {**FINISHED, "time": "2026-01-31T10:00:02.2Z", "duration_ms": 1900, "completion_tokens": None}
    failed = {**FINISHED, "ending": "reset"}
    trace = read(tmp_path, lines({"event": "server_started", "level": "info"}, FINISHED, failed, later))
    assert (trace.format, trace.unusable) == ("log", 0)
    assert [(round(r.at, 3), r.prompt_tokens, r.output_tokens) for r in trace.requests] == [
        (0.0, 1200, 300), (0.2, 1200, 40),
    ]  # fmt: skip
    assert "replay request bodies" in trace.note


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"timestamp": 1, "input_length": 1100, "output_length": 7, "hash_ids": [3]}', "`hash_ids` has 1 blocks"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 7, "hash_ids": []}', "`input_length` is 0"),
        ('{"timestamp": 1, "input_length": 99999999999, "output_length": 7, "hash_ids": []}', "`input_length` is 99"),
        ('{"timestamp": 1, "input_length": 9, "output_length": 7, "hash_ids": [-1]}', "hash_ids"),
        ('{"timestamp": 1, "input_length": 9, "hash_ids": []}', "output_length"),
        ('{"timestamp": 1e300, "input_length": 9, "output_length": 7, "hash_ids": []}', "timestamp"),
        ("not JSON", "timestamp in milliseconds"),
        ("[" * 100_000, "timestamp in milliseconds"),
    ],
    ids=["too few ids", "nothing asked", "too much asked", "negative id", "missing", "no time", "no JSON", "too deep"],
)
def test_a_bad_mooncake_line_is_counted_and_named(tmp_path: Path, line: str, message: str) -> None:
    """The reading goes on; the first bad line is told with file and number and how to mend it."""
    trace = read(tmp_path, f"{MOONCAKE}\n{line}\n{line}\n{LATER}\n")
    assert (len(trace.requests), trace.unusable) == (2, 2)
    assert trace.first_unusable.startswith(f"{tmp_path / 'trace'}:2: ")
    assert message in trace.first_unusable


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2023-11-16 18:15:46,1374", "2 columns; expected are TIMESTAMP"),
        ("yesterday,1374,44", "`TIMESTAMP` is no time"),
        ("2023-11-16 18:15:46,many,44", "`ContextTokens` is no whole number"),
        ("2023-11-16 18:15:46,1,-4", "`GeneratedTokens` is no whole number"),
        ("2023-11-16 18:15:46,0,4", "`ContextTokens` is 0"),
    ],
)
def test_a_bad_azure_line_is_counted_and_named(tmp_path: Path, line: str, message: str) -> None:
    """The column at fault is named."""
    assert message in read(tmp_path, AZURE + line).first_unusable


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("\x00\xff", "no JSON object"),
        (json.dumps({"body": "no JSON"}), "name its `path`"),
        (json.dumps({"body": {"model": "m", "input": "x"}, "path": "/v1/embeddings"}), "generates no tokens"),
        (json.dumps({"body": {"model": "m"}, "path": "/v1/chat/completions"}), "cannot be read (no_prompt)"),
        (json.dumps({"body": {}, "output_tokens": "many"}), "output_tokens"),
        (json.dumps({"body": body("x"), "output_tokens": -1}), "`output_tokens` is -1"),
        (json.dumps(body("x", timestamp=[])), "`timestamp` is no time"),
        (json.dumps(body("x", timestamp="noon")), "`timestamp` is no time"),
        (json.dumps(body("x", timestamp=1e300)), "`timestamp` is out of range"),
    ],
)
def test_a_bad_body_is_counted_and_named(tmp_path: Path, line: str, message: str) -> None:
    """The text says what is wrong and quotes nothing of the body."""
    trace = read(tmp_path, lines(body("fine", timestamp=1)) + line)
    assert trace.unusable == 1
    assert message in trace.first_unusable


def test_a_bad_log_line_is_counted_and_named(tmp_path: Path) -> None:
    """The field at fault is named."""
    trace = read(tmp_path, lines(FINISHED, {**FINISHED, "duration_ms": "long"}) + "Traceback\n")
    assert trace.unusable == 2
    assert "duration_ms" in trace.first_unusable


def test_a_prompt_is_not_quoted(tmp_path: Path) -> None:
    """Messages about bodies may end in logs."""
    secret = lines({"body": body("SECRET"), "timestamp": "SECRET"}, {"body": "SECRET"}, {"body": 1, "session": {}})
    with pytest.raises(ConfigError) as error:
        read(tmp_path, secret)
    assert "SECRET" not in str(error.value)


def test_formats_can_be_imposed(tmp_path: Path) -> None:
    """What is taken for another format by mistake can be put right."""
    with pytest.raises(ConfigError, match=r"no request could be used.*trace:1: .*columns"):
        read(tmp_path, MOONCAKE, "azure")


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    """The option that helps is named."""
    with pytest.raises(ConfigError, match=r"trace: its first lines .* --format \(mooncake, azure, log, bodies\)"):
        read(tmp_path, "a,b\n1,2\n")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The text says which file and why."""
    with pytest.raises(ConfigError, match=r"nothing: cannot be read: No such file"):
        read_trace(tmp_path / "nothing")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """Whatever format it is said to be of."""
    for format_ in ("", "azure"):
        with pytest.raises(ConfigError, match=r"trace: .*(no line|is empty)"):
            read(tmp_path, "\n", format_)


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    """It is told by its first bytes, whatever the file is called."""
    assert len(read(tmp_path, gzip.compress(AZURE.encode())).requests) == 2


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    """Windows editors write one; it costs no request and hides no header."""
    mark = b"\xef\xbb\xbf"
    bodies = read(tmp_path, mark + lines(body("a", timestamp=1), body("b", timestamp=2)).encode())
    assert (len(bodies.requests), bodies.unusable) == (2, 0)
    assert len(read(tmp_path, mark + AZURE.replace("\n", "\r\n").encode()).requests) == 2


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (json.dumps([body("a")]).encode(), "jq -c '.[]' makes lines"),
        (json.dumps(body("a"), indent=1).encode(), "jq -c . writes one object a line"),
        (lines(body("a")).encode("utf-16"), "make it UTF-8"),
        (b"a,b\n1,2\n", "format; name it with"),
    ],
)
def test_a_file_of_no_known_format_is_told_how_to_become_one(tmp_path: Path, content: bytes, hint: str) -> None:
    """By what its first bytes show."""
    with pytest.raises(ConfigError, match=re.escape(hint)):
        read(tmp_path, content)


def test_a_torn_gzip_is_refused(tmp_path: Path) -> None:
    """What cannot be read whole would be another trace."""
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path, gzip.compress(AZURE.encode() * 50)[:-20])


def test_standard_input_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe is read like a file."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(AZURE.encode())))
    assert len(read_trace(Path("-")).requests) == 2


def test_standard_input_may_be_gzip(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file may."""
    packed = io.BufferedReader(cast("io.RawIOBase", io.BytesIO(gzip.compress(AZURE.encode()))))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(packed))
    assert len(read_trace(Path("-")).requests) == 2


def test_a_limit_reads_no_further(tmp_path: Path) -> None:
    """What stands behind the last request wanted is not even looked at."""
    trace = read(tmp_path, f"{MOONCAKE}\n" + "rubbish\n" * 100, limit=1)
    assert (len(trace.requests), trace.unusable) == (1, 0)


def test_a_line_without_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as unusable, and the line behind it is read."""
    monkeypatch.setattr(traces, "LONGEST_LINE", 200)
    trace = read(tmp_path, f"{MOONCAKE}\n" + "x" * 1000 + f"\n{LATER}\n")
    assert (len(trace.requests), trace.unusable) == (2, 1)
    assert ":2: longer than 200 bytes" in trace.first_unusable


def test_a_file_of_one_endless_line_is_said_to_be_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not empty."""
    monkeypatch.setattr(traces, "LONGEST_LINE", 200)
    with pytest.raises(ConfigError, match=r"no line that can be used\. .*:1: longer than 200 bytes"):
        read(tmp_path, "x" * 1000)
