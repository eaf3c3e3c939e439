"""Reads what engines say of their caches and of their KV events."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ext_proc.sources.scrape_text import Scanner, labels

_INFO: Final = (b"vllm:cache_config_info", b"sglang:cache_config_info")
_SIZES: Final = (b"sglang:page_size", b"trtllm_kv_cache_tokens_per_block")
_SCANNER: Final = Scanner((*_INFO, *_SIZES))


class Cache(msgspec.Struct, frozen=True):
    """What a page of metrics says of the KV cache; None where it says nothing.

    Attributes:
        block_tokens: tokens of one block.
        prefix_caching: whether prefixes are kept.
    """

    block_tokens: int | None = None
    prefix_caching: bool | None = None


class KvEvents(msgspec.Struct, frozen=True):
    """How an engine publishes its KV events.

    Attributes:
        enabled: whether it does.
        where: address or port that it gives; empty if it publishes none.
        replay: whether missed ones can be asked for.
        block_tokens: tokens of one block, where it says so here.
        ranks: data-parallel ranks that publish, each at the port after that of the one before.
    """

    enabled: bool
    where: str = ""
    replay: bool = False
    block_tokens: int | None = None
    ranks: int = 1


def read_cache(page: bytes) -> Cache:
    """Read block size and prefix caching from a page of metrics."""
    series = _SCANNER.scan(page).series
    described = [labels(text) for name in _INFO for text in series.get(name, ())]
    sizes = [labelled.get("block_size") or labelled.get("page_size") for labelled in described]
    sizes += [str(int(value)) for name in _SIZES for value in series.get(name, {}).values()]
    caching = next(
        (labelled["enable_prefix_caching"] for labelled in described if "enable_prefix_caching" in labelled), None
    )
    return Cache(_first_number(sizes), None if caching is None else caching.lower() == "true")


def kv_events_of_vllm(sources: Mapping[str, Any]) -> KvEvents:
    """Read `/kv_event_sources` of vLLM: the settings of each data-parallel rank, none where nothing is published."""
    told = [sources[number] for number in sorted(sources, key=lambda number: (len(number), number))]
    ranks = [rank for rank in told if isinstance(rank, dict) and rank.get("enable_kv_cache_events")]
    if not ranks or ranks[0].get("publisher") == "null":
        return KvEvents(enabled=False)
    where = ", ".join(str(rank.get("endpoint", ""))[:100] for rank in ranks[:8])
    replay = all(rank.get("replay_endpoint") for rank in ranks)
    return KvEvents(enabled=True, where=where, replay=replay, ranks=len(ranks))


def kv_events_of_sglang(info: Mapping[str, Any]) -> KvEvents:
    """Read `/server_info` of SGLang."""
    told = info.get("kv_events")
    if not isinstance(told, dict) or told.get("publisher") in (None, "null"):
        return KvEvents(enabled=False, block_tokens=_whole(info.get("page_size")))
    return KvEvents(
        enabled=True,
        where=f"port {told.get('endpoint_port_base')}",
        replay=told.get("replay_endpoint_port_base") is not None,
        block_tokens=_whole(told.get("block_size")) or _whole(info.get("page_size")),
        ranks=_whole(told.get("dp_size")) or 1,
    )


def _first_number(texts: list[str | None]) -> int | None:
    for text in texts:
        with contextlib.suppress(TypeError, ValueError):
            return int(text or "")
    return None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
