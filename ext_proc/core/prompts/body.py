"""What the bodies of all operations have in common."""

from __future__ import annotations

from typing import Any

import msgspec

from ext_proc.core.prompts.framing import stable_json
from ext_proc.core.prompts.jsonbody import short

_MAX_OUTPUT_TOKENS = 10_000_000
"""A larger limit is a mistake or an attack on load arithmetic, so it counts as none."""


class Body(msgspec.Struct, gc=False):
    """A decoded request body; every member may have any type, because clients send anything.

    A kind of body reads its own members in `read` and `limits`.
    """

    model: Any = msgspec.UNSET
    stream: Any = None
    cache_salt: Any = None
    lora_path: Any = None
    prompt_cache_key: Any = None

    def read(self) -> tuple[bytes, int]:
        """Return the canonical prompt, empty if nothing may be hashed, and the number of prompt tokens."""
        return b"", 0

    def limits(self) -> tuple[Any, ...]:
        """Return the members that may limit the generated tokens, the strongest first."""
        return ()

    def session(self) -> str:
        """Return the body's own name for a conversation, OpenAI's key for requests that share a prefix; or nothing."""
        key = self.prompt_cache_key
        return short(key) if isinstance(key, str) else ""

    def has_odd_model(self) -> bool:
        """Tell whether `model` is there but names none, so that the engine may refuse what it gets."""
        return self.model is not msgspec.UNSET and not (isinstance(self.model, str) and self.model)

    def output_tokens(self) -> int | None:
        """Return the client's limit on generated tokens; None if there is no sane one."""
        for limit in self.limits():
            if type(limit) is int and 0 <= limit <= _MAX_OUTPUT_TOKENS:
                return limit
        return None

    def namespace(self) -> tuple[str, ...]:
        """Return what separates KV caches, each part with its name and type in front so that none equals another.

        Engines treat null like an absent member; an empty string stays apart.
        """
        members = (("cache_salt", self.cache_salt), ("lora_path", self.lora_path))
        return tuple(_named(name, value) for name, value in members if value is not None)


def _named(name: str, value: Any) -> str:
    if isinstance(value, str):
        return short(f"{name}={value}")
    return short(f"{name}:{stable_json(value).decode('utf-8', 'backslashreplace')}")
