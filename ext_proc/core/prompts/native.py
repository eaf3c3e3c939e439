"""Reads the bodies of the engines' own generate calls."""

from __future__ import annotations

from typing import Any

from ext_proc.core.prompts.attachments import embedded
from ext_proc.core.prompts.body import Body
from ext_proc.core.prompts.framing import OTHER, SETTING, stable_json
from ext_proc.core.prompts.prompt_inputs import read_prompts, weigh

_LIMITS = ("max_new_tokens", "max_tokens", "max_completion_tokens", "num_predict")


class GenerateBody(Body, gc=False):
    """The body of an engine's own call.

    The prompt is SGLang's `text` or `input_ids`, vLLM's `token_ids`, TGI's `inputs`, llama.cpp's `input_prefix`, or
    just a `prompt`, with Ollama's `system` and `template` before it.
    """

    text: Any = None
    input_ids: Any = None
    token_ids: Any = None
    inputs: Any = None
    prompt: Any = None
    input_prefix: Any = None
    input_suffix: Any = None
    input_extra: Any = None
    system: Any = None
    template: Any = None
    context: Any = None
    images: Any = None
    image_data: Any = None
    audio_data: Any = None
    video_data: Any = None
    sampling_params: Any = None
    parameters: Any = None
    options: Any = None
    max_tokens: Any = None
    max_new_tokens: Any = None
    n_predict: Any = None

    def read(self) -> tuple[bytes, int]:
        """Render the first prompt, behind the digests of the media that belong to it, and weigh all prompts."""
        sources = (self.text, self.input_ids, self.token_ids, self.inputs, self.input_prefix, self.prompt)
        prompt, tokens = read_prompts(next((source for source in sources if source), None))
        if not prompt:
            return b"", 0
        before = [self.system, self.template, self.context, self.input_extra]
        setting = SETTING + stable_json(before) if any(before) else b""
        media = b"".join(map(embedded, (self.images, self.image_data, self.audio_data, self.video_data)))
        behind = OTHER + stable_json([self.input_suffix, self.prompt]) if self.input_prefix else b""
        return setting + media + prompt + behind, tokens + weigh(before) + weigh(self.input_suffix)

    def limits(self) -> tuple[Any, ...]:
        """Return the limit of the sampling parameters before one that stands beside the prompt."""
        nested = [held for held in (self.sampling_params, self.parameters, self.options) if isinstance(held, dict)]
        beside = (self.max_new_tokens, self.max_tokens, self.n_predict)
        return (*(held.get(name) for held in nested for name in _LIMITS), *beside)
