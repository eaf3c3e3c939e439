"""Requests of a trace as the picker sees them: block ids packed into the prompt, and a hasher that reads them back."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ext_proc.core.model import BlockHash, InferenceRequest


def packed(blocks: Sequence[BlockHash]) -> bytes:
    """Return block ids as a prompt, eight bytes each."""
    return array("Q", blocks).tobytes()


class TraceHasher:
    """Stands in for the hasher of text: a trace tells the chain instead of the text it was made from.

    Args:
        block_tokens: tokens of a block of the trace.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens

    def chain(self, request: InferenceRequest, model: str | None = None) -> list[BlockHash]:  # noqa: ARG002
        """Return the block ids that the prompt is made of; the ids of a trace are of one model."""
        ids = array("Q")
        ids.frombytes(request.prompt)
        return ids.tolist()

    def tokens(self, blocks: int) -> int:
        """Return the tokens of the first `blocks` blocks of a prompt."""
        return blocks * self._block_tokens
