"""What tokenizers have in common: how they are asked and how they fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ext_proc.core.errors import KvpickerError
from ext_proc.core.model import Endpoint
from ext_proc.core.prompts.token_question import TokenQuestion


class TokenizeError(KvpickerError):
    """The tokens of a prompt are not to be had; `reason` is a metric label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Tokenizer(Protocol):
    """Turns prompts into token ids."""

    async def tokens(self, question: TokenQuestion, model: str | None, endpoints: Sequence[Endpoint]) -> Sequence[int]:
        """Return the token ids of a prompt.

        Args:
            question: the prompt; without given ids.
            model: the model that the client names.
            endpoints: the engines that serve it.

        Raises:
            TokenizeError: they cannot be had.
        """

    def close(self) -> None:
        """Let go of what is held for tokenizing."""
