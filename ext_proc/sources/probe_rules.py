"""What an engine's answer to a probe means.

vLLM's server listens only when the model is loaded, and answers 503 when its core has died. SGLang and llama.cpp listen
before and answer 503 until then, llama.cpp with a body that says so. Triton answers 400 while it is not ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from ext_proc.core.health_states import Verdict

HEALTH = "/health"
_PATHS: Mapping[str, str] = MappingProxyType({"triton": "/v2/health/ready", "ollama": "/api/version"})
_LOADING = (b"loading", b"starting", b"warming", b"initializ")
_FULL = (b"no slot", b"overload", b"too many")


def path_of(engine: str) -> str:
    """Return the path that tells whether an engine is well; an empty name stands for one that is not known."""
    return _PATHS.get(engine, HEALTH)


def judged(engine: str, status: int, body: bytes, *, retry_after: bool = False) -> Verdict:
    """Understand the answer to `GET` of an engine's own page of health.

    Args:
        engine: which engine it is; empty where that is not known.
        status: HTTP status.
        body: the beginning of the body.
        retry_after: whether the answer says when to come again, as a busy server's does.
    """
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return Verdict.GOOD
    text = body.lower()
    if engine == "triton" and status == HTTPStatus.BAD_REQUEST:
        return Verdict.LOADING
    if status == HTTPStatus.SERVICE_UNAVAILABLE and any(word in text for word in _LOADING):
        return Verdict.LOADING
    is_full = retry_after or any(word in text for word in _FULL)
    if status == HTTPStatus.TOO_MANY_REQUESTS or (status == HTTPStatus.SERVICE_UNAVAILABLE and is_full):
        return Verdict.BUSY
    if status < HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.NOT_IMPLEMENTED:
        return Verdict.UNSUPPORTED
    return Verdict.FAILED


def judged_generation(status: int) -> Verdict:
    """Understand the answer to the request for one token."""
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return Verdict.GOOD
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        return Verdict.BUSY
    return Verdict.FAILED if status >= HTTPStatus.INTERNAL_SERVER_ERROR else Verdict.UNSUPPORTED
