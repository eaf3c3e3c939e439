"""Batches of KV events as engines encode them, and what comes of them in the index."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core import engine_cache
from ext_proc.core.kv_events import AllCleared, BlocksRemoved, BlocksStored, Tier
from ext_proc.core.kv_feed import KvFeed
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher
from ext_proc.sources.kv_decode import LARGEST_PAYLOAD, UndecodableError, decode

IDS = list(range(100, 116))
MORE_IDS = list(range(200, 216))
TIERS = {Tier.GPU: 1.0, Tier.CPU: 0.5, Tier.DISK: 0.25, Tier.EXTERNAL: 0.25}


def payload(*events: Any, rank: int | None = 0) -> bytes:
    """Encode a batch as engines do."""
    return msgspec.msgpack.encode([1_700_000_000.5, list(events), rank])


def stored(hashes: list[Any], tokens: Any = IDS, parent: Any = None, **fields: Any) -> dict[str, Any]:
    """Make a stored event in the map form, without fields that have their defaults."""
    given_fields = {"block_hashes": hashes, "token_ids": tokens, "block_size": 16, **fields}
    return {"type": "BlockStored", "parent_block_hash": parent, **given_fields}


class Told:
    """An index that hears of engine 0 what batches say."""

    def __init__(self, *payloads: bytes) -> None:
        self.index = ResidentIndex()
        self.feeds = [self.index.feed(0, weights=TIERS)]
        self.problems: list[str] = []
        for number, content in enumerate(payloads):
            self.hear(number, content)

    @property
    def feed(self) -> KvFeed:
        """The feed of engine 0."""
        return self.feeds[0]

    def hear(self, number: int, content: bytes) -> None:
        """Take a batch."""
        batch = decode(content)
        self.problems += [*batch.skipped, *self.feed.receive(number, batch)]

    def held(self, tokens: list[int], adapter: str = "", salt: str = "", size: int = 16) -> int | None:
        """Ask for a prompt."""
        return self.index.tokens_held(TokenHasher(size).chain(tokens, adapter, salt), [0])[0]


@pytest.mark.parametrize(
    "name", [2**63 + 5, 13360216285664366642, 100, 7, -1, -(2**63), bytes(range(32)), b"\x01" * 16]
)
def test_names_of_blocks_are_integers_of_any_sign_and_size_or_bytes(name: int | bytes) -> None:
    """One block is known under each kind of name, and removed under it; kinds do not get in each other's way."""
    told = Told(payload(stored([name]), stored([55], MORE_IDS)))
    assert (told.held(IDS), told.held(MORE_IDS), told.problems) == (16, 16, [])
    told.hear(1, payload({"type": "BlockRemoved", "block_hashes": [name]}))
    assert (told.held(IDS), told.held(MORE_IDS), told.problems) == (0, 16, [])


def test_a_prompt_whose_first_block_is_gone_is_not_held() -> None:
    """A cache is of use only from the beginning of the prompt."""
    told = Told(payload(stored([100, 7], IDS + MORE_IDS), ["BlockRemoved", [100], "GPU"]))
    assert (told.held(IDS + MORE_IDS), told.problems) == (0, [])


def test_maps_and_arrays_mix_and_strange_events_are_skipped() -> None:
    """In a rolling upgrade both come; of what is new only the event itself is lost."""
    told = Told(payload(stored([11]), {"type": "NewKindOfEvent", "x": 1}, ["BlockStored", [12], 11, MORE_IDS, 16]))
    assert (told.held(IDS + MORE_IDS), told.problems) == (32, ["unknown_event"])


@pytest.mark.parametrize("cleared", [["AllBlocksCleared"], {"type": "AllBlocksCleared"}, "AllBlocksCleared"])
def test_a_cleared_cache_holds_what_came_after(cleared: Any) -> None:
    """Every form of the event is understood, and it does not end the batch."""
    told = Told(payload(stored([51]), cleared, stored([53], MORE_IDS)))
    assert (told.held(IDS), told.held(MORE_IDS), told.problems) == (0, 16, [])


