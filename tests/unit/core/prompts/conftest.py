"""Short ways to understand a request."""

from __future__ import annotations

import json
from typing import Any, Protocol

import pytest

from ext_proc.core.model import InferenceRequest
from ext_proc.core.prompts import RequestHead, classify, parse


class Read(Protocol):
    """Parse a body given as a value or as bytes."""

    def __call__(self, path: str, body: Any, *, complete: bool = True, **head: str) -> InferenceRequest:
        """Understand a POST request."""


@pytest.fixture(scope="session")
def read() -> Read:
    """Parse a POST request; values are sent as JSON."""

    def _read(path: str, body: Any, *, complete: bool = True, **head: str) -> InferenceRequest:
        route = classify("POST", path)
        assert route is not None
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return parse(route, RequestHead(path=path, **head), data, complete=complete)

    return _read
