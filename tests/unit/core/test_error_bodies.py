"""Error bodies in the shapes of the clients' APIs."""

from __future__ import annotations

import json

import pytest

from ext_proc.core.error_bodies import error_body
from ext_proc.core.errors import InternalFailure, ModelNotFound, NoReadyEndpoint
from ext_proc.core.model import Api


def test_openai_shape() -> None:
    """The object has message, type, param and code, as OpenAI clients read them."""
    error = json.loads(error_body(ModelNotFound("no such model"), Api.OPENAI))["error"]
    assert error == {
        "message": "no such model",
        "type": "invalid_request_error",
        "param": None,
        "code": "model_not_found",
    }


def test_anthropic_shape() -> None:
    """The object is marked as an error and names Anthropic's type for it."""
    body = json.loads(error_body(NoReadyEndpoint("try later"), Api.ANTHROPIC))
    assert body == {"type": "error", "error": {"type": "overloaded_error", "message": "try later"}}


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("message", ['say "no"\n\\', "größer 模型", ""], ids=["escapes", "unicode", "empty"])
def test_messages_survive_the_encoding(api: Api, message: str) -> None:
    """Whatever the message holds, the client reads exactly that."""
    assert json.loads(error_body(InternalFailure(message), api))["error"]["message"] == message