@pytest.mark.parametrize("number", [0, None])
def test_d21_a_base_model_that_has_a_number_is_no_adapter(number: int | None) -> None:
    """Some relays write 0 where there is no adapter; engines number theirs from 1, and those stay apart."""
    told = Told(payload(stored([1], lora_id=number), stored([2], MORE_IDS, lora_id=1)))
    assert (told.held(IDS), told.held(MORE_IDS), told.problems) == (16, 0, [])


@pytest.mark.parametrize(
    "tokens", [bytes(64), "0" * 16, dict.fromkeys(range(16), 1), None, 7, [1.5] * 16, [-1] * 16, [2**32] * 16]
)
def test_d20_tokens_that_are_no_list_of_ids_are_no_tokens(tokens: Any) -> None:
    """Bytes and maps of the right length are not read as if they were ids: that block is not known, and the rest is."""
    told = Told(payload(stored([1], tokens), stored([2], MORE_IDS)))
    assert (told.held([0] * 16), told.held(list(range(16))), told.held(MORE_IDS)) == (None, None, 16)
    assert told.problems == ["tokens"]


def test_children_of_unknown_blocks_are_not_roots() -> None:
    """After a late start parents are unknown; what follows them is not the beginning of any prompt."""
    told = Told(payload(stored([42], parent=41)))
    assert (told.held(IDS), told.problems) == (0, ["unknown_parent"])


def test_ranks_have_caches_of_their_own() -> None:
    """What one rank gives up or clears the other still holds; the engine counts as the mean of its ranks."""
    told = Told(
        payload(stored([91]), rank=0),
        payload(stored([91]), stored([92], MORE_IDS), rank=1),
        payload({"type": "BlockRemoved", "block_hashes": [91]}, rank=1),
    )
    assert (told.held(IDS), told.held(MORE_IDS)) == (8, 8)
    told.hear(3, payload({"type": "AllBlocksCleared"}, rank=0))
    assert (told.held(IDS), told.held(MORE_IDS)) == (0, 8)


def test_the_block_size_is_the_engines() -> None:
    """An engine may choose an odd size; prompts are compared in that size and in no other."""
    ids = list(range(1056))
    told = Told(payload(stored([71], ids, block_size=1056)))
    assert (told.held([*ids, 1], size=1056), told.held(ids), told.index.block_tokens(0)) == (1056, None, 1056)


def test_parts_of_blocks_give_way_to_whole_ones() -> None:
    """Some engines report the filled part of a block first; the largest size is the block's."""
    told = Told(payload(stored([1], IDS[:4], block_size=4), stored([2], IDS), stored([3], IDS[:8], block_size=8)))
    assert (told.held(IDS), told.problems) == (16, ["other_block_size"])


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (["BlockStored", [1, 2], None, list(range(20)), 16], "tokens"),
        (["BlockStored", [3], 2, None, 16], "tokens"),
        (["BlockStored", [4], None, [[1, 2], [2, 3]], 2], "tokens"),
        (["BlockStored", [4], None, [-1] * 16, 16], "tokens"),
        (["BlockStored", [4], None, IDS, 0], "malformed"),
        (["BlockStored", [4], None, IDS, "16"], "malformed"),
        (["BlockStored", [4.5], None, IDS, 16], "malformed"),
        (["BlockStored", [4, None], None, IDS, 8], "malformed"),
        (["BlockStored", [4], [], IDS, 16], "malformed"),
        (["BlockStored", [4]], "malformed"),
        (["BlockRemoved"], "malformed"),
        (["BlockRemoved", []], "malformed"),
        (stored([4], extra_keys=[["a"], ["b"]]), "malformed"),
        ([], "unknown_event"),
        ([["BlockStored"]], "unknown_event"),
        ({}, "unknown_event"),
        (None, "unknown_event"),
    ],
)
def test_an_event_that_contradicts_itself_is_skipped(event: Any, problem: str) -> None:
    """Such an event is named, the others of its batch are used."""
    told = Told(payload(event, stored([9])))
    assert (told.held(IDS), told.problems) == (16, [problem])


