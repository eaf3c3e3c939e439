"""Payload of a KV event message → events: maps and arrays, vLLM's and SGLang's, of every version.

Engines write events as maps or as arrays whose first element is the kind, and grow fields at the end. A batch may mix
both. What cannot be used is skipped and named; the rest of the batch counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ext_proc.core.kv_events import AllCleared, Batch, BlocksRemoved, BlocksStored, EngineHash, KvEvent, tier

LARGEST_PAYLOAD = 4 * 1024 * 1024
"""Bytes; one step of an engine with 50,000 blocks. Decoding more would hold up requests."""

_STORED = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
    "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
)  # fmt: skip
_REMOVED = ("block_hashes", "medium", "group_idx")
_HASH_TYPES = frozenset({int, bytes})
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
    try:
        batch = _decode(payload)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        raise UndecodableError("not_msgpack") from None
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):  # noqa: PLR2004  time, events
        raise UndecodableError("not_a_batch")
    events, skipped = list[KvEvent](), list[str]()
    run = _Removals(events)
    for event in batch[1]:
        try:
            kind, fields = _kind(event)
            if kind == "BlockRemoved":
                run.add(fields)
                continue
            run.end()
            events.append(_other(kind, fields))
        except _SkippedError as error:
            skipped.append(str(error))
    rank = batch[2] if len(batch) > 2 and type(batch[2]) is int else None  # noqa: PLR2004
    return Batch(events, rank, skipped)


class _Removals:
    """Joins removals that follow each other, since engines give up blocks one by one."""

    def __init__(self, events: list[KvEvent]) -> None:
        self._events = events
        self.end()

    def end(self) -> None:
        """Let the next one be an event of its own."""
        self._hashes: list[EngineHash] | None = None
        self._medium = self._number = None

    def add(self, fields: Mapping[str, Any]) -> None:
        """Add a removal to the events."""
        hashes, medium, number = _hashes(fields), fields.get("medium"), fields.get("group_idx")
        if self._hashes is not None and medium == self._medium and number == self._number:
            self._hashes += hashes
            return
        self._events.append(BlocksRemoved(hashes, tier(_text(fields, "medium")), _group(fields)))
        self._hashes, self._medium, self._number = hashes, medium, number


def _kind(event: Any) -> tuple[Any, Mapping[str, Any]]:
    if type(event) is dict:
        return event.get("type"), event
    if isinstance(event, list) and event:
        names = _STORED if event[0] == "BlockStored" else _REMOVED
        return event[0], dict(zip(names, event[1:], strict=False))
    return event, {}


def _other(kind: Any, fields: Mapping[str, Any]) -> KvEvent:
    if kind == "BlockStored":
        return _stored(fields)
    if kind == "AllBlocksCleared":
        return AllCleared()
    raise _SkippedError("unknown_event")


def _stored(fields: Mapping[str, Any]) -> BlocksStored:
    hashes, size, parent = _hashes(fields), fields.get("block_size"), fields.get("parent_block_hash")
    if type(size) is not int or size < 1 or not (parent is None or type(parent) in _HASH_TYPES):
        raise _SkippedError("malformed")
    try:
        tokens = array("I", fields.get("token_ids") or ())
    except (OverflowError, TypeError, ValueError):
        raise _SkippedError("tokens") from None
    if len(tokens) != len(hashes) * size:
        raise _SkippedError("tokens")
    # An early SGLang has a map of further fields where others have the adapter's name.
    extra = fields.get("lora_name")
    salted = extra if isinstance(extra, dict) else fields
    adapter = _text(fields, "lora_name")
    number = fields.get("lora_id")
    if not adapter and number is not None:
        adapter = f"lora_id {number}"  # no request says so, but the base model's blocks stay apart
    salt = _text(salted, "cache_salt")
    keys: Sequence[bytes] = ()
    if fields.get("extra_keys"):
        keys, salt = _keys(fields["extra_keys"], len(hashes), adapter, salt, is_first=parent is None)
    return BlocksStored(
        hashes=hashes,
        tokens=tokens,
        block_tokens=size,
        parent=parent,
        adapter=adapter,
        salt=salt,
        keys=keys,
        tier=tier(_text(fields, "medium")),
        group=_group(fields),
        kind=_text(fields, "kv_cache_spec_kind"),
    )


def _keys(extra: Any, blocks: int, adapter: str, salt: str, *, is_first: bool) -> tuple[Sequence[bytes], str]:
    """Take apart what a block depends on, an untagged list per block: adapter, images, and in the first block the salt.

    Returns:
        What remains per block once adapter and salt are known, and the salt.
    """
    if not isinstance(extra, list) or len(extra) != blocks:
        raise _SkippedError("malformed")
    found = []
    for place, entry in enumerate(extra):
        rest = list(entry) if isinstance(entry, list) else [] if entry is None else [entry]
        if adapter and rest and rest[0] == adapter:
            del rest[0]
        if is_first and place == 0 and rest and isinstance(rest[-1], str):
            salt = rest.pop()
        found.append(_encode(rest) if rest else b"")
    return (found if any(found) else ()), salt


def _hashes(fields: Mapping[str, Any]) -> list[EngineHash]:
    hashes = fields.get("block_hashes")
    if type(hashes) is not list or not hashes:
        raise _SkippedError("malformed")
    if (len(hashes) > 1 or type(hashes[0]) not in _HASH_TYPES) and not _HASH_TYPES.issuperset(map(type, hashes)):
        raise _SkippedError("malformed")
    return hashes


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _group(fields: Mapping[str, Any]) -> int | None:
    value = fields.get("group_idx")
    return value if type(value) is int else None
