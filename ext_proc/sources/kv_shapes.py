"""How engines write KV events: the fields of each kind, as maps and as arrays, and batches of them.

Only what is needed of all is decoded strictly: a batch in which some field is of another type than it always is has to
be looked at piece by piece.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

_Hash: TypeAlias = int | bytes


class Stored(msgspec.Struct, tag="BlockStored", gc=False):
    """Blocks were stored; the order of the fields is that of the arrays."""

    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None = None
    token_ids: list[int] = msgspec.field(default_factory=list)
    block_size: int = 0
    lora_id: Any = None
    medium: Any = None
    lora_name: Any = None
    extra_keys: Any = None
    group_idx: Any = None
    kv_cache_spec_kind: Any = None
    kv_cache_spec_sliding_window: Any = None
    locality: Any = None
    cache_salt: Any = None


class Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    """Blocks were given up."""

    block_hashes: list[_Hash]
    medium: Any = None
    group_idx: Any = None
    locality: Any = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """All blocks were given up."""


class _StoredArray(Stored, array_like=True, tag="BlockStored", gc=False):
    pass


class _RemovedArray(Removed, array_like=True, tag="BlockRemoved", gc=False):
    pass


class _ClearedArray(Cleared, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class _Maps(msgspec.Struct, array_like=True, gc=False):
    ts: Any
    events: list[Stored | Removed | Cleared]
    rank: Any = None


class _Arrays(msgspec.Struct, array_like=True, gc=False):
    ts: Any
    events: list[_StoredArray | _RemovedArray | _ClearedArray]
    rank: Any = None


class _NamedMaps(msgspec.Struct, gc=False):
    events: list[Stored | Removed | Cleared]
    ts: Any = None
    data_parallel_rank: Any = None
    attn_dp_rank: Any = None

    @property
    def rank(self) -> Any:
        """The rank, by whichever name."""
        return self.attn_dp_rank if self.data_parallel_rank is None else self.data_parallel_rank


_decode_maps = msgspec.msgpack.Decoder(_Maps).decode
_decode_arrays = msgspec.msgpack.Decoder(_Arrays).decode
_decode_named = msgspec.msgpack.Decoder(_NamedMaps).decode

_FLOAT64, _FLOAT64_BYTES = 0xCB, 8
_LENGTH_BYTES = {0xDC: 2, 0xDD: 4}
_SHAPES: dict[Any, type[Stored | Removed | Cleared]] = {
    "BlockStored": Stored,
    "BlockRemoved": Removed,
    "AllBlocksCleared": Cleared,
}


def decode_known(payload: bytes) -> tuple[list[Any], Any, Any] | None:
    """Decode a batch whose events all are of the shapes above; return them, its rank and its time; else None."""
    try:
        if payload[:1] >= b"\x90":
            batch: Any = (_decode_arrays if _has_arrays(payload) else _decode_maps)(payload)
        else:
            batch = _decode_named(payload)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return None
    return batch.events, batch.rank, batch.ts


def _has_arrays(payload: bytes) -> bool:
    """Look whether the first event is an array: after the batch's own head, its time, and the head of the events."""
    at = 2 + _FLOAT64_BYTES
    if len(payload) <= at or payload[1] != _FLOAT64:
        return False
    at += 1 + _LENGTH_BYTES.get(payload[at], 0)
    return payload[at : at + 1] >= b"\x90"


def named(event: Any) -> Stored | Removed | Cleared | None:
    """Give an event its shape, unchecked; None if its kind is not known."""
    if isinstance(event, dict):
        shape = _shape(event.get("type"))
        known = {} if shape is None else {name: event[name] for name in shape.__struct_fields__ if name in event}
        return None if shape is None else shape(**{"block_hashes": None, **known} if shape is not Cleared else {})
    kind, *fields = event if isinstance(event, list) and event else [event]
    shape = _shape(kind)
    if shape is None or shape is Cleared:
        return None if shape is None else Cleared()
    return shape(*(fields or [None])[: len(shape.__struct_fields__)])


def _shape(kind: Any) -> type[Stored | Removed | Cleared] | None:
    return _SHAPES.get(kind) if isinstance(kind, str) else None