def test_adapters_and_salts_keep_their_blocks_to_themselves() -> None:
    """The same tokens under an adapter or a salt are nothing to others; removal needs no adapter's name."""
    told = Told(
        payload(
            stored([81], lora_name="legal", extra_keys=[["legal"]]),
            stored([82], extra_keys=[["tenant-a"]]),
            stored([83], lora_name="legal", extra_keys=[["legal", "tenant-b"]]),
            stored([84], cache_salt="tenant-c"),
            ["BlockStored", [85], None, IDS, 16, None, "GPU", {"cache_salt": "tenant-d"}],
            ["BlockStored", [86], None, IDS, 16, 7, "GPU"],
        )
    )
    asked = [("", ""), ("legal", ""), ("", "tenant-a"), ("legal", "tenant-b"), ("", "tenant-c"), ("", "tenant-d")]
    assert [told.held(IDS, *names) for names in asked] == [0, 16, 16, 16, 16, 16]
    assert told.held(IDS, "legal", "tenant-a") == 0
    told.hear(1, payload({"type": "BlockRemoved", "block_hashes": [81]}))
    assert [told.held(IDS, *names) for names in asked[:3]] == [0, 0, 16]


def test_blocks_with_images_are_no_texts() -> None:
    """A block that depends on an image differs from one of the same tokens that does not, and so do its children."""
    told = Told(
        payload(
            stored([1, 2], IDS + MORE_IDS, extra_keys=[[["image", 3]], None]),
            stored([3], MORE_IDS, parent=1, extra_keys=[["image"]]),
        )
    )
    assert (told.held(IDS), told.problems) == (0, [])
    told.hear(1, payload(stored([4], IDS), stored([5], MORE_IDS, parent=4, extra_keys=[None])))
    assert told.held(IDS + MORE_IDS) == 32


def test_what_lies_in_a_far_tier_counts_by_its_weight() -> None:
    """A block that is left in CPU memory only counts more than nothing and less than on the GPU."""
    on_gpu = [["BlockStored", [95], None, IDS, 16, None, "GPU", None]]
    on_cpu = [["BlockStored", [95], None, IDS, 16, None, "CPU", None]]
    told = Told(payload(*on_gpu, *on_cpu))
    assert told.held(IDS) == 16
    told.hear(1, payload(["BlockRemoved", [95], "GPU"], stored([96], MORE_IDS, parent=95)))
    assert (told.held(IDS), told.held(IDS + MORE_IDS)) == (8, 24)
    told.hear(2, payload(["BlockRemoved", [95], "CPU"]))
    assert told.held(IDS + MORE_IDS) == 0


@pytest.mark.parametrize(
    ("medium", "tokens"), [(None, 16), ("gpu", 16), ("CPU_PINNED", 8), ("STORAGE", 4), ("DISK", 4), ("MOON", 4)]
)
def test_media_have_tiers(medium: str | None, tokens: int) -> None:
    """Where no medium is named there is only one, the GPU; one that is not known is far."""
    assert Told(payload(stored([1], medium=medium))).held(IDS) == tokens


