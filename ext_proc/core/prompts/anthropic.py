"""Reads the bodies of Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

import msgspec

from ext_proc.core.prompts.body import Body
from ext_proc.core.prompts.conversation import Transcript
from ext_proc.core.prompts.framing import estimate_tokens
from ext_proc.core.prompts.tools import canonical_tools


class MessageBody(Body, gc=False):
    """The body of `/v1/messages`."""

    messages: Any = None
    system: Any = None
    tools: msgspec.Raw = msgspec.Raw()
    max_tokens: Any = None

    def read(self) -> tuple[bytes, int]:
        """Render the conversation as the chat API would carry it, with `system` as its first message."""
        messages = self.messages
        if not messages or not isinstance(messages, list):
            return b"", 0
        transcript = Transcript()
        transcript.add(canonical_tools(self.tools))
        if self.system:
            transcript.message({"role": "system", "content": self.system})
        transcript.messages(messages)
        prompt = b"".join(transcript.pieces)
        return prompt, estimate_tokens(len(prompt))

    def limits(self) -> tuple[Any, ...]:
        """Return the limit of this API."""
        return (self.max_tokens,)
