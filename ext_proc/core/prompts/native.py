"""Reads the bodies of the engines' own generate calls."""

from __future__ import annotations

from typing import Any

from ext_proc.core.prompts.attachments import embedded
from ext_proc.core.prompts.body import Body
from ext_proc.core.prompts.prompt_inputs import read_prompts

_LIMITS = ("max_new_tokens", "max_tokens", "max_completion_tokens")


class GenerateBody(Body, gc=False):
    """The body of `/generate`: SGLang's `text` or `input_ids`, vLLM's `token_ids`, TGI's `inputs`, or a `prompt`."""

    text: Any = None
    input_ids: Any = None
    token_ids: Any = None
    inputs: Any = None
    prompt: Any = None
    image_data: Any = None
    audio_data: Any = None
    video_data: Any = None
    sampling_params: Any = None
    parameters: Any = None
    max_tokens: Any = None
    max_new_tokens: Any = None

    def read(self) -> tuple[bytes, int]:
        """Render the first prompt, behind the digests of the media that belong to it, and weigh all prompts."""
        sources = (self.text, self.input_ids, self.token_ids, self.inputs, self.prompt)
        prompt, tokens = read_prompts(next((source for source in sources if source), None))
        if not prompt:
            return b"", 0
        media = b"".join(map(embedded, (self.image_data, self.audio_data, self.video_data)))
        return media + prompt, tokens

    def limits(self) -> tuple[Any, ...]:
        """Return the limit of the sampling parameters before one that stands beside the prompt."""
        nested = [held for held in (self.sampling_params, self.parameters) if isinstance(held, dict)]
        return (*(held.get(name) for held in nested for name in _LIMITS), self.max_new_tokens, self.max_tokens)
