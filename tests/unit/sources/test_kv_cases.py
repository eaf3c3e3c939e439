"""The batches of tests/cases/kv_events.jsonl, re-created from public bug reports, and what they must come to.

What D07 (frames), D10 (questions), D25 (silence) and D26 (answers) ask of sockets is in test_kv_events and
test_kv_catching_up.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ext_proc.core.kv_events import Tier
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.signals import EngineSignals
from ext_proc.core.token_chain import TokenHasher
from ext_proc.sources.kv_decode import UndecodableError, decode
from tests.unit.core.builders import Fleet as Engines
from tests.unit.sources.pages import signals

_FILE = Path(__file__).parents[2] / "cases" / "kv_events.jsonl"
PAYLOADS: Mapping[str, bytes] = {
    case["id"].partition("-")[0]: base64.b64decode(case["payload"])
    for case in map(json.loads, _FILE.read_text().splitlines())
}

IDS, NEXT, LOW = list(range(100, 116)), list(range(200, 216)), list(range(32))
WEIGHTS = {Tier.GPU: 1.0, Tier.CPU: 0.5, Tier.DISK: 0.25, Tier.EXTERNAL: 0.25}
GPU_ROW = ["BlockStored", [99], None, IDS, 16, None, "GPU", None]


class Fleet:
    """An index that hears of some engines, one publisher each."""

    def __init__(self, engines: int = 1) -> None:
        self.index = ResidentIndex()
        self.feeds = [self.index.feed(slot, weights=WEIGHTS) for slot in range(engines)]
        self.numbers = [0] * engines
        self.problems: list[str] = []

    def hear(self, content: bytes, slot: int = 0) -> None:
        """Take the next message of an engine."""
        self.at(self.numbers[slot], content, slot)

    def at(self, number: int, content: bytes, slot: int = 0) -> None:
        """Take a message under a number."""
        batch, feed = decode(content), self.feeds[slot]
        self.numbers[slot] = number + 1
        feed.missing(number)
        self.problems += [*batch.skipped, *feed.receive(number, batch)]

    def held(self, tokens: list[int], adapter: str = "", salt: str = "", size: int = 16) -> list[int | None]:
        """Ask all engines for a prompt."""
        return self.index.tokens_held(TokenHasher(size).chain(tokens, adapter, salt), range(len(self.feeds)))


def batch(*events: Any, rank: int | None = 0) -> bytes:
    """Encode a batch."""
    return msgspec.msgpack.encode([1.5, list(events), rank])


def removed(name: int | bytes, medium: str = "GPU") -> bytes:
    """Encode the removal of a block."""
    return batch(["BlockRemoved", [name], medium])


@pytest.mark.parametrize(("case", "name"), [("D01", 13360216285664366642), ("D04", bytes(range(32)))])
def test_names_of_any_kind(case: str, name: int | bytes) -> None:
    """D01, D04: an unsigned 64-bit number and 32 bytes name a block, beside each other, until it is removed."""
    fleet = Fleet()
    fleet.hear(batch(["BlockStored", [5], None, NEXT, 16]))
    fleet.hear(PAYLOADS[case])
    assert (fleet.held(IDS), fleet.held(NEXT)) == ([16], [16])
    fleet.hear(removed(name))
    assert (fleet.held(IDS), fleet.held(NEXT), fleet.problems) == ([0], [16], [])


def test_d02_a_small_number_is_a_name() -> None:
    """The first block is gone, so the second is of no use."""
    fleet = Fleet()
    fleet.hear(PAYLOADS["D02"])
    assert (fleet.held(LOW), fleet.problems) == ([0], [])


def test_d05_maps_arrays_and_a_new_kind() -> None:
    """What is not known is skipped and counted, and the rest is chained."""
    fleet = Fleet()
    fleet.hear(PAYLOADS["D05"])
    assert (fleet.held(IDS + NEXT), fleet.problems) == ([32], ["unknown_event"])


@pytest.mark.parametrize("payload", [PAYLOADS["D07"], b"\x93\xcb", b"", b"hello"])
def test_d07_payloads_that_are_none(payload: bytes) -> None:
    """Each is refused with a reason that can be counted."""
    with pytest.raises(UndecodableError, match="not_msgpack"):
        decode(payload)


def test_d08_a_restart_in_place() -> None:
    """From the first event of the new process on nothing of the old one is credited, without any replay (D08)."""
    fleet = Fleet()
    prompt = list(range(800))
    for place in range(50):
        parent = place - 1 if place else None
        fleet.hear(batch(["BlockStored", [place], parent, prompt[16 * place : 16 * place + 16], 16]))
    assert fleet.held(prompt) == [800]
    fleet.at(0, batch(["BlockStored", [7], None, NEXT, 16]))
    assert (fleet.held(prompt), fleet.held(NEXT)) == ([0], [16])


def test_d10_a_gap() -> None:
    """What is older loses trust, what came after it counts, even as the child of something older."""
    fleet = Fleet()
    fleet.at(10, batch(["BlockStored", [1, 2], None, IDS + NEXT, 16]))
    assert fleet.feeds[0].missing(12) == 11
    fleet.at(12, batch(["BlockStored", [3], 1, LOW[:16], 16]))
    assert fleet.held(IDS + NEXT) == [None]
    assert (fleet.problems, fleet.feeds[0].losses) == ([], 2)  # the first message was not number 0
    fleet.hear(batch(GPU_ROW))
    assert fleet.held(IDS + LOW[:16]) == [32]


def test_d12_a_child_of_an_unknown_block() -> None:
    """It is no root: a prompt that begins with its tokens gets no credit."""
    fleet = Fleet()
    fleet.hear(PAYLOADS["D12"])
    assert (fleet.held(IDS), fleet.problems) == ([0], ["unknown_parent"])


def test_d15_ranks_have_caches_of_their_own() -> None:
    """A removal by one rank leaves the other's block, and so does a cleared cache (D15)."""
    index = ResidentIndex()
    ranks = [index.feed(0, rank, is_pinned=True) for rank in range(2)]
    chain = TokenHasher(16).chain(IDS)
    other = TokenHasher(16).chain(NEXT)
    ranks[0].receive(0, decode(batch(GPU_ROW, rank=0)))
    ranks[1].receive(0, decode(batch(GPU_ROW, ["BlockStored", [4], None, NEXT, 16], rank=1)))
    assert index.tokens_by_rank(chain, 0) == [16, 16]
    ranks[1].receive(1, decode(batch(["BlockRemoved", [99], "GPU"], rank=1)))
    assert index.tokens_by_rank(chain, 0) == [16, 0]
    ranks[0].receive(1, decode(batch(["AllBlocksCleared"], rank=0)))
    assert (index.tokens_by_rank(chain, 0), index.tokens_by_rank(other, 0)) == ([0, 0], [0, 16])


