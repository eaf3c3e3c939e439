"""However engines write their events, the same events come out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.kv_events import Batch, BlocksStored
from ext_proc.sources import kv_decode
from ext_proc.sources.kv_decode import UndecodableError, decode
from ext_proc.sources.kv_shapes import decode_known

SIZE = 2
HASHES = st.integers(-(2**63), 2**64 - 1) | st.binary(min_size=1, max_size=32)
ORDERS = {
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
        "group_idx", "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}  # fmt: skip


@st.composite
def stored(draw: st.DrawFn) -> dict[str, Any]:
    """Make the fields of a stored event."""
    hashes = draw(st.lists(HASHES, min_size=1, max_size=3))
    return {
        "block_hashes": hashes,
        "parent_block_hash": draw(st.none() | HASHES),
        "token_ids": draw(st.lists(st.integers(0, 99), min_size=SIZE * len(hashes), max_size=SIZE * len(hashes))),
        "block_size": SIZE,
        "lora_id": draw(st.none() | st.integers(0, 3)),
        "medium": draw(st.sampled_from([None, "GPU", "CPU_PINNED"])),
        "lora_name": draw(st.none() | st.just("a")),
        "extra_keys": draw(st.none() | st.just([["a", "s"], *[None] * (len(hashes) - 1)])),
        "group_idx": draw(st.none() | st.integers(0, 1)),
        "kv_cache_spec_kind": draw(st.none() | st.just("full_attention")),
    }


REMOVED = st.fixed_dictionaries({
    "block_hashes": st.lists(HASHES, min_size=1, max_size=2),
    "medium": st.sampled_from([None, "GPU", "CPU"]),
    "group_idx": st.none() | st.integers(0, 1),
})  # fmt: skip
EVENTS = st.lists(
    st.tuples(st.just("BlockStored"), stored())
    | st.tuples(st.just("BlockRemoved"), REMOVED)
    | st.tuples(st.just("AllBlocksCleared"), st.just({})),
    max_size=5,
)


def as_map(kind: str, fields: dict[str, Any]) -> Any:
    """Write an event without the fields that are null, as later engines do."""
    return {"type": kind, **{name: value for name, value in fields.items() if value is not None}}


def as_array(kind: str, fields: dict[str, Any]) -> Any:
    """Write an event as earlier engines do."""
    return [kind, *(fields[name] for name in ORDERS[kind])]


def plain(batch: Batch) -> Any:
    """Make a batch comparable."""
    events = [
        (type(event).__name__, {name: getattr(event, name) for name in event.__struct_fields__})
        for event in batch.events
    ]
    for _, fields in events:
        fields["tokens"] = list(fields.get("tokens", ()))
    return events, batch.rank, batch.skipped


@settings(deadline=None, max_examples=60)
@given(EVENTS, st.none() | st.integers(0, 7))
def test_all_encodings_say_the_same(events: list[tuple[str, dict[str, Any]]], rank: int | None) -> None:
    """Maps, arrays, a mixture and batches that are maps themselves; decoded at once or piece by piece."""
    maps, arrays = [as_map(*event) for event in events], [as_array(*event) for event in events]
    mixed = [pair[place % 2] for place, pair in enumerate(zip(maps, arrays, strict=True))]
    expected = plain(decode(msgspec.msgpack.encode([1.5, maps, rank])))
    for content in (
        [1.5, arrays, rank],
        [1.5, mixed, rank],
        [1, arrays, rank],
        {"ts": 1.5, "events": maps, "data_parallel_rank": rank},
        {"ts": 1.5, "events": maps, "attn_dp_rank": rank},
        {"ts": 1.5, "events": arrays, "data_parallel_rank": rank},
    ):
        assert plain(decode(msgspec.msgpack.encode(content))) == expected
    told = kv_decode._loose(msgspec.msgpack.encode([1.5, maps, rank]))
    skipped: list[str] = []
    assert plain(kv_decode._read(kv_decode._named(told[0], skipped), *told[1:], skipped)) == expected


@pytest.mark.parametrize("events", [2, 20, 70_000])
def test_what_engines_write_is_decoded_at_once(events: int) -> None:
    """Whatever the size of the head of the events; a wrong guess would cost twice the time."""
    fields: dict[str, Any] = {"block_hashes": [1], "medium": "GPU", "group_idx": None}
    for write in (as_map, as_array):
        content = [1.5, [write("BlockRemoved", fields)] * events, 0]
        known = decode_known(msgspec.msgpack.encode(content))
        assert known is not None
        assert (len(known[0]), *known[1:]) == (events, 0, 1.5)
    assert decode_known(msgspec.msgpack.encode([1.5, [{"type": "New"}], 0])) is None


def test_keys_that_say_what_they_are() -> None:
    """Salt and adapter are told apart from images by their kind, not by their place."""
    lora, salt = {"type": "lora", "name": "a"}, {"type": "cache_salt", "salt": "s"}
    image = {"type": "mm", "modality": "image", "hash": "h", "block_offset": 1}
    event = {
        "type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": [1, 2, 3, 4],
        "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": "a", "event_version": 1,
    }  # fmt: skip
    (one,) = decode(msgspec.msgpack.encode([1.5, [{**event, "extra_keys": [[lora, salt], [lora]]}], 0])).events
    assert isinstance(one, BlocksStored)
    assert (one.adapter, one.salt, one.keys) == ("a", "s", ())
    (one,) = decode(msgspec.msgpack.encode([1.5, [{**event, "extra_keys": [[lora], [lora, image]]}], 0])).events
    assert isinstance(one, BlocksStored)
    assert (one.salt, list(one.keys)) == ("", [b"", msgspec.msgpack.encode([image])])


@pytest.mark.parametrize("content", [{"ts": 1.5}, {"events": 1}, {"events": {"type": "BlockStored"}}, {}])
def test_a_map_without_events_is_no_batch(content: Any) -> None:
    """What is no list of events cannot be one."""
    with pytest.raises(UndecodableError, match="not_a_batch"):
        decode(msgspec.msgpack.encode(content))
