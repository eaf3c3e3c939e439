"""Decodes compressed bodies for inspection, with bounded output."""

from __future__ import annotations

import enum
import io
import zlib
from collections.abc import Callable
from typing import Final

import brotli
import msgspec
import zstandard

PLAIN: Final = ("", "identity")
"""Content encodings of bodies that are not compressed."""

_STEP = 16 * 1024
_ZSTD_STEP = 128 * 1024
_MAX_MEMBERS = 128
"""More members in one gzip body are no client's habit, and each costs a new decompressor."""

_MAX_ZSTD_WINDOW = 8 * 1024 * 1024
"""The largest window a decoder should accept from strangers (RFC 8878 section 3.1.1.1.2)."""


class Ending(enum.Enum):
    """How the decoding of a body ended."""

    WHOLE = enum.auto()
    CUT = enum.auto()
    BROKEN = enum.auto()


class Decoded(msgspec.Struct, frozen=True):
    """The decoded beginning of a body, and whether there would be more."""

    data: bytes
    ending: Ending


def coding(content_encoding: str) -> str | None:
    """Read a Content-Encoding header: the one coding in use, "" for none, None for an unknown or mixed one."""
    names = [name.strip().lower() for name in content_encoding.split(",")]
    used = [name for name in names if name not in PLAIN]
    if not used:
        return ""
    return used[0] if len(used) == 1 and used[0] in _DECODERS else None


def decode(name: str, body: bytes, limit: int) -> Decoded:
    """Decode at most `limit` bytes of a body that uses the coding `name`.

    zstd and brotli bodies that stop too early may be reported as whole.
    """
    return _DECODERS[name](body, limit)


def _gzip(body: bytes, limit: int) -> Decoded:
    return _inflate(body, limit, zlib.MAX_WBITS | 16, members=_MAX_MEMBERS)


def _deflate(body: bytes, limit: int) -> Decoded:
    wrapped = _inflate(body, limit, zlib.MAX_WBITS, members=1)
    if wrapped.data or wrapped.ending is not Ending.BROKEN:
        return wrapped
    return _inflate(body, limit, -zlib.MAX_WBITS, members=1)


def _inflate(body: bytes, limit: int, wbits: int, *, members: int) -> Decoded:
    pieces: list[bytes] = []
    position = done = started = 0
    stream = zlib.decompressobj(wbits)
    # Small steps keep the copies that zlib makes of unread input small.
    while position < len(body) and limit > 0:
        if stream.eof:
            if done == members:
                break
            stream = zlib.decompressobj(wbits)
        step = body[position : position + _STEP]
        try:
            piece = stream.decompress(step, limit)
        except zlib.error:
            is_padding = done > 0 and position == started
            return Decoded(b"".join(pieces), Ending.WHOLE if is_padding else Ending.BROKEN)
        pieces.append(piece)
        limit -= len(piece)
        position += len(step) - len(stream.unused_data) - len(stream.unconsumed_tail)
        if stream.eof:
            done += 1
            started = position
    return Decoded(b"".join(pieces), Ending.WHOLE if stream.eof else Ending.CUT)


def _zstd(body: bytes, limit: int) -> Decoded:
    pieces: list[bytes] = []
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
    with decompressor.stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
        while limit > 0:
            try:
                piece = reader.read(min(limit, _ZSTD_STEP))
            except zstandard.ZstdError:
                return Decoded(b"".join(pieces), Ending.BROKEN)
            if not piece:
                return Decoded(b"".join(pieces), Ending.WHOLE)
            pieces.append(piece)
            limit -= len(piece)
    return Decoded(b"".join(pieces), Ending.CUT)


def _brotli(body: bytes, limit: int) -> Decoded:
    pieces: list[bytes] = []
    decompressor = brotli.Decompressor()
    position = 0
    while limit > 0 and not decompressor.is_finished():
        step = b""
        if decompressor.can_accept_more_data():
            step = body[position : position + _STEP]
            position += len(step)
            if not step:
                break
        try:
            piece = decompressor.process(step, output_buffer_limit=limit)[:limit]
        except brotli.error:
            return Decoded(b"".join(pieces), Ending.BROKEN)
        pieces.append(piece)
        limit -= len(piece)
    return Decoded(b"".join(pieces), Ending.WHOLE if decompressor.is_finished() else Ending.CUT)


_DECODERS: dict[str, Callable[[bytes, int], Decoded]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
    "br": _brotli,
}
