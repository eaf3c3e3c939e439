"""The settings of finding the exact tokens of requests."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from ext_proc.config.section import Section, Text

TokenSourceName: TypeAlias = Literal["engine", "local"]


class TokensConfig(Section, frozen=True, kw_only=True):
    """Exact tokens of requests, for engines that report what they hold (`kv_events`).

    Attributes:
        source: Who makes tokens of prompts: `engine` asks the engines' `/tokenize` (vLLM, SGLang), which costs them a
            few milliseconds of a core per prompt; `local` runs a tokenizer in two threads here, and tokenizes of a
            conversation only what is new.
        deadline_ms: Milliseconds that a pick waits for tokens; then it goes by the text, and
            `kvpicker_token_lookups_total` counts it as `late`.
        tokenizer: For `local`, the folder with the model's `tokenizer.json` and `tokenizer_config.json` or
            `chat_template.jinja`. It must be the one that the engines use.
        cache_tokens: Tokens remembered of prompts seen before, at most. The default takes about 40 MB when full.
    """

    source: TokenSourceName = "engine"
    deadline_ms: Annotated[float, Meta(ge=1, le=1_000)] = 20.0
    tokenizer: Text | None = None
    cache_tokens: Annotated[int, Meta(ge=10_000, le=1_000_000_000)] = 1_000_000
