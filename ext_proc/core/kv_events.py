"""What an engine reports of its KV cache, whatever encoding it came in."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec

EngineHash: TypeAlias = int | bytes
"""An engine's own name of a block; only equality within one cache means anything."""


class Tier(enum.IntEnum):
    """Where a block lies, the nearest first."""

    GPU = 0
    CPU = 1
    DISK = 2
    EXTERNAL = 3


_TIERS: Mapping[str, Tier] = MappingProxyType(
    {
        "": Tier.GPU,  # from before engines named it
        "GPU": Tier.GPU,
        "CPU": Tier.CPU,
        "CPU_PINNED": Tier.CPU,
        "DISK": Tier.DISK,
        "STORAGE": Tier.DISK,
    }
)


def tier(medium: str) -> Tier:
    """Return where a medium is; a name that is not known is far away."""
    found = _TIERS.get(medium)
    return _TIERS.get(medium.upper(), Tier.EXTERNAL) if found is None else found


class BlocksStored(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Blocks, each the child of the one before, have been filled.

    Attributes:
        hashes: the engine's name of each block.
        tokens: ids of all blocks, `block_tokens` of each; none where copies of blocks are meant that were told before.
        block_tokens: tokens of a block.
        parent: the engine's name of the block before the first; None at the beginning of a prompt.
        adapter: name of the LoRA adapter; empty for the base model.
        salt: salt of the request, where the engine names it.
        keys: what else each block depends on, empty where nothing; no entries where no block does.
        tier: where they lie.
        group: which group of layers it is about; None where there is one.
        kind: the kind of attention of that group; empty where the engine does not say.
    """

    hashes: Sequence[EngineHash]
    tokens: Sequence[int]
    block_tokens: int
    parent: EngineHash | None = None
    adapter: str = ""
    salt: str = ""
    keys: Sequence[bytes] = ()
    tier: Tier = Tier.GPU
    group: int | None = None
    kind: str = ""


class BlocksRemoved(msgspec.Struct, gc=False):
    """One copy of each block has been given up.

    Attributes:
        hashes: the engine's name of each block.
        tier: where the copies lay.
        group: which group of layers it is about; None where there is one.
    """

    hashes: list[EngineHash]
    tier: Tier = Tier.GPU
    group: int | None = None


class AllCleared(msgspec.Struct, frozen=True, gc=False):
    """The cache is empty."""


KvEvent: TypeAlias = BlocksStored | BlocksRemoved | AllCleared


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The events of one step of an engine.

    Attributes:
        events: in their order.
        rank: data-parallel rank that they are of; None where the engine does not say.
        skipped: why other events of the batch could not be used.
        at: when it was made, seconds of the engine's clock; None where that is not said.
        unread: group and kind, as in `BlocksStored`, of blocks that were stored and that could not be used.
    """

    events: Sequence[KvEvent]
    rank: int | None = None
    skipped: Sequence[str] = ()
    at: float | None = None
    unread: Sequence[tuple[int | None, str]] = ()
