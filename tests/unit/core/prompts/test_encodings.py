"""Compressed bodies, decoded for inspection with bounded output."""

from __future__ import annotations

import gzip
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.prompts.encodings import Ending, coding, decode

TEXT = b"".join(b"%d " % (n * n) for n in range(8_000))


def _raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data)[2:-4]


ENCODERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "br": brotli.compress,
}
NAMES = list(ENCODERS)


@pytest.mark.parametrize("name", NAMES)
def test_each_coding_is_decoded(name: str) -> None:
    """What a client compresses is read again whole."""
    decoded = decode(name, ENCODERS[name](TEXT), 1_000_000)
    assert (decoded.data, decoded.ending) == (TEXT, Ending.WHOLE)


def test_deflate_may_be_raw() -> None:
    """Some clients send deflate without the zlib header."""
    decoded = decode("deflate", _raw_deflate(TEXT), 1_000_000)
    assert (decoded.data, decoded.ending) == (TEXT, Ending.WHOLE)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_members_and_frames_are_joined(name: str) -> None:
    """A body of several members is one text."""
    assert decode(name, ENCODERS[name](TEXT) * 2, 1_000_000).data == TEXT * 2


def test_padding_behind_gzip_is_ignored() -> None:
    """Zeros behind the last member do no harm."""
    decoded = decode("gzip", gzip.compress(TEXT) + bytes(9), 1_000_000)
    assert (decoded.data, decoded.ending) == (TEXT, Ending.WHOLE)


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_stops_at_the_limit(name: str) -> None:
    """However far a body would expand, no more than the limit is decoded."""
    decoded = decode(name, ENCODERS[name](bytes(5_000_000)), 100_000)
    assert (len(decoded.data), decoded.ending) == (100_000, Ending.CUT)


def test_thousands_of_empty_members_end_soon() -> None:
    """A body of empty gzip members is given up instead of decoded member by member."""
    assert decode("gzip", gzip.compress(b"") * 50_000, 1_000_000).data == b""


@pytest.mark.parametrize("name", NAMES)
def test_the_beginning_of_a_cut_body_is_decoded(name: str) -> None:
    """Of a body that stops in the middle the decoded part is a beginning of the text."""
    body = ENCODERS[name](TEXT)
    decoded = decode(name, body[: len(body) * 2 // 3], 1_000_000)
    assert TEXT.startswith(decoded.data)
    assert decoded.ending is not Ending.BROKEN


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_encoded_is_broken(name: str) -> None:
    """A body that does not use the announced coding is reported, not raised."""
    assert decode(name, b'{"model":"a"}' * 9, 1_000_000).ending is Ending.BROKEN


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.binary(max_size=200), st.integers(0, 300))
def test_garbage_never_raises(name: str, garbage: bytes, position: int) -> None:
    """Damage at any place gives some ending."""
    body = ENCODERS[name](TEXT[:300])
    decode(name, body[:position] + garbage, 10_000)
    decode(name, body[:position] + garbage + body[position:], 10_000)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("", ""),
        ("identity", ""),
        ("IDENTITY", ""),
        ("identity, gzip", "gzip"),
        (" GZip ", "gzip"),
        ("gzip, zstd", None),
        ("gzip;q=1", None),
        ("lz4", None),
        ("aws-chunked", None),
    ],
)
def test_the_header_names_one_coding(header: str, name: str | None) -> None:
    """Identity means none, letter case does not matter, mixed and unknown codings are not decoded."""
    assert coding(header) == name
