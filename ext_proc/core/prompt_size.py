"""How long a prompt is: counted where its tokens are known, else estimated from its bytes as experience corrects it."""

from __future__ import annotations

import msgspec

from ext_proc.core.expectations import Expectation
from ext_proc.core.model import InferenceRequest
from ext_proc.core.prompts.framing import TOKENS
from ext_proc.core.token_hits import TokenPrompt


class PromptSize(msgspec.Struct, frozen=True, gc=False):
    """The length of a prompt.

    Attributes:
        tokens: as far as is known.
        scale: times as many as were estimated from its bytes.
        estimated: tokens as estimated from its bytes, or as counted where it came as token ids.
        guessed: the same, 0 where they were counted.
    """

    tokens: int
    scale: float
    estimated: int
    guessed: int


def measured(request: InferenceRequest, expected: Expectation, tokens: TokenPrompt | None) -> PromptSize:
    """Measure the prompt of a request; `tokens` is the prompt by its tokens, None where they are not known."""
    estimated = request.prompt_tokens
    # What came as token ids is counted, not estimated.
    counted = request.prompt[:1] == TOKENS
    guessed = 0 if counted else estimated
    if tokens is not None:
        return PromptSize(tokens.count, tokens.count / max(estimated, 1), estimated, guessed)
    scale = 1.0 if counted else expected.scale
    return PromptSize(int(estimated * scale), scale, estimated, guessed)
