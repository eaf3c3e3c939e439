"""Payload of a KV event message → events: maps and arrays, vLLM's and SGLang's, of every version.

Engines write events as maps or as arrays whose first element is the kind, and grow fields at the end. A batch may mix
both, and be either itself. What cannot be used is skipped and named; the rest of the batch counts. A batch in which all
is as it should be, as nearly all are, is decoded at once into the shapes of `kv_shapes`; any other one piece by piece.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ext_proc.core.kv_events import AllCleared, Batch, BlocksRemoved, BlocksStored, EngineHash, KvEvent, Tier, tier
from ext_proc.sources.kv_shapes import Cleared, Removed, Stored, decode_known, named

LARGEST_PAYLOAD = 4 * 1024 * 1024
"""Bytes; one step of an engine with 50,000 blocks. Decoding more would hold up requests."""

_ELSEWHERE = "REMOTE"
_HASH_TYPES = frozenset({int, bytes})
_NO_ADAPTER = (None, 0)
"""Engines number adapters from 1; some relays write 0 for the base model."""

_RANKS = ("data_parallel_rank", "attn_dp_rank")
_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


class UndecodableError(Exception):
    """A payload is no batch of events; `reason` is a metric label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _SkippedError(Exception):
    """An event cannot be used."""


def decode(payload: bytes) -> Batch:
    """Read a batch.

    Raises:
        UndecodableError: it is none, or a too large one.
    """
    if len(payload) > LARGEST_PAYLOAD:
        raise UndecodableError("too_large")
    known = decode_known(payload)
    if known is not None:
        told, rank, at = known
        return _read(told, rank, at, [])
    skipped = list[str]()
    events, rank, at = _loose(payload)
    return _read(_named(events, skipped), rank, at, skipped)


def _loose(payload: bytes) -> tuple[list[Any], Any, Any]:
    """Decode a batch whose events may be anything; return them, its rank and its time."""
    try:
        batch = _decode(payload)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        raise UndecodableError("not_msgpack") from None
    if isinstance(batch, dict):
        events, at = batch.get("events"), batch.get("ts")
        rank = next((batch[name] for name in _RANKS if name in batch), None)
    else:
        told = batch if isinstance(batch, list) else []
        at, events, rank = (*told[:3], None, None, None)[:3]
    if not isinstance(events, list):
        raise UndecodableError("not_a_batch")
    return events, rank, at


def _named(events: Iterable[Any], skipped: list[str]) -> Iterable[Stored | Removed | Cleared]:
    """Give events their shapes, whatever is in those; add a reason for each that has none."""
    for event in events:
        found = named(event)
        if found is None:
            skipped.append("unknown_event")
        else:
            yield found


def _read(told: Iterable[Stored | Removed | Cleared], rank: Any, at: Any, skipped: list[str]) -> Batch:
    """Make events of what was told; removals that follow each other are one, since engines give up blocks singly."""
    events, run, about = list[KvEvent](), list[EngineHash](), None
    unread = list[tuple[int | None, str]]()
    for one in told:
        try:
            if isinstance(one, Removed):
                of_this, hashes = (one.medium, one.group_idx, one.locality), _hashes(one.block_hashes)
                if about == of_this:
                    run += hashes
                    continue
                run, about = hashes, of_this
                events.append(BlocksRemoved(run, _tier(one.medium, one.locality), _number(one.group_idx)))
            else:
                about = None
                events.append(_stored(one) if isinstance(one, Stored) else AllCleared())
        except _SkippedError as error:
            skipped.append(str(error))
            if isinstance(one, Stored):
                unread.append((_number(one.group_idx), _text(one.kv_cache_spec_kind)))
    return Batch(events, _number(rank), skipped, at if isinstance(at, float) else None, unread)


def _stored(told: Stored) -> BlocksStored:
    hashes, size, parent = _hashes(told.block_hashes), told.block_size, told.parent_block_hash
    place, group, kind = _tier(told.medium, told.locality), _number(told.group_idx), _text(told.kv_cache_spec_kind)
    if told.token_ids == [] and place is not Tier.GPU:  # vLLM's connectors: copies of blocks that are named only
        return BlocksStored(hashes=hashes, tokens=(), block_tokens=0, tier=place, group=group, kind=kind)
    if type(size) is not int or size < 1 or not (parent is None or type(parent) in _HASH_TYPES):
        raise _SkippedError("malformed")
    ids: Any = told.token_ids
    try:
        tokens = array("I", ids if isinstance(ids, list) else ())  # bytes would be read as the ids' own bytes
    except (OverflowError, TypeError, ValueError):
        raise _SkippedError("tokens") from None
    if len(tokens) != len(hashes) * size:
        raise _SkippedError("tokens")
    # An early SGLang has a map of further fields where others have the adapter's name.
    extra = told.lora_name
    salt = _text(extra.get("cache_salt")) if isinstance(extra, dict) else _text(told.cache_salt)
    adapter = _text(extra)
    if not adapter and told.lora_id not in _NO_ADAPTER:
        adapter = f"lora_id {told.lora_id}"  # no request says so, but the base model's blocks stay apart
    keys: Sequence[bytes] = ()
    if told.extra_keys:
        keys, salt = _keys(told.extra_keys, len(hashes), adapter, salt, is_first=parent is None)
    return BlocksStored(
        hashes=hashes,
        tokens=tokens,
        block_tokens=size,
        parent=parent,
        adapter=adapter,
        salt=salt,
        keys=keys,
        tier=place,
        group=group,
        kind=kind,
    )


def _keys(extra: Any, blocks: int, adapter: str, salt: str, *, is_first: bool) -> tuple[Sequence[bytes], str]:
    """Take apart what a block depends on, a list per block: adapter, images, and in the first block the salt.

    Later versions say of each entry what it is.

    Returns:
        What remains per block once adapter and salt are known, and the salt.
    """
    if not isinstance(extra, list) or len(extra) != blocks:
        raise _SkippedError("malformed")
    found = []
    for place, entry in enumerate(extra):
        rest = list(entry) if isinstance(entry, list) else [] if entry is None else [entry]
        if any(isinstance(key, dict) for key in rest):
            rest, said = _without_what_is_known(rest, adapter)
            salt = said or salt
        else:
            if adapter and rest and rest[0] == adapter:
                del rest[0]
            if is_first and place == 0 and rest and isinstance(rest[-1], str):
                salt = rest.pop()
        found.append(_encode(rest) if rest else b"")
    return (found if any(found) else ()), salt


def _without_what_is_known(keys: Sequence[Any], adapter: str) -> tuple[list[Any], str]:
    """Return keys that say what they are, without adapter and salt; and the salt, empty if none is among them."""
    rest, salt = [], ""
    for key in keys:
        kind = key.get("type") if isinstance(key, Mapping) else None
        if kind == "cache_salt":
            salt = _text(key.get("salt"))
        elif kind != "lora" or key.get("name") != adapter:
            rest.append(key)
    return rest, salt


def _hashes(hashes: Any) -> list[EngineHash]:
    if type(hashes) is not list or not hashes:
        raise _SkippedError("malformed")
    if (len(hashes) > 1 or type(hashes[0]) not in _HASH_TYPES) and not _HASH_TYPES.issuperset(map(type, hashes)):
        raise _SkippedError("malformed")
    return hashes


def _tier(medium: Any, locality: Any) -> Tier:
    return Tier.EXTERNAL if locality == _ELSEWHERE else tier(_text(medium))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if type(value) is int else None
