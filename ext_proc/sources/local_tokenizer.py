"""Tokenizes on this machine, with the model's own tokenizer and chat template (extra `tokenizers`).

A conversation grows at its end. Where a special token ends a piece of text, what follows is tokenized as if it stood
alone, so pieces are kept and only new ones are tokenized. That is exact for tokenizers that cut their special tokens
out first and treat each piece alike, wherever it stands; for others whole texts are tokenized.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
from xxhash import xxh3_128_intdigest

from ext_proc.core.errors import ConfigError
from ext_proc.core.model import Endpoint
from ext_proc.core.prompts.token_question import TokenQuestion
from ext_proc.sources.chat_template import ChatTemplate
from ext_proc.sources.token_cache import TokenCache
from ext_proc.sources.tokenizing import TokenizeError

THREADS: Final = 2
"""Tokenizing runs outside of Python's lock; more threads would take cores from the engines or from Envoy."""

_EXAMPLES: Final = ("user\nTwo words, ", " blank first", "\n\nline", "Größe 東京 🙂", "  ", "x")

_TOKENIZER_FILE, _CONFIG_FILE, _TEMPLATE_FILE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"


class LocalTokenizer:
    """A model's tokenizer, run by a few threads.

    Args:
        folder: where `tokenizer.json` is, and `tokenizer_config.json` or `chat_template.jinja` for conversations.
        cache_tokens: bound on the pieces that are kept, in tokens.

    Raises:
        ConfigError: the files cannot be used, or the packages are not installed.
    """

    def __init__(self, folder: Path, cache_tokens: int) -> None:
        self._encoder, described = _load(folder / _TOKENIZER_FILE)
        self._template = _template(folder)
        self._pieces: TokenCache[tuple[int, ...]] = TokenCache(cache_tokens)
        cuts = Cuts.of(described)
        self._cuts = cuts if cuts is not None and self._proves(cuts) else None
        self._threads = ThreadPoolExecutor(THREADS, "kvpicker-tokenizer")

    async def tokens(self, question: TokenQuestion, model: str | None, endpoints: Sequence[Endpoint]) -> Sequence[int]:
        """Return the token ids of a prompt; the model and the engines are those that the tokenizer is configured for.

        Raises:
            TokenizeError: the chat template cannot render the conversation.
        """
        del model, endpoints
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.tokenize, question)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def tokenize(self, question: TokenQuestion) -> Sequence[int]:
        """Return the token ids of a prompt, on the thread of the caller.

        Raises:
            TokenizeError: as in `tokens`.
        """
        try:
            return self._tokenize(question)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise TokenizeError("unsupported") from error  # what an engine would refuse too, for instance

    def _tokenize(self, question: TokenQuestion) -> Sequence[int]:
        members = msgspec.json.decode(b"{" + question.members + b"}")
        special = members.get("add_special_tokens")
        if not question.chat:
            return self._whole(members["prompt"], special=special is not False)
        if self._template is None:
            raise TokenizeError("no_template")
        text = self._template.render(members)
        if special is True or self._cuts is None:
            return self._whole(text, special=special is True)
        return self._by_pieces(self._cuts.pieces(text))

    def _proves(self, cuts: Cuts) -> bool:
        """Compare the tokens of an example as a whole and in pieces."""
        example = "".join(f"{token}{text}" for token in sorted(cuts.safe)[:20] for text in _EXAMPLES)
        return self._whole(example, special=False) == self._by_pieces(cuts.pieces(example))

    def _whole(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._encoder.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return ids

    def _by_pieces(self, pieces: Sequence[str]) -> list[int]:
        keys = [xxh3_128_intdigest(piece.encode("utf-8", "surrogatepass")) for piece in pieces]
        found = [self._pieces.get(key) for key in keys]
        missing = [place for place, ids in enumerate(found) if ids is None]
        if missing:
            encoded = self._encoder.encode_batch_fast([pieces[place] for place in missing], add_special_tokens=False)
            for place, made in zip(missing, encoded, strict=True):
                found[place] = ids = tuple(made.ids)
                self._pieces.put(keys[place], ids, len(ids))
        return [token for ids in found if ids is not None for token in ids]


class Cuts(msgspec.Struct, frozen=True):
    """Where a text may be cut without changing its tokens: behind some of the special tokens.

    Attributes:
        special: matches any token that the tokenizer cuts out of a text first, the longest at a place.
        safe: those behind which a text may be cut.
    """

    special: re.Pattern[str]
    safe: frozenset[str]

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Cuts | None:
        """Read it from the content of `tokenizer.json`; None if no cut is safe.

        A cut is not safe behind a token that swallows blanks, or that a longer token begins with or holds. A tokenizer
        that treats the beginning of the whole text in its own way allows none at all.
        """
        first = [token for token in described.get("added_tokens") or () if not token.get("normalized")]
        if any(token.get("single_word") for token in first) or _marks_beginning(described.get("pre_tokenizer")):
            return None
        texts = sorted((token["content"] for token in first), key=len, reverse=True)
        safe = frozenset(
            token["content"]
            for token in first
            if not token.get("rstrip")
            and not any(token["content"] in text for text in texts if text != token["content"])
        )
        return cls(re.compile("|".join(map(re.escape, texts))), safe) if safe else None

    def pieces(self, text: str) -> list[str]:
        """Cut a text behind each safe token."""
        ends = [found.end() for found in self.special.finditer(text) if found.group() in self.safe]
        starts = [0, *ends]
        return [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=True) if end > start]


def _marks_beginning(pre_tokenizer: Any) -> bool:
    if not isinstance(pre_tokenizer, dict):
        return False
    if pre_tokenizer.get("type") == "Metaspace" and pre_tokenizer.get("prepend_scheme", "always") == "first":
        return True
    return any(map(_marks_beginning, pre_tokenizer.get("pretokenizers") or ()))


def _load(path: Path) -> tuple[Any, Mapping[str, Any]]:
    try:
        package: Any = importlib.import_module("tokenizers")
    except ImportError:
        raise ConfigError("a local tokenizer needs more packages; install kvpicker[tokenizers]") from None
    text = _read(path)
    try:
        encoder = package.Tokenizer.from_str(text)
    except Exception as error:  # the package raises nothing narrower
        raise ConfigError(f"{path} is no tokenizer: {error}") from error
    encoder.no_truncation()
    encoder.no_padding()
    return encoder, json.loads(text)


def _template(folder: Path) -> ChatTemplate | None:
    """Read the chat template; None for a model that has none and serves completions only."""
    config = json.loads(_read(folder / _CONFIG_FILE)) if (folder / _CONFIG_FILE).exists() else {}
    source = config.get("chat_template")
    if (folder / _TEMPLATE_FILE).exists():
        source = _read(folder / _TEMPLATE_FILE)
    if isinstance(source, list):  # several, by name
        source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
    if source is None:
        return None
    special = {name: _content(value) for name, value in config.items() if name.endswith("_token") and value}
    return ChatTemplate(source, {name: text for name, text in special.items() if text is not None})


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: byte {error.start}") from None