def test_what_an_engine_can_fetch_from_others_is_far() -> None:
    """An engine may report what a shared store holds; its removal there leaves the engine's own copy."""
    told = Told(payload(stored([1], medium="CPU", locality="REMOTE")))
    assert told.held(IDS) == 4
    gone = {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU"}
    told.hear(1, payload(stored([1], medium="CPU"), gone | {"locality": "REMOTE"}))
    assert told.held(IDS) == 8
    told.hear(2, payload(stored([1], medium="CPU", locality="REMOTE"), gone, gone | {"locality": "REMOTE"}))
    assert told.held(IDS) == 0


def test_only_groups_with_full_attention_count() -> None:
    """Hybrid models report the same tokens in several groups; a window's blocks say nothing of the prefix."""
    told = Told(
        payload(
            stored([1], group_idx=0, kv_cache_spec_kind="sliding_window"),
            stored([2], MORE_IDS, group_idx=1, kv_cache_spec_kind="full_attention"),
            {"type": "BlockRemoved", "block_hashes": [2], "group_idx": 0},
        )
    )
    assert (told.held(IDS), told.held(MORE_IDS), told.problems) == (0, 16, ["other_group", "other_group"])
    silent = Told(payload(stored([1], group_idx=0), stored([2], MORE_IDS, group_idx=1)))
    assert (silent.held(IDS), silent.held(MORE_IDS)) == (16, 0)


def test_copies_are_counted() -> None:
    """An engine that filled a block four times gives it up four times before it is gone."""
    told = Told(payload(*[stored([5])] * 4, *[["BlockRemoved", [5], "GPU"]] * 3))
    assert told.held(IDS) == 16
    told.hear(1, payload(["BlockRemoved", [5], "GPU"]))
    assert told.held(IDS) == 0


def test_a_new_process_holds_nothing_of_the_old_ones() -> None:
    """A number that was passed means a restart: with that one event everything older is gone, without any replay."""
    told = Told(*[payload(stored([number], [*IDS[:15], number])) for number in range(100)])
    assert told.held([*IDS[:15], 42]) == 16
    told.hear(0, payload(stored([5], MORE_IDS)))
    assert (told.held([*IDS[:15], 42]), told.held(MORE_IDS)) == (0, 16)


def test_after_a_lost_connection_a_gap_is_taken_for_a_new_process() -> None:
    """It may have published more by then than the old one had."""
    told = Told(payload(stored([1])))
    told.feed.reconnected(can_ask=False)
    assert (told.feed.is_new(3), told.feed.missing(3)) == (True, 0)
    for number in range(3):
        told.feed.replayed(number, decode(payload(stored([number], MORE_IDS))))
    told.hear(3, payload(stored([9])))
    assert (told.held(IDS), told.held(MORE_IDS), told.feed.missing(5)) == (16, 16, 4)


def test_after_a_lost_connection_numbers_that_follow_are_the_same_ones() -> None:
    """Then nothing is forgotten, and a later gap is a gap like any other."""
    told = Told(payload(stored([1])))
    told.feed.reconnected(can_ask=False)
    for number in (1, 2):
        told.hear(number, payload(stored([1 + number], MORE_IDS)))
    assert (told.held(IDS), told.held(MORE_IDS)) == (16, 16)
    assert (told.feed.is_new(4), told.feed.missing(4)) == (False, 3)


def test_after_a_lost_connection_all_is_asked_for_where_that_is_possible() -> None:
    """The number that comes next may be a new process's by chance; who can ask leaves nothing to chance."""
    told = Told(payload(stored([1])))
    told.feed.reconnected(can_ask=True)
    assert (told.feed.is_new(1), told.feed.missing(1), told.feed.missing(1)) == (True, 0, 0)
    told.feed.replayed(0, decode(payload(stored([2], MORE_IDS))))
    told.hear(1, payload(stored([3, 4], IDS + MORE_IDS)))
    assert (told.held(IDS), told.held(MORE_IDS), told.feed.missing(2)) == (16, 16, None)


def test_what_was_held_before_a_gap_is_not_believed() -> None:
    """Lost messages may have given up anything; a child that comes later is linked, and what comes anew counts."""
    told = Told(payload(stored([1, 2], IDS + MORE_IDS)))
    told.hear(2, payload(stored([3], MORE_IDS, parent=1)))
    assert (told.held(IDS + MORE_IDS), told.problems) == (None, [])
    told.hear(3, payload(stored([1], IDS)))
    assert told.held(IDS + MORE_IDS) == 32


def test_messages_asked_for_again_are_not_counted_twice() -> None:
    """While an answer is awaited nothing is believed; live messages that it has brought already change nothing."""
    told = Told(payload(stored([1])))
    assert told.feed.missing(3) == 1
    assert (told.held(IDS), 0 in told.index) == (None, False)
    for number in (0, 1, 2, 3, 4):
        told.feed.replayed(number, decode(payload(stored([1]))))
    told.hear(3, payload(stored([1])))
    assert told.feed.missing(4) is None
    told.hear(4, payload(stored([1])))
    told.hear(5, payload(*[["BlockRemoved", [1]]] * 5))
    assert (told.held(IDS), told.problems) == (0, [])


def test_a_late_listener_knows_that_it_may_know_too_little() -> None:
    """Who joins late credits what it hears of, and leaves the rest to our own history; a cleared cache is known."""
    told = Told()
    told.hear(500, payload(stored([1])))
    assert (told.held(IDS), told.held(MORE_IDS), 0 in told.index) == (16, None, True)
    told.hear(501, payload(["AllBlocksCleared"]))
    assert (told.held(IDS), told.held(MORE_IDS)) == (0, 0)


def test_an_unreadable_message_is_one_that_is_lost() -> None:
    """Its number is taken, so that it is not asked for again and again; one without sense is ignored."""
    told = Told(payload(stored([1])))
    told.feed.lost(77)
    assert told.held(IDS) == 16
    told.feed.lost(1)
    assert (told.held(IDS), told.feed.missing(2)) == (None, None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not_msgpack"),
        (b"\x93\xcb", "not_msgpack"),
        (b"hello", "not_msgpack"),
        (b"\x91" * 100_000, "not_msgpack"),
        (msgspec.msgpack.encode("text"), "not_a_batch"),
        (msgspec.msgpack.encode([1.0]), "not_a_batch"),
        (msgspec.msgpack.encode([1.0, {}]), "not_a_batch"),
        (b"\xdf" + struct.pack(">I", 2**31), "not_msgpack"),
        (b"\xdd" + struct.pack(">I", 2**32 - 1), "not_msgpack"),
        (bytes(LARGEST_PAYLOAD + 1), "too_large"),
    ],
)
def test_garbage_is_refused(content: bytes, reason: str) -> None:
    """What is no batch is refused with a reason, and costs no memory that it only claims to need."""
    with pytest.raises(UndecodableError) as caught:
        decode(content)
    assert caught.value.reason == reason


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5)
NESTED = SCALARS | st.lists(SCALARS, max_size=4)
JSON = NESTED | st.lists(NESTED, max_size=4) | st.dictionaries(st.text(max_size=5), NESTED, max_size=3)
FIELDS = st.fixed_dictionaries(
    {"type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"])},
    optional={
        name: JSON | st.lists(st.integers(0, 3), max_size=3) | st.integers(0, 2)
        for name in (
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "medium",
            "extra_keys",
            "group_idx",
        )
    },
)


