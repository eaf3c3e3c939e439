"""What a decision taught the index."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ext_proc.core.model import BlockHash


class Learnt(msgspec.Struct, frozen=True, gc=False):
    """What a decision taught the index, so that it can be taken back.

    Attributes:
        chain: hash chain of the prompt; empty if nothing was learnt.
        depth: leading blocks that the endpoint held before.
        stamp: what `PrefixIndex.learn` returned.
        estimated: tokens of the prompt as they were estimated from its bytes; 0 if they were counted.
        used: stamp of the last of those blocks before, the one that was not used for longest.
        expired: stamp of the block behind them, if it was held once; 0 if that is not known.
        held: the last block of the chain that any endpoint held before; None if nobody held one.
    """

    chain: Sequence[BlockHash] = ()
    depth: int = 0
    stamp: int = 0
    estimated: int = 0
    used: int = 0
    expired: int = 0
    held: BlockHash | None = None


NOTHING_LEARNT = Learnt()
