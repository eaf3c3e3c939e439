"""Which requests are understood, and as what."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.model import Api, Operation
from ext_proc.core.prompts.routes import classify, model_in_query, response_in_path

POSTS = {
    "/v1/chat/completions": Operation.CHAT,
    "/chat/completions": Operation.CHAT,
    "/v1/chat/completions/": Operation.CHAT,
    "//v1/chat/completions": Operation.CHAT,
    "/openai/v1/chat/completions": Operation.CHAT,
    "/openai/deployments/x/chat/completions?api-version=1": Operation.CHAT,
    "/invocations": Operation.CHAT,
    "/v1/completions": Operation.COMPLETION,
    "/completions": Operation.COMPLETION,
    "/v1/responses": Operation.RESPONSE,
    "/v1/embeddings": Operation.EMBEDDING,
    "/openai/deployments/x/embeddings": Operation.EMBEDDING,
    "/v1/messages": Operation.MESSAGE,
    "/anthropic/v1/messages?beta=true": Operation.MESSAGE,
    "/v1/messages/count_tokens?beta=true": Operation.COUNT_TOKENS,
    "/tokenize": Operation.COUNT_TOKENS,
    "/detokenize": Operation.COUNT_TOKENS,
    "/rerank": Operation.SCORE,
    "/v1/rerank": Operation.SCORE,
    "/v2/rerank": Operation.SCORE,
    "/score": Operation.SCORE,
    "/classify": Operation.SCORE,
    "/pooling": Operation.SCORE,
    "/generate": Operation.GENERATE,
    "/generate_stream": Operation.GENERATE,
    "/completion": Operation.GENERATE,
    "/infill": Operation.GENERATE,
    "/api/generate": Operation.GENERATE,
    "/api/chat": Operation.CHAT,
    "/api/embed": Operation.EMBEDDING,
    "/v1/fim/completions": Operation.COMPLETION,
    "/v1/responses/compact": Operation.RESPONSE,
    "/v1/responses/input_tokens": Operation.COUNT_TOKENS,
    "/v1/images/edits": Operation.MEDIA,
    "/inference/v1/generate": Operation.GENERATE,
    "/v1/ch%61t/completions": Operation.CHAT,
    "/v1/chat%2Fcompletions?a=%3F": Operation.CHAT,
    "/v1/audio/transcriptions": Operation.MEDIA,
    "/v1/audio/translations": Operation.MEDIA,
    "/v1/audio/speech": Operation.MEDIA,
    "/v1/images/generations": Operation.MEDIA,
}


@pytest.mark.parametrize(("path", "operation"), POSTS.items(), ids=list(POSTS))
def test_a_post_is_known_with_prefix_query_and_slash(path: str, operation: Operation) -> None:
    """Every generation, scoring and media path is known and wants its body."""
    route = classify("POST", path)
    assert route is not None
    assert (route.operation, route.wants_body) == (operation, True)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("HEAD", "/v1/models"),
        ("GET", "/v1/models/acme/chat-8b"),
        ("HEAD", "/health"),
        ("GET", "/version"),
        ("GET", "/v1/responses/resp_x"),
        ("DELETE", "/v1/responses/resp_x"),
        ("POST", "/v1/responses/resp_x/cancel"),
        ("GET", "/v1/realtime?model=a"),
    ],
)
def test_a_look_up_needs_no_body(method: str, path: str) -> None:
    """What only asks for something is answered as soon as the headers are there."""
    route = classify(method, path)
    assert route is not None
    assert (route.operation, route.wants_body) == (Operation.LOOKUP, False)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("OPTIONS", "/v1/chat/completions"),
        ("GET", "/v1/chat/completions"),
        ("post", "/v1/chat/completions"),
        ("POST", "/V1/Chat/Completions"),
        ("POST", "/v1/chat/completionsx"),
        ("POST", "/v1/ch%2561t/completions"),
        ("POST", "/v1/%ff%/x"),
        ("POST", "/v1/chat/completions/render"),
        ("POST", "/v1/threads/t1/messages"),
        ("POST", "/v1/responses/resp_x"),
        ("POST", "/xscore"),
        ("POST", "/"),
        ("POST", ""),
        ("DELETE", "/v1/models/x"),
        ("GET", "/metrics"),
    ],
)
def test_anything_else_passes_through(method: str, path: str) -> None:
    """Unknown paths and methods have no route; case matters."""
    assert classify(method, path) is None


def test_only_messages_paths_expect_anthropic_errors() -> None:
    """The path decides the shape of errors."""
    paths = [path for path in POSTS if getattr(classify("POST", path), "api", None) is Api.ANTHROPIC]
    assert all("/messages" in path for path in paths)
    assert len(paths) == 3


@settings(deadline=None)
@given(st.text(max_size=600))
def test_no_path_is_too_odd(path: str) -> None:
    """Any text is classified without an error, long ones too."""
    assert classify("POST", path) == classify("POST", path)
    classify("GET", path)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1/realtime?model=acme%2Fchat-8b", "acme/chat-8b"),
        ("/v1/realtime?a=1&model=x&model=y", "y"),
        ("/v1/realtime?model=", None),
        ("/v1/realtime", None),
        ("/v1/realtime?" + "&".join(["a=1"] * 100) + "&model=x", None),
    ],
    ids=["encoded", "twice", "empty", "absent", "too-many-fields"],
)
def test_the_query_names_the_model(path: str, model: str | None) -> None:
    """The model of an upgrade request is in its query, URL-decoded; the last one counts."""
    assert model_in_query(path) == model


@pytest.mark.parametrize(
    ("path", "response"),
    [
        ("/v1/responses/resp_a1?stream=true", "resp_a1"),
        ("/v1/responses/resp_a1/cancel", "resp_a1"),
        ("/v1/responses", None),
        ("/v1/models", None),
    ],
)
def test_the_path_names_the_response(path: str, response: str | None) -> None:
    """Requests about a stored response carry its id in the path."""
    assert response_in_path(path) == response
