"""Fetches a page of metrics over HTTP, with a bound on time and size."""

from __future__ import annotations

import zlib
from codecs import BOM_UTF8
from http import HTTPStatus

import aiohttp
from yarl import URL

from ext_proc.core.errors import KvpickerError

MAX_BYTES = 4 * 1024 * 1024
"""Of a page, compressed or not; one of a 16-rank engine has 0.7 MB."""

MAX_REDIRECTS = 2

_REDIRECTS = frozenset(
    {
        HTTPStatus.MOVED_PERMANENTLY,
        HTTPStatus.FOUND,
        HTTPStatus.SEE_OTHER,
        HTTPStatus.TEMPORARY_REDIRECT,
        HTTPStatus.PERMANENT_REDIRECT,
    }
)
_GZIP_MAGIC = b"\x1f\x8b"
_MOST_MEMBERS = 64
"""Of a gzip page, which may be several files in a row; each of them costs a copy of the rest."""

_ANY_HEADER = zlib.MAX_WBITS | 32
"""Tells zlib to accept a gzip and a zlib header."""

_NOT_METRICS = (b"<", b"{", b"[")
"""How HTML and JSON begin, and no page of metrics does."""


class ScrapeError(KvpickerError):
    """An engine did not give its metrics; `reason` is a metric label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def open_session() -> aiohttp.ClientSession:
    """Make the HTTP client for all scrapes.

    Pages are asked for uncompressed: on a local network that costs both sides less than gzip.
    """
    return aiohttp.ClientSession(
        auto_decompress=False,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"},
    )


async def fetch_page(
    session: aiohttp.ClientSession, url: URL, *, patience: aiohttp.ClientTimeout, token: str | None = None
) -> tuple[bytes, URL]:
    """Fetch a page; returns it and where it was found.

    Redirects are followed only to the same host and port: what another one says is not about this endpoint, and it
    must not see the token.

    Args:
        session: made by `open_session`.
        url: where to look.
        patience: time limit of everything together.
        token: sent as bearer token.

    Raises ScrapeError.
    """
    headers = None if token is None else {"Authorization": f"Bearer {token}"}
    try:
        for _ in range(1 + MAX_REDIRECTS):
            async with session.get(url, allow_redirects=False, headers=headers, timeout=patience) as response:
                if response.status in _REDIRECTS:
                    url = _target(url, response.headers.get("Location", ""))
                    continue
                if response.status != HTTPStatus.OK:
                    raise ScrapeError(f"http_{response.status}")
                page = _unpacked(await _read_bounded(response), response.headers.get("Content-Encoding", ""))
            return _checked(page, is_whole=_has_end(response)), url
    except TimeoutError as error:
        raise ScrapeError("timeout") from error
    except aiohttp.ClientPayloadError as error:
        raise ScrapeError("cut") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ScrapeError("unreachable") from error
    raise ScrapeError("redirects")


def _target(url: URL, location: str) -> URL:
    try:
        target = url.join(URL(location))
        is_same = target.origin() == url.origin()
    except ValueError:
        is_same = False
    if not is_same:
        raise ScrapeError("redirects")
    return target


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    if response.content_length is not None:
        if response.content_length > MAX_BYTES:
            raise ScrapeError("too_large")
        return await response.read()  # the length is a bound, and this is quicker
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_BYTES:
            raise ScrapeError("too_large")
    return b"".join(chunks)


def _unpacked(page: bytes, encoding: str) -> bytes:
    if encoding.lower() in {"", "identity"} and not page.startswith(_GZIP_MAGIC):
        return page
    parts, left = list[bytes](), MAX_BYTES
    for _ in range(_MOST_MEMBERS):
        unpacker = zlib.decompressobj(_ANY_HEADER)
        try:
            parts.append(unpacker.decompress(page, left + 1))
        except zlib.error as error:
            raise ScrapeError("encoding") from error
        left -= len(parts[-1])
        if left < 0:
            raise ScrapeError("too_large")
        if not unpacker.eof:
            raise ScrapeError("cut")
        page = unpacker.unused_data
        if not page.startswith(_GZIP_MAGIC):
            return b"".join(parts)
    raise ScrapeError("encoding")


def _has_end(response: aiohttp.ClientResponse) -> bool:
    """Tell whether the answer says where it ends, so that one that was cut would have been noticed."""
    return response.content_length is not None or "chunked" in response.headers.get("Transfer-Encoding", "").lower()


def _checked(page: bytes, *, is_whole: bool) -> bytes:
    """Give the last line of a whole page its end, which some exporters leave out."""
    page = page.removeprefix(BOM_UTF8)
    if page.lstrip()[:1] in _NOT_METRICS:
        raise ScrapeError("not_metrics")
    return page + b"\n" if is_whole and page and not page.endswith(b"\n") else page
