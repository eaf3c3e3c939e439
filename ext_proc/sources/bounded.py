"""Reads the body of an answer that may be of any size, up to a limit."""

from __future__ import annotations

import aiohttp


async def read_bounded(response: aiohttp.ClientResponse, limit: int, too_large: Exception) -> bytes:
    """Return the body of an answer, unpacked if it was packed; raises `too_large` if it has more bytes than `limit`."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            raise too_large
    return bytes(body)