@settings(deadline=None)  # time is not what this is about
@given(st.lists(JSON | FIELDS, max_size=6))
def test_no_batch_can_break_the_index(events: list[Any]) -> None:
    """Whatever an engine writes, events come out or reasons do, and the index goes on."""
    told = Told(payload(*events))
    told.hear(1, payload("AllBlocksCleared", stored([1])))
    assert told.held(IDS) in {16, None}  # None where a block of another size was said to be the largest


def test_there_is_a_bound_on_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it blocks count as not held, in each tier by itself, until others are given up."""
    monkeypatch.setattr(engine_cache, "MOST_BLOCKS", 2)
    told = Told(payload(stored([1]), stored([2], MORE_IDS), stored([3], MORE_IDS, parent=1)))
    assert (told.problems, told.held(IDS + MORE_IDS)) == (["too_many_blocks"], 16)
    told.hear(1, payload(["BlockRemoved", [2]], stored([3], MORE_IDS, parent=1), stored([4], medium="CPU")))
    assert (told.held(IDS + MORE_IDS), len(told.problems)) == (32, 1)


def test_events_keep_their_fields() -> None:
    """A batch has its rank and its events in order, removals in a row as one."""
    batch = decode(
        payload(
            stored([1], medium="CPU", lora_name="a"),
            ["BlockRemoved", [1], "CPU"],
            ["BlockRemoved", [2], "CPU"],
            ["BlockRemoved", [3], "GPU"],
            ["AllBlocksCleared"],
            rank=3,
        )
    )
    first, *others = batch.events
    assert isinstance(first, BlocksStored)
    assert (first.hashes, list(first.tokens), first.adapter, first.tier) == ([1], IDS, "a", Tier.CPU)
    assert others == [BlocksRemoved([1, 2], Tier.CPU), BlocksRemoved([3], Tier.GPU), AllCleared()]
    assert (batch.rank, batch.skipped) == (3, [])
