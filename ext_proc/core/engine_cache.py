"""One cache of one engine, by its own reports: how its names of blocks map to ours, and how many copies there are.

Copies are counted per name, since an engine may fill a block with what another block holds already and gives up each
by itself. Two names may stand for one of our blocks, if they differ in something that the reports do not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ext_proc.core.block_table import BlockTable
from ext_proc.core.kv_events import BlocksRemoved, BlocksStored, EngineHash, KvEvent, Tier
from ext_proc.core.model import BlockHash
from ext_proc.core.token_chain import TokenHasher, distinguished, root

MOST_BLOCKS = 4_000_000
"""Blocks of one cache that are remembered in each tier, some 700 MB; further ones count as not held."""

_MOST_GROUPS = 256
_FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
_FIRST_GROUP = (None, 0)
_NO_BLOCKS: Mapping[EngineHash, BlockHash] = MappingProxyType({})


class EngineCache:
    """What one cache holds, its part of a table.

    Args:
        table: where it is noted.

    Attributes:
        is_complete: whether nothing can be held that was not reported.
        block_tokens: tokens of a block; None before the first.
        row: its row of the table.
    """

    __slots__ = ("_counted", "_doubted", "_hasher", "_table", "_tiers", "block_tokens", "is_complete", "row")

    def __init__(self, table: BlockTable) -> None:
        self._table = table
        self.block_tokens: int | None = None
        self._hasher: TokenHasher | None = None
        self._counted: dict[int, bool] = {}
        self._begin()

    def _begin(self) -> None:
        self.row = self._table.open()
        self.is_complete = True
        self._tiers = {tier: _Names(self._table, self.row, tier) for tier in Tier}
        self._doubted = _NO_BLOCKS

    def close(self) -> None:
        """Give up what the table notes of this cache, which is of no use after that."""
        self._table.close(self.row, [(names.tier, names.blocks) for names in self._tiers.values() if names.named])

    def clear(self) -> None:
        """Note that the cache is empty, and that this is all that there is to know."""
        self.close()
        self._begin()

    def doubt(self) -> None:
        """Stop believing that anything is held: reports were lost, perhaps of blocks given up.

        The names stay for a while, so that children stored later are known for what they are.
        """
        filled = [names.named for names in self._tiers.values() if names.named]
        doubted = filled[0] if filled else _NO_BLOCKS
        if len(filled) > 1:
            doubted = {name: block for named in reversed(filled) for name, block in named.items()}
        self.clear()
        self._doubted = doubted
        self.is_complete = False

    def overlook(self, group: int | None, kind: str) -> None:
        """Note that blocks of a group are held of which nothing is known."""
        if self.is_complete and self._counts(group, kind):
            self.is_complete = False
            self._table.revision += 1

    def apply(self, event: KvEvent) -> str | None:
        """Let an event have its effect; return why it had none, a metric label, or None."""
        if isinstance(event, BlocksStored):
            return self._stored(event)
        if not isinstance(event, BlocksRemoved):
            self.clear()
            return None
        if not self._counts(event.group, ""):
            return "other_group"
        return self._tiers[event.tier].removed(event.hashes)

    def hold(self, blocks: Iterable[BlockHash]) -> None:
        """Note one more copy of each block, by our own names."""
        blocks = list(blocks)
        self._tiers[Tier.GPU].stored(blocks, blocks)

    def release(self, blocks: Iterable[BlockHash]) -> None:
        """Note one copy less of each block, by our own names; one that is not known is no error."""
        self._tiers[Tier.GPU].removed(blocks)

    def __len__(self) -> int:
        """Return how many blocks are held, by the engine's names, each tier by itself."""
        return sum(len(names.named) for names in self._tiers.values())

    def _stored(self, event: BlocksStored) -> str | None:
        if not self._counts(event.group, event.kind):
            return "other_group"
        if len(self._tiers[event.tier].named) + len(event.hashes) > MOST_BLOCKS:
            return "too_many_blocks"
        copied = None if event.tier is Tier.GPU else self._copied(event.hashes)
        if copied is None:
            return self._filled(event) if event.tokens else "unknown_block"
        self._tiers[event.tier].stored(event.hashes, copied)
        return None

    def _filled(self, event: BlocksStored) -> str | None:
        hasher, size = self._hasher, event.block_tokens
        if hasher is None or size > hasher.block_tokens:  # before whole blocks there may be parts of one
            was_complete = self.is_complete
            if hasher is not None:
                self.clear()
            self.is_complete = was_complete
            self.block_tokens = size
            self._table.revision += 1
            hasher = self._hasher = TokenHasher(size)
        elif size != hasher.block_tokens:
            return "other_block_size"
        parent = root(event.adapter, event.salt) if event.parent is None else self._named(event.parent)
        if parent is None:
            return "unknown_parent"
        links = hasher.links(event.tokens, parent) if not event.keys else _distinguished(hasher, event, parent)
        self._tiers[event.tier].stored(event.hashes, links)
        return None

    def _copied(self, names: Sequence[EngineHash]) -> list[BlockHash] | None:
        """Return blocks by names that are all known: who tells of a copy may leave out salt, images and tokens."""
        found = [block for name in names if (block := self._named(name)) is not None]
        return found if len(found) == len(names) else None

    def _named(self, name: EngineHash) -> BlockHash | None:
        for names in self._tiers.values():
            found = names.named.get(name)
            if found is not None:
                return found
        return self._doubted.get(name)

    def _counts(self, group: int | None, kind: str) -> bool:
        """Tell whether a group of layers needs every block of a prefix; others, such as windows, hit without.

        Only a stored block says of which kind its group is; without a word the first group is taken for such a one.
        """
        if kind and group is not None and len(self._counted) < _MOST_GROUPS:
            self._counted[group] = kind in _FULL_ATTENTION
        if kind:
            return kind in _FULL_ATTENTION
        if group is None:
            return True
        return self._counted.get(group, group in _FIRST_GROUP)


