"""Tells from method and path what a client asks an engine to do."""

from __future__ import annotations

import functools
import re
from urllib.parse import parse_qs, unquote

import msgspec

from ext_proc.core.model import Api, Operation

_CACHED_PATH_LENGTH = 256
"""Longer paths are rare and would let a client fill the cache with large strings."""

_BODIES = {
    "chat/completions": Operation.CHAT,
    "invocations": Operation.CHAT,
    "api/chat": Operation.CHAT,
    "completions": Operation.COMPLETION,
    "fim/completions": Operation.COMPLETION,
    "responses": Operation.RESPONSE,
    "responses/compact": Operation.RESPONSE,
    "responses/input_tokens": Operation.COUNT_TOKENS,
    "messages": Operation.MESSAGE,
    "messages/count_tokens": Operation.COUNT_TOKENS,
    "tokenize": Operation.COUNT_TOKENS,
    "detokenize": Operation.COUNT_TOKENS,
    "embeddings": Operation.EMBEDDING,
    "api/embeddings": Operation.EMBEDDING,
    "api/embed": Operation.EMBEDDING,
    "rerank": Operation.SCORE,
    "score": Operation.SCORE,
    "classify": Operation.SCORE,
    "pooling": Operation.SCORE,
    "generate": Operation.GENERATE,
    "generate_stream": Operation.GENERATE,
    "api/generate": Operation.GENERATE,
    "completion": Operation.GENERATE,
    "infill": Operation.GENERATE,
    "audio/transcriptions": Operation.MEDIA,
    "audio/translations": Operation.MEDIA,
    "audio/speech": Operation.MEDIA,
    "images/generations": Operation.MEDIA,
    "images/edits": Operation.MEDIA,
    "images/variations": Operation.MEDIA,
}
_ANTHROPIC = frozenset({"messages", "messages/count_tokens"})

# A version segment binds what follows it: /v1/threads/t1/messages is no Messages call, /azure/x/embeddings is one.
_POST = re.compile(
    r"(?:.*/(?P<far>chat/completions)|(?:.*/)?v\d+/(?P<near>[^?]+?)|(?:.*/)?"
    r"(?P<bare>" + "|".join(sorted(map(re.escape, _BODIES), key=len, reverse=True)) + r"))/?",
    re.DOTALL,
)
_RESPONSE = re.compile(r"(?:.*/)?responses/(?P<id>[^/]+)(?P<rest>/cancel|/input_items)?/?", re.DOTALL)
_LOOKUP = re.compile(r"(?:.*/)?(?:v1/models(?:/.+)?|models|health|version)/?", re.DOTALL)
_REALTIME = re.compile(r"(?:.*/)?realtime/?", re.DOTALL)


class Route(msgspec.Struct, frozen=True):
    """What a method and a path ask for.

    Attributes:
        operation: what the engine is asked to do.
        api: the API whose error shape the client expects.
        wants_body: True if the request can be understood only with its body.
    """

    operation: Operation
    api: Api
    wants_body: bool


_ROUTES = {
    name: Route(operation, Api.ANTHROPIC if name in _ANTHROPIC else Api.OPENAI, wants_body=True)
    for name, operation in _BODIES.items()
}
_LOOK_UP = Route(Operation.LOOKUP, Api.OPENAI, wants_body=False)


def classify(method: str, path: str) -> Route | None:
    """Find the route of a request; None for one that must pass through untouched.

    A query string, one trailing slash and any path in front (`/openai/v1/chat/completions`) are allowed. Letters may be
    spelt in hexadecimal (`/v1/ch%61t/completions`), since engines do not mind: nobody is to go unseen that way.
    """
    if len(path) > _CACHED_PATH_LENGTH:
        return _classify(method, path)
    return _cached(method, path)


def model_in_query(path: str) -> str | None:
    """Read `model` from the query string, decoded; the last one where it stands twice."""
    query = path.partition("?")[2]
    try:
        values = parse_qs(query, max_num_fields=64).get("model")
    except ValueError:
        return None
    return values[-1] if values else None


def response_in_path(path: str) -> str | None:
    """Read the id from `/v1/responses/{id}` and the paths below it."""
    found = _RESPONSE.fullmatch(path.partition("?")[0])
    return unquote(found["id"]) if found else None


def _classify(method: str, path: str) -> Route | None:
    path = path.partition("?")[0]
    if "%" in path:
        path = unquote(path)
    if method == "POST":
        return _classify_post(path)
    if method in {"GET", "HEAD"} and (_LOOKUP.fullmatch(path) or _RESPONSE.fullmatch(path)):
        return _LOOK_UP
    if method == "GET" and _REALTIME.fullmatch(path):
        return _LOOK_UP
    if method == "DELETE":
        found = _RESPONSE.fullmatch(path)
        return _LOOK_UP if found and not found["rest"] else None
    return None


def _classify_post(path: str) -> Route | None:
    found = _RESPONSE.fullmatch(path)
    if found and found["rest"] == "/cancel":
        return _LOOK_UP
    found = _POST.fullmatch(path)
    if not found:
        return None
    return _ROUTES.get(found["far"] or found["near"] or found["bare"])


_cached = functools.lru_cache(maxsize=4096)(_classify)
