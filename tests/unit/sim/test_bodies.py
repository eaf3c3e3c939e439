"""Content encodings of request bodies."""

from __future__ import annotations

import gzip
import zlib

import brotli
import pytest
import zstandard

from ext_proc.sim.bodies import decompress
from ext_proc.sim.errors import ApiError


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("", b"text"),
        ("identity", b"text"),
        ("gzip", gzip.compress(b"text", mtime=0)),
        ("GZIP", gzip.compress(b"text", mtime=0)),
        ("deflate", zlib.compress(b"text")),
        ("zstd", zstandard.compress(b"text")),
        ("br", brotli.compress(b"text")),
    ],
    ids=str,
)
def test_known_encodings_are_undone(encoding: str, body: bytes) -> None:
    """The engine reads bodies in the usual encodings."""
    assert decompress(body, encoding) == b"text"


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 400), ("zstd", 400), ("br", 400), ("lzma", 415)], ids=str)
def test_what_cannot_be_undone_is_refused(encoding: str, status: int) -> None:
    """Broken bodies and unknown encodings are errors of the client."""
    with pytest.raises(ApiError) as caught:
        decompress(b"not compressed", encoding)
    assert caught.value.status == status
