"""The texts of the demonstration: what is long in them is shared, or it is not."""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

ANSWER_TOKENS: Final = 24

_TEXT: Final = (
    "the a of to in and each any new old first last slow fast small large order invoice customer account parcel "
    "price stock report server cable river garden kitchen window letter number table answer question morning "
    "is was has had takes gives holds moves keeps shows sends needs finds before after with without under over"
)
_WORDS: Final = _TEXT.split()


class Sizes(msgspec.Struct, frozen=True):
    """How long the texts are, in bytes, and how many there are.

    Attributes:
        document: what the conversation begins with.
        turn: each message of the conversation.
        turns: messages of the conversation.
        system: the system prompt that questions share.
        questions: how many share it.
        unrelated: each prompt that shares nothing.
        singles: how many there are.
    """

    document: int = 16_000
    turn: int = 600
    turns: int = 8
    system: int = 10_000
    questions: int = 12
    unrelated: int = 2_000
    singles: int = 12


SMALL: Final = Sizes(document=4_000, turn=200, turns=6, system=3_000, questions=9, unrelated=600, singles=9)
"""For engines of the user's, whose hardware and context length are unknown: no prompt is above 2,000 tokens."""


class Scenario:
    """Makes the same texts from the same seed; texts of different seeds share no prefix.

    Args:
        model: the model that every request names.
        sizes: how long the texts are.
        seed: what they are made from.
    """

    def __init__(self, model: str, sizes: Sizes, seed: int) -> None:
        self.sizes = sizes
        self._model = model
        self._random = random.Random(seed)  # noqa: S311 - filler text

    def turns(self) -> list[str]:
        """Return the user's messages of the conversation; the first one holds the document."""
        first = f"Read this.\n{self._text(self.sizes.document)}\nWhat is it about?"
        return [first, *(self._text(self.sizes.turn) + "?" for _ in range(self.sizes.turns - 1))]

    def questions(self) -> list[dict[str, Any]]:
        """Return bodies that share their system prompt."""
        system = {"role": "system", "content": self._text(self.sizes.system)}
        return [self.body([system, _user(self._text(100) + "?")]) for _ in range(self.sizes.questions)]

    def singles(self) -> list[dict[str, Any]]:
        """Return bodies that share nothing."""
        return [self.body([_user(self._text(self.sizes.unrelated))]) for _ in range(self.sizes.singles)]

    def body(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a chat request."""
        return {"model": self._model, "messages": messages, "max_tokens": ANSWER_TOKENS}

    def _text(self, size: int) -> str:
        # The number in front makes two texts differ from their first words on.
        text = f"Note {self._random.getrandbits(48):x}:"
        while len(text) < size:
            text += " " + self._random.choice(_WORDS)
        return text


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
