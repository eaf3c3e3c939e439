"""The model of a form upload."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.prompts.multipart import form_field

TYPE = "multipart/form-data; boundary=XB"
MODEL = b'--XB\r\nContent-Disposition: form-data; name="model"\r\n\r\nacme/whisper-s\r\n'
FILE = (
    b'--XB\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n' + bytes(range(256)) * 40 + b"\r\n"
)
END = b"--XB--\r\n"


@pytest.mark.parametrize("body", [MODEL + FILE + END, FILE + MODEL + END], ids=["first", "last"])
def test_the_field_is_found_before_and_behind_the_file(body: bytes) -> None:
    """Clients put fields in any order, and binary content does not confuse the search."""
    assert form_field(TYPE, body, "model") == "acme/whisper-s"


@pytest.mark.parametrize(
    "body",
    [FILE + END, FILE, MODEL[:-8], MODEL[:30], b"", MODEL.replace(b"acme", b"a" * 5000) + END],
    ids=["absent", "file-cut", "value-cut", "head-cut", "empty", "huge"],
)
def test_a_field_out_of_view_is_not_guessed(body: bytes) -> None:
    """A field that is absent, cut off or absurdly long counts as not seen."""
    assert form_field(TYPE, body, "model") is None


@pytest.mark.parametrize(
    "content_type",
    [
        'multipart/form-data; boundary="XB"',
        "Multipart/Form-Data; charset=utf-8; BOUNDARY=XB",
        "multipart/form-data;boundary=XB;x=y",
    ],
)
def test_the_boundary_may_be_written_in_several_ways(content_type: str) -> None:
    """Quotes, letter case and other parameters do not matter."""
    assert form_field(content_type, MODEL + END, "model") == "acme/whisper-s"


@pytest.mark.parametrize("content_type", ["", "application/json; boundary=XB", "multipart/form-data"])
def test_other_content_types_have_no_fields(content_type: str) -> None:
    """Without a declared form nothing is searched."""
    assert form_field(content_type, MODEL + END, "model") is None


def test_an_unquoted_name_and_the_last_of_two_count() -> None:
    """Some clients do not quote, and servers take the last of equal fields."""
    again = MODEL.replace(b'"model"', b"model").replace(b"whisper-s", b"other")
    assert form_field(TYPE, MODEL + again + END, "model") == "acme/other"


def test_heads_without_an_end_cost_little() -> None:
    """A megabyte of headers that begin over and over takes milliseconds, not seconds (CPU time)."""
    part = b"--XB\r\n" + b"content-disposition:" * 200 + b"\r\n\r\nx\r\n"
    began = time.process_time()
    assert form_field(TYPE, part * 256 + END, "model") is None
    assert time.process_time() - began < 0.5


@settings(deadline=None)
@given(st.binary(max_size=300), st.text(max_size=50))
def test_no_form_is_too_odd(body: bytes, boundary: str) -> None:
    """Any bytes under any boundary give a value or none."""
    form_field(f"multipart/form-data; boundary={boundary}", MODEL + body, "model")
