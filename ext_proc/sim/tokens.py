"""A stand-in tokenizer: four bytes of text are one token, and a token's id is those bytes read as a number."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_64_intdigest

TOKEN_BYTES: Final = 4
MAX_TOKEN_ID: Final = 2**32 - 1
NATURAL_LENGTHS: Final = range(16, 65)

_WORDS: Final = (
    "ant arc ash bay bee bow box bud cap car cat cup day dew dog dot ear eel egg elm eye fan far fig fir fox fog gem "
    "hat hay hen hut ice ink ivy jam jar jet joy key kit lab lid log map mat mug nut oak oar oat owl pan pea pen "
    "pie pin pod pot ray red rye sea sky sun tea ten tin toy van wax web yak zoo"
)
_BANK_TOKENS: Final = 4096


def _bank() -> str:
    """Tokens of three letters and a space, in an order that is the same in every process."""
    words = _WORDS.split()
    picks = (xxh3_64_intdigest(b"", number) % len(words) for number in range(_BANK_TOKENS))
    return "".join(words[pick] + " " for pick in picks)


_BANK: Final = _bank()


def count_tokens(prompt: bytes) -> int:
    """Number of tokens of a prompt; the last one may be shorter than four bytes."""
    return -(-len(prompt) // TOKEN_BYTES)


def to_ids(prompt: bytes) -> list[int]:
    """Token ids of a prompt, each an unsigned 32-bit number (little endian, the tail padded with zero bytes)."""
    ids = array("I", prompt + b"\0" * (-len(prompt) % TOKEN_BYTES))
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def from_ids(ids: Iterable[int]) -> bytes:
    """The prompt that has these token ids.

    Raises:
        ValueError: an id is not an integer between 0 and 2**32 - 1.
    """
    try:
        packed = array("I", ids)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"token ids must be integers from 0 to {MAX_TOKEN_ID}") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def to_text(ids: Iterable[int]) -> str:
    """Text of token ids, without the padding of the last one."""
    return from_ids(ids).rstrip(b"\0").decode("utf-8", "replace")


def cache_seed(model: str, salt: str = "") -> int:
    """Where a hash chain starts: models and cache salts never share blocks."""
    return xxh3_64_intdigest(f"{len(model)}:{model}{salt}".encode("utf-8", "surrogatepass"))


def hash_chain(prompt: bytes, block_size: int, seed: int) -> list[int]:
    """Chained hashes of all full blocks of `block_size` tokens; a hash stands for its block and all before it."""
    step = block_size * TOKEN_BYTES
    chain = []
    for start in range(0, len(prompt) - step + 1, step):
        seed = xxh3_64_intdigest(prompt[start : start + step], seed)
        chain.append(seed)
    return chain


def natural_length(digest: int) -> int:
    """Tokens that the model would write by itself for the prompt with this digest."""
    return NATURAL_LENGTHS[digest % len(NATURAL_LENGTHS)]


def answer_text(digest: int, tokens: int) -> str:
    """The answer to the prompt with this digest: `tokens` tokens of four ASCII letters."""
    start = digest // len(NATURAL_LENGTHS) % _BANK_TOKENS * TOKEN_BYTES
    size = tokens * TOKEN_BYTES
    text = _BANK[start : start + size]
    while len(text) < size:
        text += _BANK[: size - len(text)]
    return text
