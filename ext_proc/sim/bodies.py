"""Request bodies in the content encodings that the engine accepts."""

from __future__ import annotations

import zlib
from typing import Final

import brotli
import zstandard

from ext_proc.sim.errors import ApiError, bad_request

MAX_BODY: Final = 256 * 1024 * 1024


def decompress(body: bytes, encoding: str) -> bytes:
    """A body without its content encoding.

    Raises:
        ApiError: the encoding is not known (415), the bytes are broken (400) or too many (413).
    """
    kind = encoding.strip().lower()
    if kind in {"", "identity"}:
        return body
    try:
        plain = _plain(body, kind)
    except (zlib.error, zstandard.ZstdError, brotli.error) as error:
        raise bad_request(f"the body is not valid {kind}") from error
    if len(plain) > MAX_BODY:
        raise ApiError(413, "the body is too large")
    return plain


def _plain(body: bytes, kind: str) -> bytes:
    if kind in {"gzip", "deflate"}:
        return zlib.decompressobj(wbits=47).decompress(body, MAX_BODY + 1)
    if kind == "zstd":
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            return reader.read(MAX_BODY + 1)
    if kind == "br":
        plain: bytes = brotli.decompress(body)
        return plain
    raise ApiError(415, f"the content encoding {kind} is not supported")
