"""JSON texts that were cut off or are too deep."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.prompts.repair import repair, top_level_string

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-999, 999)
    | st.text()
    | st.sampled_from(['\\"', "\\", '"', "[{", "\U0001f600"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=4), JSON, max_size=4)


def _is_beginning(part: Any, whole: Any) -> bool:
    """Tell whether `part` is `whole` up to some place."""
    if isinstance(part, str) and isinstance(whole, str):
        return whole.startswith(part)
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(_is_beginning, part, whole))
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _is_beginning(value, whole[key]) for key, value in part.items())
    return bool(part == whole)


@settings(deadline=None)
@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]))
def test_a_text_cut_at_any_byte_is_json_again(value: dict[str, Any], ascii_only: bool, indent: int | None) -> None:
    """Each beginning of an object becomes an object that says nothing else than the whole."""
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    for end in range(1, len(body) + 1):
        assert _is_beginning(msgspec.json.decode(repair(body[:end])), value)


@settings(deadline=None)
@given(OBJECTS)
def test_a_whole_text_stays_as_it_is(value: dict[str, Any]) -> None:
    """Nothing is missing, so nothing is changed."""
    body = json.dumps(value).encode()
    assert repair(body) == body


@pytest.mark.parametrize(
    ("cut", "repaired"),
    [
        (b'{"a":"x\xe2\x82', b'{"a":"x"}'),
        (b'{"a":"x\\', b'{"a":"x"}'),
        (b'{"a":"x\\\\', b'{"a":"x\\\\"}'),
        (b'{"a":"x\\u00e', b'{"a":"x"}'),
        (b'{"a":"\\ud83d', b'{"a":""}'),
        (b'{"a":"\\ud83d\\ude0', b'{"a":""}'),
        (b'{"a":"\\\\ud83d', b'{"a":"\\\\ud83d"}'),
        (b'{"a":[1,22', b'{"a":[1]}'),
        (b'{"a":1', b"{}"),
        (b'{"a":"x","b":tru', b'{"a":"x"}'),
        (b'{"a":"x","b', b'{"a":"x"}'),
        (b'{"a":{"b":"c"}  ', b'{"a":{"b":"c"}}'),
    ],
    ids=lambda value: value.decode(errors="replace"),
)
def test_only_whole_things_are_kept(cut: bytes, repaired: bytes) -> None:
    """A character, an escape, a number, a literal or a key that is not whole is left out."""
    assert repair(cut) == repaired


def test_half_a_name_is_left_out() -> None:
    """A string under a protected key must be whole, deeper ones and other keys may be cut."""
    names = frozenset({b"model"})
    assert repair(b'{"a":"x","model":"acme/ch', names) == b'{"a":"x"}'
    assert repair(b'{"a":{"model":"acme/ch', names) == b'{"a":{"model":"acme/ch"}}'
    assert repair(b'{"input":"acme/ch', names) == b'{"input":"acme/ch"}'


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_are_too_odd_to_repair(garbage: bytes) -> None:
    """What was no JSON before the cut gives some bytes and no error."""
    repair(garbage)
    top_level_string(garbage, b"model")


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":' + b"[" * 500_000,
        b'{"a":[' + b"[]," * 300_000,
        b'{"a":[' + b'"",' * 300_000,
        b'{"a":"' + b'\\"' * 300_000,
    ],
    ids=["deep", "brackets", "strings", "quotes"],
)
def test_a_busy_text_is_shortened(body: bytes) -> None:
    """Work is bounded: of a text with too many parts a smaller beginning is repaired."""
    assert repair(body)[:5] == b'{"a":'


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"model":"a","x":' + b"[" * 20_000 + b"]" * 20_000 + b"}", b'"a"'),
        (b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b',"model" : "a\\"b"}', b'"a\\"b"'),
        (b'{"model":"a","model":"b"}', b'"b"'),
        (b'{"model":"a","model":1}', None),
        (b'{"x":{"model":"a"}}', None),
        (b'{"x":"model","y":"a"}', None),
        (b'{"model":"a', None),
        (b'{"model":', None),
    ],
    ids=["before", "behind", "twice", "number", "nested", "value", "cut", "missing"],
)
def test_a_top_level_string_is_found_without_decoding(body: bytes, found: bytes | None) -> None:
    """The model of a body that is too deep is read where it stands at the top, the last one where it stands twice."""
    assert top_level_string(body, b"model") == found


@pytest.mark.parametrize("key", [b"\\u006d", b"\\a", b"\\\\", b"a"])
def test_many_keys_cost_little_however_they_are_spelt(key: bytes) -> None:
    """A hundred thousand of them hold no other request up (CPU time)."""
    body = b'{"mod\\u0065L":1,"mo\\u0064\\u0065l":"x",' + b'"%b":1,' % key * 98_000 + b'"z":1}'
    began = time.process_time()
    assert top_level_string(body, b"model") == b'"x"'
    assert time.process_time() - began < 0.15
