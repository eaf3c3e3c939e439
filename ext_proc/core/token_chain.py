"""Token ids → chain of block hashes, of a request's tokens and of an engine's reports alike.

Engines hash blocks each in their own way, which changes between versions, but they report the token ids. So both sides
are hashed here: equal links mean the same adapter, the same salt and equal tokens up to and including that block.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from ext_proc.core.model import BlockHash

_BYTES = array("I").itemsize
LARGEST_TOKEN = 256**_BYTES - 1


class TokenChain(msgspec.Struct, frozen=True, gc=False):
    """A prompt by its tokens; a rest shorter than a block is left out.

    Attributes:
        hashes: one link per whole block.
        block_tokens: tokens of a block.
    """

    hashes: Sequence[BlockHash]
    block_tokens: int


class TokenHasher:
    """Cuts token ids into blocks of one size and chains their hashes with xxh3_64, each seeded with the one before.

    Args:
        block_tokens: tokens of a block, the engine's block size.
    """

    __slots__ = ("_step", "block_tokens")

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._step = block_tokens * _BYTES

    def chain(self, tokens: Sequence[int], adapter: str = "", salt: str = "") -> TokenChain:
        """Return the chain of a prompt.

        Args:
            tokens: the ids, each from 0 to `LARGEST_TOKEN`.
            adapter: name of the LoRA adapter; empty for the base model, whatever names that has.
            salt: the request's `cache_salt`; empty without.

        Raises:
            ValueError: an id is out of range.
        """
        return TokenChain(self.links(tokens, root(adapter, salt)), self.block_tokens)

    def links(self, tokens: Sequence[int], parent: BlockHash) -> list[BlockHash]:
        """Return the links of the whole blocks that follow a link, or a root.

        Raises:
            ValueError: an id is out of range or no integer.
        """
        try:
            data = array("I", tokens).tobytes()
        except (OverflowError, TypeError):
            raise ValueError(f"a token id is no integer from 0 to {LARGEST_TOKEN}") from None
        digest, step = xxh3_64_intdigest, self._step
        return [parent := digest(data[at : at + step], parent) for at in range(0, len(data) - step + 1, step)]


def root(adapter: str = "", salt: str = "") -> BlockHash:
    """Return what the first block follows; only prompts of one adapter and one salt share blocks."""
    if not adapter and not salt:
        return 0
    name = adapter.encode("utf-8", "surrogatepass")
    framed = len(name).to_bytes(4, "little") + name + salt.encode("utf-8", "surrogatepass")
    return xxh3_64_intdigest(framed) or 1


def distinguished(parent: BlockHash, keys: bytes) -> BlockHash:
    """Return what a block follows that depends on more than its tokens, such as an image; `keys` say on what."""
    return xxh3_64_intdigest(keys, parent)
