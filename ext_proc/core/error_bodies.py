"""Error bodies in the shape of the API that the client called."""

from __future__ import annotations

import msgspec

from ext_proc.core.errors import Refusal
from ext_proc.core.model import Api

_ENCODER = msgspec.json.Encoder()


def error_body(refusal: Refusal, api: Api) -> bytes:
    """Return the JSON body of a refusal (shapes: OpenAI and Anthropic API references, "Errors")."""
    message = str(refusal)
    if api is Api.ANTHROPIC:
        return _ENCODER.encode({"type": "error", "error": {"type": refusal.anthropic_type, "message": message}})
    error = {"message": message, "type": refusal.openai_type, "param": None, "code": refusal.reason}
    return _ENCODER.encode({"error": error})
