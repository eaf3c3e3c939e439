"""Fetching a page, from real HTTP servers that behave and that do not."""

from __future__ import annotations

import gzip
import zlib
from codecs import BOM_UTF8

import aiohttp
import pytest
from yarl import URL

from ext_proc.sources.scrape_fetch import MAX_BYTES, ScrapeError, fetch_page, open_session
from tests.unit.sources.pages import case, signals
from tests.unit.sources.serving import Answer, Engine, cut, drip, flood, hang, page, redirecting, serving, until_closed

PATIENCE, LITTLE = aiohttp.ClientTimeout(total=10), aiohttp.ClientTimeout(total=0.5)
PAGE = b"vllm:num_requests_running 3\n"


async def fetch(
    engine: Engine, token: str | None = None, patience: aiohttp.ClientTimeout = PATIENCE
) -> tuple[bytes, URL]:
    """Ask an engine for its page."""
    async with open_session() as session:
        return await fetch_page(session, URL(f"http://{engine.address}/metrics"), patience=patience, token=token)


@pytest.mark.parametrize(
    "answer",
    [
        page(PAGE),
        page(gzip.compress(PAGE), content_encoding="gzip"),
        page(gzip.compress(PAGE)),
        page(zlib.compress(PAGE), content_encoding="deflate"),
        page(gzip.compress(PAGE[:9]) + gzip.compress(PAGE[9:]), content_encoding="gzip"),
        page(gzip.compress(PAGE) + bytes(512), content_encoding="gzip"),
        page(PAGE[:-1]),
        page(gzip.compress(PAGE[:-1])),
        page(BOM_UTF8 + PAGE),
    ],
    ids=["plain", "gzip", "gzip unsaid", "deflate", "two members", "padded", "no line end", "no line end, gzip", "BOM"],
)
async def test_a_page_is_read_however_it_is_packed(answer: Answer) -> None:
    """Compression that nobody asked for is undone, and of several gzip members none is left out (C19)."""
    async with serving() as engine:
        engine.answer = answer
        assert (await fetch(engine))[0] == PAGE


async def test_a_page_that_ends_with_its_connection_keeps_its_open_line() -> None:
    """Where nothing says how long a page is, its last line may be cut, and only what is whole counts."""
    async with serving() as engine:
        engine.answer = until_closed(b"vllm:num_requests_waiting 1\nvllm:num_requests_running 1")
        found, _ = await fetch(engine)
    assert (signals(found).waiting, signals(found).running) == (1.0, None)


async def test_c19_a_gzip_page_is_read() -> None:
    """The page of the report says that three requests run."""
    async with serving() as engine:
        engine.answer = page(case("C19")["E1"], content_encoding="gzip")
        found, _ = await fetch(engine)
    assert signals(found).running == 3.0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (page(b"", 401), "http_401"),
        (page(b"", 404), "http_404"),
        (page(b"", 503), "http_503"),
        (page(b" <html>login</html>", content_type="text/html"), "not_metrics"),
        (page(b'[{"iter": 1}]', content_type="application/json"), "not_metrics"),
        (page(b"#" * (MAX_BYTES + 1)), "too_large"),
        (page(gzip.compress(b"#" * (MAX_BYTES + 1)), content_encoding="gzip"), "too_large"),
        (page(gzip.compress(b"#" * MAX_BYTES) + gzip.compress(b"#"), content_encoding="gzip"), "too_large"),
        (page(gzip.compress(b"") * 1000, content_encoding="gzip"), "encoding"),
        (flood, "too_large"),
        (page(b"\x1f\x8bnonsense"), "encoding"),
        (page(PAGE, content_encoding="br"), "encoding"),
        (page(gzip.compress(PAGE)[:-9], content_encoding="gzip"), "cut"),
        (cut, "cut"),
        (hang, "timeout"),
        (drip, "timeout"),
    ],
    ids=[
        *(
            "401",
            "404",
            "503",
            "HTML",
            "JSON",
            "huge",
            "bomb",
            "two bombs",
            "members",
            "endless",
            "no gzip",
            "brotli",
            "half a gzip",
        ),
        *("cut", "hangs", "drips"),
    ],
)
async def test_each_way_to_fail_has_its_reason(answer: Answer, reason: str) -> None:
    """No page is understood where there is none, and every attempt ends in time (C11, C13)."""
    async with serving() as engine:
        engine.answer = answer
        with pytest.raises(ScrapeError) as caught:
            await fetch(engine, patience=LITTLE if answer in (hang, drip) else PATIENCE)
    assert caught.value.reason == reason


async def test_an_engine_that_is_gone_is_unreachable() -> None:
    """A refused connection has a reason of its own, since it is not about metrics."""
    async with serving() as engine:
        pass
    with pytest.raises(ScrapeError, match="unreachable"):
        await fetch(engine)


async def test_c13_a_redirect_to_the_same_engine_is_followed() -> None:
    """Where the page was found is told, so that the next time takes no detour."""
    async with serving() as engine:
        engine.answer = redirecting("/metrics/", PAGE)
        assert await fetch(engine) == (PAGE, URL(f"http://{engine.address}/metrics/"))


@pytest.mark.parametrize("location", ["http://127.0.0.1:1/metrics", "//[", "", "ftp:///x"])
async def test_c13_no_other_redirect_is_followed(location: str) -> None:
    """What another server says is not about this endpoint, and a token is not for it."""
    async with serving() as engine:
        engine.answer = redirecting(location, PAGE)
        with pytest.raises(ScrapeError, match="redirects"):
            await fetch(engine)


async def test_c13_a_token_is_sent() -> None:
    """With a token the engine sees it, also after a redirect; without one it sees none."""
    async with serving() as engine:
        engine.answer = redirecting("/metrics/", PAGE)
        await fetch(engine, "secret")
        await fetch(engine)
    assert engine.authorizations == ["Bearer secret", "Bearer secret", None, None]