@pytest.mark.parametrize("cleared", [["AllBlocksCleared"], {"type": "AllBlocksCleared"}, "AllBlocksCleared"])
def test_d16_a_cleared_cache(cleared: Any) -> None:
    """Only what came after is known, in whichever form that was said."""
    fleet = Fleet()
    fleet.hear(PAYLOADS["D16"])
    assert (fleet.held(LOW), fleet.held(IDS)) == ([0], [16])
    fleet.hear(batch(cleared))
    assert fleet.held(IDS) == [0]


def test_d18_an_odd_block_size() -> None:
    """The size is the event's; the capacity is counted in such blocks, and an engine with room is not full (D18)."""
    ids = list(range(1056))
    fleet = Fleet()
    fleet.hear(batch({"type": "BlockStored", "block_hashes": [71], "token_ids": ids, "block_size": 1056}))
    assert fleet.held([*ids, 7], size=1056) == [1056]
    page: EngineSignals = signals('vllm:cache_config_info{block_size="1056",num_gpu_blocks="100"} 1.0\n')
    assert (page.kv_tokens, page.block_tokens) == (105_600, 1056)
    picks = {}
    for capacity in (page.kv_tokens, 100 * 16):
        engines = Engines(1, kv_tokens=capacity)
        engines.occupy(0, 20, tokens=1056)
        (picks[capacity],) = engines.pick().terms
    assert picks[105_600].memory == 0.0
    assert picks[1_600].memory > 0.0


def test_d20_events_that_contradict_themselves() -> None:
    """Each is skipped and counted, and a good one after them is used."""
    fleet = Fleet()
    fleet.hear(PAYLOADS["D20"])
    fleet.hear(batch(GPU_ROW))
    assert (fleet.problems, fleet.held(IDS)) == (["tokens"] * 3, [16])


def test_d21_adapters_and_salts() -> None:
    """A base model's prompt without salt gets no credit from them; a removal need not name the adapter."""
    fleet = Fleet()
    fleet.hear(PAYLOADS["D21"])
    assert (fleet.held(IDS), fleet.held(IDS, adapter="legal"), fleet.held(IDS, salt="tenant-a")) == ([0], [0], [16])
    assert fleet.problems == []


