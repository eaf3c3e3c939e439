"""Another model in a body: the value changes, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.prompts import with_model

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(
    body=st.dictionaries(st.text(max_size=8) | st.just("model"), JSON, max_size=5),
    model=st.text(),
    ascii_=st.booleans(),
)
def test_any_object_names_the_model_then(body: dict[str, Any], model: str, ascii_: bool) -> None:
    """Whatever it named before, and whatever its other fields hold, which stay as they are."""
    if not isinstance(body.get("model", ""), str):
        return
    model = model.encode("utf-8", "replace").decode()
    text = json.dumps(body, ensure_ascii=ascii_).encode("utf-8", "replace")
    made = with_model(text, model)
    assert made is not None
    assert json.loads(made) == {**json.loads(text), "model": model}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b' \n{ "a": 1 , "model"  :\t"old", "z":[1, 2] } ', b' \n{ "a": 1 , "model"  :\t"new", "z":[1, 2] } '),
        (b'{"messages":[{"content":"\\"model\\": \\"x\\"","model":"inner"}],"model":"old"}', None),
        (b'{"model":"first","model":"last"}', b'{"model":"first","model":"new"}'),
        (b'{"mod\\u0065l":"old"}', None),
        (b'\xef\xbb\xbf{"model":"old"}', None),
        (b'\xef\xbb\xbf{"a":1}', b'\xef\xbb\xbf{"model":"new","a":1}'),
        (b'{"model":"old","tools":[' + b'{"model":1},' * 40 + b'{"model":"x"}]}', None),
        (b'{"stream":true}', b'{"model":"new","stream":true}'),
        (b"{ }", b'{"model":"new" }'),
        (b'{"model":"old","n":1.0e5,"cut":"in the mid', b'{"model":"new","n":1.0e5,"cut":"in the mid'),
    ],
    ids=[
        "blanks stay",
        "deeper ones stay",
        "the last counts",
        "escaped",
        "marked",
        "missing behind a mark",
        "many deeper ones",
        "missing",
        "empty",
        "cut off",
    ],
)
def test_every_other_byte_stays(body: bytes, expected: bytes | None) -> None:
    """Blanks, order, notation of numbers and what looks like a model elsewhere are not touched."""
    assert with_model(body, "new") == (expected or body.replace(b'"old"', b'"new"'))


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b'"text"', b'{"model":5}', b'{"model":null}', b"\x1f\x8b\x08", b"--x\r\n"]
)
def test_what_is_no_object_with_a_name_is_left_alone(body: bytes) -> None:
    """An engine would refuse it anyway, or it is something else."""
    assert with_model(body, "new") is None


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_what_is_no_utf8_is_left_alone(encoding: str) -> None:
    """Bytes of UTF-8 would break it, though it may begin with the same byte."""
    assert with_model('{"model":"old"}'.encode(encoding), "new") is None


def test_a_name_is_written_as_json() -> None:
    """Quotes in it end nothing."""
    made = with_model(b'{"model":"a"}', 'x","stream":true,"y":"')
    assert made is not None
    assert json.loads(made) == {"model": 'x","stream":true,"y":"'}
