"""Reads the bodies of OpenAI's chat, completion, embedding and media calls."""

from __future__ import annotations

from typing import Any

import msgspec

from ext_proc.core.prompts.body import Body
from ext_proc.core.prompts.conversation import Transcript
from ext_proc.core.prompts.framing import BYTES_PER_TOKEN, estimate_tokens
from ext_proc.core.prompts.prompt_inputs import kept_end, read_prompts, weigh
from ext_proc.core.prompts.tools import canonical_tools

_SAID_LAST = frozenset({"add_generation_prompt", "enable_thinking", "thinking"})
"""Arguments of templates that change nothing before the end of a prompt."""


class ChatBody(Body, gc=False):
    """The body of `/v1/chat/completions`; without messages a `prompt` is read as by `/v1/completions`."""

    messages: Any = None
    tools: msgspec.Raw = msgspec.Raw()
    functions: msgspec.Raw = msgspec.Raw()
    documents: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    reasoning_effort: Any = None
    truncate_prompt_tokens: Any = None
    prompt: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    options: Any = None

    def read(self) -> tuple[bytes, int]:
        """Render what templates print first: documents, template and its arguments, tools, then the messages."""
        messages = self.messages
        if not messages or not isinstance(messages, list):
            return read_prompts(self.prompt)
        transcript = Transcript()
        arguments, last = self.chat_template_kwargs, None
        if arguments and isinstance(arguments, dict):
            last = {name: value for name, value in arguments.items() if name in _SAID_LAST}
            arguments = {name: value for name, value in arguments.items() if name not in _SAID_LAST}
        if self.documents or self.chat_template or arguments or self.reasoning_effort:
            transcript.settings(
                documents=self.documents,
                chat_template=self.chat_template,
                arguments=arguments,
                effort=self.reasoning_effort,
            )
        if self.tools or self.functions:
            transcript.add(canonical_tools(self.tools) or canonical_tools(self.functions))
        transcript.messages(messages)
        if last:
            transcript.settings(arguments=last)
        prompt = b"".join(transcript.pieces)
        if self.truncate_prompt_tokens is None:
            return prompt, -(-len(prompt) // BYTES_PER_TOKEN)
        return kept_end(prompt, estimate_tokens(len(prompt)), self.truncate_prompt_tokens)

    def limits(self) -> tuple[Any, ...]:
        """Return the limit of today's API before the one it replaced, and Ollama's."""
        held = self.options.get("num_predict") if isinstance(self.options, dict) else None
        return self.max_completion_tokens, self.max_tokens, held


class CompletionBody(Body, gc=False):
    """The body of `/v1/completions`."""

    prompt: Any = None
    max_tokens: Any = None
    truncate_prompt_tokens: Any = None

    def read(self) -> tuple[bytes, int]:
        """Render the first prompt and weigh all."""
        return kept_end(*read_prompts(self.prompt), self.truncate_prompt_tokens)

    def limits(self) -> tuple[Any, ...]:
        """Return the limit for each prompt."""
        return (self.max_tokens,)


class InputBody(Body, gc=False):
    """The body of calls that generate no text: embeddings, rerank, score, classify, pooling, speech and images."""

    input: Any = None
    messages: Any = None
    prompt: Any = None
    query: Any = None
    documents: Any = None
    items: Any = None
    text_1: Any = None
    text_2: Any = None
    queries: Any = None
    data_1: Any = None
    data_2: Any = None
    texts: Any = None
    inputs: Any = None

    def read(self) -> tuple[bytes, int]:
        """Weigh all inputs; nothing is hashed."""
        return b"", sum(weigh(getattr(self, name)) for name in _INPUTS)


_INPUTS = tuple(name for name in InputBody.__struct_fields__ if name not in Body.__struct_fields__)
