"""What engines' answers to probes mean."""

from __future__ import annotations

import pytest

from ext_proc.core.health_states import Verdict
from ext_proc.sources.probe_rules import judged, judged_generation, path_of


@pytest.mark.parametrize(
    ("engine", "path"),
    [("vllm", "/health"), ("", "/health"), ("triton", "/v2/health/ready"), ("ollama", "/api/version")],
)
def test_each_engine_has_its_page(engine: str, path: str) -> None:
    """What is not known is asked as most are."""
    assert path_of(engine) == path


@pytest.mark.parametrize(
    ("engine", "status", "body", "verdict"),
    [
        ("vllm", 200, b"", Verdict.GOOD),
        ("sglang", 204, b"", Verdict.GOOD),
        ("vllm", 503, b"", Verdict.FAILED),
        ("llama-cpp", 503, b'{"error":{"code":503,"message":"Loading model"}}', Verdict.LOADING),
        ("", 503, b"model is starting", Verdict.LOADING),
        ("llama-cpp", 503, b'{"status":"no slot available"}', Verdict.BUSY),
        ("triton", 400, b"", Verdict.LOADING),
        ("vllm", 429, b"", Verdict.BUSY),
        ("vllm", 400, b"", Verdict.UNSUPPORTED),
        ("", 404, b"", Verdict.UNSUPPORTED),
        ("", 401, b"", Verdict.UNSUPPORTED),
        ("", 307, b"", Verdict.UNSUPPORTED),
        ("", 501, b"", Verdict.UNSUPPORTED),
        ("", 500, b"loading", Verdict.FAILED),
    ],
)
def test_an_answer_is_understood(engine: str, status: int, body: bytes, verdict: Verdict) -> None:
    """Loading is not illness, load is not illness, and a page that is not there says nothing."""
    assert judged(engine, status, body) is verdict


def test_a_time_to_come_again_is_a_sign_of_load() -> None:
    """A server in front of an engine that sheds load sheds probes as well."""
    assert judged("vllm", 503, b"", retry_after=True) is Verdict.BUSY
    assert judged("vllm", 500, b"", retry_after=True) is Verdict.FAILED


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(200, Verdict.GOOD), (429, Verdict.BUSY), (503, Verdict.BUSY), (404, Verdict.UNSUPPORTED), (500, Verdict.FAILED)],
)
def test_a_generation_is_understood(status: int, verdict: Verdict) -> None:
    """An engine of embeddings refuses it, and is not ill for that."""
    assert judged_generation(status) is verdict