def test_d23_tiers() -> None:
    """A copy in CPU memory is worth less than one on the GPU, and more than none."""
    fleet = Fleet(3)
    fleet.hear(PAYLOADS["D23"])
    fleet.hear(batch(GPU_ROW), slot=1)
    fleet.hear(batch(["BlockStored", [4], None, NEXT, 16]), slot=2)
    assert fleet.held(IDS) == [8, 16, 0]


def test_d26_answers_do_not_count_twice() -> None:
    """What was there already has no second effect when it comes again."""
    fleet = Fleet()
    for number in range(3):
        fleet.at(number, batch(GPU_ROW))
    for number in range(3):
        fleet.feeds[0].replayed(number, decode(batch(GPU_ROW)))
    for _ in range(2):
        fleet.hear(removed(99))
        assert fleet.held(IDS) == [16]
    fleet.hear(removed(99))
    assert fleet.held(IDS) == [0]


def test_d20_of_an_engine_whose_events_cannot_be_used_nothing_is_known() -> None:
    """It holds something: where nothing else is known of a prompt, it is not said to hold none of it.

    So do SGLang's with EAGLE, whose tokens are pairs. Groups of layers that do not count are none of this.
    """
    pairs = {"block_hashes": [4], "parent_block_hash": None, "token_ids": [[1, 2], [2, 3]], "block_size": 2}
    for event, held in (
        (pairs, [None]),
        ({**pairs, "group_idx": 1}, [0]),
        ({**pairs, "group_idx": 1, "kv_cache_spec_kind": "full_attention"}, [None]),
        ({**pairs, "group_idx": 0, "kv_cache_spec_kind": "sliding_window"}, [0]),
    ):
        fleet = Fleet()
        fleet.hear(batch(GPU_ROW))
        assert fleet.held(NEXT) == [0]
        fleet.hear(batch({"type": "BlockStored", **event}))
        assert (fleet.held(NEXT), fleet.held(IDS)) == (held, [16])
        fleet.hear(batch(["AllBlocksCleared"]))
        assert fleet.held(NEXT) == [0]


def copied(name: int, medium: str = "CPU", **fields: Any) -> bytes:
    """Encode what vLLM's connectors tell of a block that was copied to another tier: its name alone."""
    event = {"type": "BlockStored", "block_hashes": [name], "parent_block_hash": None, "token_ids": [], "block_size": 0}
    return batch({**event, "lora_id": None, "medium": medium, "lora_name": None, "group_idx": 0, **fields})


def test_a_copy_in_another_tier_may_be_told_by_its_name_alone() -> None:
    """It stays when the block leaves the GPU, for what its tier is worth, until it is gone there too."""
    fleet = Fleet()
    fleet.hear(batch(GPU_ROW))
    fleet.hear(copied(99))
    fleet.hear(copied(99, "STORAGE", block_size=16))
    assert fleet.held(IDS) == [16]
    for medium, held in (("GPU", 8), ("CPU", 4), ("STORAGE", 0)):
        fleet.hear(removed(99, medium))
        assert fleet.held(IDS) == [held]
    assert fleet.problems == []


def test_a_copy_of_a_block_that_was_never_told_is_counted() -> None:
    """Nothing can be said of it; and on the GPU a block without tokens is none."""
    fleet = Fleet()
    fleet.hear(copied(98))
    fleet.hear(batch(GPU_ROW))
    fleet.hear(copied(98))
    fleet.hear(copied(99, group_idx=1))
    fleet.hear(copied(98, "GPU"))
    assert (fleet.problems, fleet.held(IDS)) == (["unknown_block"] * 2 + ["other_group", "malformed"], [16])


def test_a_copy_is_of_what_its_name_meant_whatever_else_is_told() -> None:
    """VLLM tells tokens of copies where asked to, but neither salt nor images (0.32): they are known from before."""
    fleet = Fleet()
    first = {"type": "BlockStored", "block_hashes": [7], "token_ids": IDS, "block_size": 16, "group_idx": 0}
    fleet.hear(batch({**first, "medium": "GPU", "extra_keys": [["tenant-a"]]}))
    fleet.hear(batch({**first, "medium": "CPU"}))
    fleet.hear(removed(7))
    assert (fleet.held(IDS), fleet.held(IDS, salt="tenant-a"), fleet.problems) == ([0], [8], [])