class _Names:
    """The names of the blocks in one tier of a cache.

    Attributes:
        tier: the tier.
        named: our block by the engine's name.
    """

    __slots__ = ("_copies", "_names", "_row", "_table", "named", "tier")

    def __init__(self, table: BlockTable, row: int, tier: Tier) -> None:
        self.tier = tier
        self.named: dict[EngineHash, BlockHash] = {}
        self._table = table
        self._row = row
        self._copies: dict[EngineHash, int] = {}
        self._names: dict[BlockHash, int] = {}

    @property
    def blocks(self) -> Iterable[BlockHash]:
        """Our blocks, some perhaps twice."""
        return self.named.values()

    def stored(self, names: Sequence[EngineHash], blocks: Sequence[BlockHash]) -> None:
        """Note one more copy of each block."""
        if len(names) > 1 and len(set(names)) < len(names):
            for name, block in zip(names, blocks, strict=True):
                self.stored((name,), (block,))
            return
        named, fresh = self.named, []
        for name, block in zip(names, blocks, strict=True):
            known = named.get(name)
            if known == block:
                self._copies[name] = self._copies.get(name, 1) + 1
                continue
            if known is not None:  # the name has come to mean something else: its end was missed
                self._copies.pop(name, None)
                self.removed((name,))
            named[name] = block
            fresh.append(block)
        for block in self._table.hold(self._row, self.tier, fresh):
            self._names[block] = self._names.get(block, 1) + 1

    def removed(self, names: Iterable[EngineHash]) -> str | None:
        """Note one copy less of each block; return a reason if one was not known."""
        named, copies, problem = self.named, self._copies, None
        lost = []
        for name in names:
            left = copies.get(name)
            if left is None:
                known = named.pop(name, None)
                if known is None:
                    problem = "unknown_block"
                elif self._is_last_name(known):
                    lost.append(known)
            elif left > 2:  # noqa: PLR2004  one copy is not counted
                copies[name] = left - 1
            else:
                del copies[name]
        self._table.drop(self._row, self.tier, lost)
        return problem

    def _is_last_name(self, block: BlockHash) -> bool:
        """Tell whether a block has no other name than one that is gone."""
        if not self._names:
            return True
        others = self._names.get(block)
        if others is None:
            return True
        if others > 2:  # noqa: PLR2004  one name is not counted
            self._names[block] = others - 1
        else:
            del self._names[block]
        return False


def _distinguished(hasher: TokenHasher, event: BlocksStored, parent: BlockHash) -> list[BlockHash]:
    links, size = [], event.block_tokens
    for place, keys in enumerate(event.keys):
        before = distinguished(parent, keys) if keys else parent
        (parent,) = hasher.links(event.tokens[place * size : (place + 1) * size], before)
        links.append(parent)
    return links
