"""The model that a client asked for is put back into answers, wherever their pieces are cut."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ext_proc.core.renaming import Renaming

WRITTEN, ASKED = "acme/chat-8b-v2", "chat"


def renamed(body: bytes, cuts: list[int], written: str = WRITTEN, asked: str = ASKED) -> bytes:
    """Put an answer through in pieces that end at these places."""
    renaming, ends = Renaming(written, asked), sorted({min(cut, len(body)) for cut in cuts} | {len(body)})
    pieces = [body[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    return b"".join(map(renaming.feed, pieces)) + renaming.rest()


EVENTS = (
    b'data: {"id": "x", "model": "acme/chat-8b-v2", "choices": [{"delta": {"content": "\\"model\\":\\"acme"}}]}\n\n'
    b'data: {"type":"message_start","message":{"model":"acme/chat-8b-v2","role":"assistant"}}\n\ndata: [DONE]\n\n'
)


@given(st.lists(st.integers(0, len(EVENTS)), max_size=30))
def test_names_are_put_back_wherever_the_answer_is_cut(cuts: list[int]) -> None:
    """Each of them, and nothing else: what is generated is left alone even if it looks alike."""
    assert renamed(EVENTS, cuts) == EVENTS.replace(b'"acme/chat-8b-v2"', b'"chat"')


def test_every_byte_by_itself() -> None:
    """The finest cuts there are."""
    assert renamed(EVENTS, list(range(len(EVENTS)))) == EVENTS.replace(b'"acme/chat-8b-v2"', b'"chat"')


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=10))
def test_other_bytes_pass_as_they_are(body: bytes, cuts: list[int]) -> None:
    """Whatever they are, none is lost, doubled or moved."""
    assert renamed(body, cuts) == body


@pytest.mark.parametrize("name", ["a\\b", 'quote"d', "größer/模型", "$1\\1\\g<0>", ".*"])
def test_odd_names_are_names(name: str) -> None:
    """Names with marks of regular expressions, in either spelling of JSON."""
    for ascii_only in (True, False):
        body = json.dumps({"model": name, "n": 1}, ensure_ascii=ascii_only).encode()
        assert json.loads(renamed(body, [9, 12], written=name)) == {"model": ASKED, "n": 1}
        body = json.dumps({"model": WRITTEN}, ensure_ascii=ascii_only).encode()
        assert json.loads(renamed(body, [], asked=name)) == {"model": name}


def test_of_what_is_generated_nothing_waits() -> None:
    """A piece goes on at once unless its end might be the beginning of a name."""
    renaming = Renaming(WRITTEN, ASKED)
    assert renaming.feed(b'data: {"text": "model"}\n\n') == b'data: {"text": "model"}\n\n'
    assert renaming.feed(b'{"model": "acme') == b"{"
    assert renaming.feed(b'/chat-7b",') == b'"model": "acme/chat-7b",'
    assert renaming.rest() == b""
