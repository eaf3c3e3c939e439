"""Asks one engine what it is and what it can tell; what it does not answer is noted, and nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from ext_proc.core.kv_state import PublisherState
from ext_proc.core.model import Endpoint, MetricsSource
from ext_proc.core.prompts.token_question import TokenQuestion
from ext_proc.core.sleepers import SleepLevel
from ext_proc.doctor.pages import KvEvents, kv_events_of_sglang, kv_events_of_vllm, read_cache
from ext_proc.sources.api_keys import NO_HEADERS
from ext_proc.sources.engine_tokenizer import fetch_tokens
from ext_proc.sources.kv_publishers import Publishers
from ext_proc.sources.local_tokenizer import LocalTokenizer
from ext_proc.sources.models import ListingError, fetch_listing
from ext_proc.sources.scrape import NO_METRICS, metrics_url
from ext_proc.sources.scrape_engines import PageReader
from ext_proc.sources.scrape_fetch import ScrapeError, fetch_page
from ext_proc.sources.sleep_ask import NoSleepModeError, ask_sleep
from ext_proc.sources.tokenizing import TokenizeError

TIMEOUT_S: Final = 5.0
_MAX_BYTES: Final = 4 * 1024 * 1024
_PROMPT: Final = "kvpicker asks whether usage tells of cached tokens"

_TEXT: Final = TokenQuestion(b'"prompt":"one two three"')
_CHAT: Final = TokenQuestion(b'"messages":[{"role":"user","content":"one two three"}]', chat=True)

_SAMPLE: Final = TokenQuestion(
    b'"messages":[{"role":"system","content":"Answer in two words."},'
    b'{"role":"user","content":"Is 12345 more than 1,234.5?\\n\\n  Say it\'s so: \\u00e9\\u6771 "},'
    b'{"role":"assistant","content":" It is. "},{"role":"user","content":"def f(x):\\n    return x+10"}]',
    chat=True,
)


class Examination(msgspec.Struct, kw_only=True):
    """What one engine answered.

    Attributes:
        endpoint: its address.
        pool: its pool.
        reachable: whether anything answered at all.
        engine: what it is, by its metrics, by what it says, or by configuration; empty while unknown.
        version: what it says of its version; empty if nothing.
        models: the models that it serves.
        models_problem: why it does not say; empty if it does.
        metrics_problem: why its metrics cannot be read; empty if they can.
        missing: load signals that its engine usually gives and that were not on the page.
        kv_tokens: tokens that its KV cache holds; None if it does not say.
        block_tokens: tokens of one block of it; None if it does not say.
        prefix_caching: whether it keeps prefixes; None if it does not say.
        kv_events: how it publishes its KV events; None if it does not say.
        deaf: ports at which KV events are configured to be heard and nothing listens.
        tokenizes_text: whether `/tokenize` takes a prompt.
        tokenizes_chat: whether `/tokenize` takes a conversation.
        same_tokens: whether the local tokenizer of its pool makes the tokens that it makes; None if that is not known.
        publishers: how the kvpicker that runs with the configuration hears its KV events; none where that is not known.
        asleep: whether it sleeps; None if it does not say.
        sleep_level: how deep, if it does.
        reports_cached: whether its answers say how many tokens were cached; None if that was not tried.
        probe_problem: why trying failed; empty if it did not.
    """

    endpoint: str
    pool: str
    reachable: bool = False
    engine: str = ""
    version: str = ""
    models: tuple[str, ...] = ()
    models_problem: str = ""
    metrics_problem: str = ""
    missing: tuple[str, ...] = ()
    kv_tokens: int | None = None
    block_tokens: int | None = None
    prefix_caching: bool | None = None
    kv_events: KvEvents | None = None
    asleep: bool | None = None
    sleep_level: SleepLevel = SleepLevel.UNKNOWN
    deaf: tuple[str, ...] = ()
    tokenizes_text: bool = False
    tokenizes_chat: bool = False
    same_tokens: bool | None = None
    publishers: tuple[PublisherState, ...] = ()
    reports_cached: bool | None = None
    probe_problem: str = ""


async def examine(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    source: MetricsSource,
    *,
    token: str | None,
    headers: Mapping[str, str] = NO_HEADERS,
    probe: bool,
    events: Publishers | None = None,
    local: LocalTokenizer | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Examination:
    """Ask an engine everything; never raises for what an engine does.

    Args:
        session: the HTTP client.
        endpoint: the engine.
        source: where its metrics are, and which engine it is, as far as that is configured.
        token: bearer token for its metrics.
        headers: those that carry its API key.
        probe: True to have it generate one token.
        events: where its KV events are to be heard, by configuration.
        local: the tokenizer of its pool, if that has one of its own.
        timeout_s: bound on each question.
    """
    made = Examination(endpoint=endpoint.address, pool=endpoint.pool, engine=source.engine or "")
    await _ask_models(session, made, headers, timeout_s)
    if made.models_problem in ("unreachable", "timeout"):
        return made
    made.reachable = True
    await asyncio.gather(
        _ask_metrics(session, made, source, token, timeout_s),
        _ask_itself(session, made, headers, timeout_s),
        _ask_tokens(session, made, headers, timeout_s),
        _knock(made, events, timeout_s),
    )
    if local is not None and made.tokenizes_chat:
        await _compare(session, made, local, headers, timeout_s)
    if made.asleep is None and made.engine == "vllm":
        made.asleep = await _ask_sleep(session, endpoint, headers, timeout_s)
    if probe and not made.asleep:
        await _probe(session, made, headers, timeout_s)
    return made


async def _ask_models(
    session: aiohttp.ClientSession, made: Examination, headers: Mapping[str, str], timeout_s: float
) -> None:
    try:
        listing = await fetch_listing(session, made.endpoint, headers=headers, timeout_s=timeout_s)
    except ListingError as error:
        made.models_problem = error.reason
    else:
        # A base model first: it is what a question without an adapter is for.
        made.models = (*sorted(listing.models - listing.adapters), *sorted(listing.adapters))


async def _ask_metrics(
    session: aiohttp.ClientSession, made: Examination, source: MetricsSource, token: str | None, timeout_s: float
) -> None:
    if source.engine == NO_METRICS:
        made.metrics_problem = "none"
        return
    patience = aiohttp.ClientTimeout(total=timeout_s)
    try:
        page, _ = await fetch_page(session, metrics_url(made.endpoint, source), patience=patience, token=token)
    except ScrapeError as error:
        made.metrics_problem = error.reason
        return
    reading = PageReader(source.engine).read(page, 0.0)
    made.engine = reading.engine or made.engine
    made.metrics_problem = "" if reading.engine else "unknown_engine"
    made.missing = reading.missing
    made.kv_tokens = reading.signals.kv_tokens
    made.asleep, made.sleep_level = reading.signals.asleep, reading.signals.sleep_level
    cache = read_cache(page)
    made.block_tokens, made.prefix_caching = cache.block_tokens, cache.prefix_caching


async def _ask_sleep(
    session: aiohttp.ClientSession, endpoint: Endpoint, headers: Mapping[str, str], timeout_s: float
) -> bool | None:
    try:
        return await ask_sleep(session, endpoint, timeout_s, headers)
    except NoSleepModeError:
        return None


async def _ask_itself(
    session: aiohttp.ClientSession, made: Examination, headers: Mapping[str, str], timeout_s: float
) -> None:
    """Ask what only vLLM (versions and sources of events) and SGLang (all in one) answer."""
    version, sources, info = await asyncio.gather(
        _get(session, made.endpoint, "/version", headers, timeout_s),
        _get(session, made.endpoint, "/kv_event_sources", headers, timeout_s),
        _get(session, made.endpoint, "/server_info", headers, timeout_s),
    )
    told = next((page["version"] for page in (version, info) if page and isinstance(page.get("version"), str)), "")
    made.version = told[:64]
    if info is not None and "kv_events" in info:
        made.engine = made.engine or "sglang"
        made.kv_events = kv_events_of_sglang(info)
        made.prefix_caching = not info["disable_radix_cache"] if "disable_radix_cache" in info else made.prefix_caching
        made.block_tokens = made.block_tokens or made.kv_events.block_tokens
    elif sources is not None:
        made.engine = made.engine or "vllm"
        made.kv_events = kv_events_of_vllm(sources)


async def _ask_tokens(
    session: aiohttp.ClientSession, made: Examination, headers: Mapping[str, str], timeout_s: float
) -> None:
    model = made.models[0] if made.models else None

    async def answers(question: TokenQuestion) -> bool:
        try:
            told = await fetch_tokens(session, made.endpoint, question, model, headers=headers, timeout_s=timeout_s)
        except TokenizeError:
            return False
        return bool(told)

    made.tokenizes_text, made.tokenizes_chat = await asyncio.gather(answers(_TEXT), answers(_CHAT))


async def _compare(
    session: aiohttp.ClientSession,
    made: Examination,
    local: LocalTokenizer,
    headers: Mapping[str, str],
    timeout_s: float,
) -> None:
    """Have one conversation tokenized here and there: engines may not use the files of the model as they are."""
    model = made.models[0] if made.models else None
    try:
        there = await fetch_tokens(session, made.endpoint, _SAMPLE, model, headers=headers, timeout_s=timeout_s)
        made.same_tokens = list(await local.tokens(_SAMPLE, model, ())) == there
    except TokenizeError:
        made.same_tokens = False


async def _knock(made: Examination, events: Publishers | None, timeout_s: float) -> None:
    """Try the ports of its KV events; a connection says only that something listens."""
    deaf = []
    for address in (place for pair in events.addresses for place in pair if place) if events is not None else ():
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        try:
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.close()
        except (OSError, TimeoutError):
            deaf.append(address)
    made.deaf = tuple(deaf)


async def _probe(
    session: aiohttp.ClientSession, made: Examination, headers: Mapping[str, str], timeout_s: float
) -> None:
    """Have one token generated, and look at the usage: a block of details is there even when nothing was cached."""
    body: dict[str, Any] = {"prompt": _PROMPT, "max_tokens": 1}
    if made.models:
        body["model"] = made.models[0]
    answer = await _get(session, made.endpoint, "/v1/completions", headers, timeout_s, msgspec.json.encode(body))
    usage = answer.get("usage") if answer is not None else None
    if not isinstance(usage, dict):
        made.probe_problem = "no answer with usage"
        return
    details = usage.get("prompt_tokens_details")
    made.reports_cached = isinstance(details, dict) and isinstance(details.get("cached_tokens"), int)


async def _get(
    session: aiohttp.ClientSession,
    address: str,
    path: str,
    headers: Mapping[str, str],
    timeout_s: float,
    body: bytes | None = None,
) -> Mapping[str, Any] | None:
    """Fetch a JSON object; None for anything else."""
    try:
        async with session.request(
            "GET" if body is None else "POST",
            f"http://{address}{path}",
            data=body,
            headers={**headers, "Content-Type": "application/json"} if body else headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            if response.status != HTTPStatus.OK:
                return None
            read = await response.content.read(_MAX_BYTES) if response.content_length is None else await response.read()
        decoded = msgspec.json.decode(read)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None
