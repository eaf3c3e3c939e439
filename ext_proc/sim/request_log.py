"""The last requests as they were received, so that tests can prove what reached the engine."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request on the wire.

    Attributes:
        method: HTTP method.
        path: path with the query string, as received.
        headers: header lines in order, doubles included.
        body_sha256: SHA-256 of the raw body, in hexadecimal.
        body_length: length of the raw body in bytes.
        received_at: Unix time.
    """

    method: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    body_sha256: str
    body_length: int
    received_at: float

    def header(self, name: str) -> str | None:
        """The first value of a header, by its lower-case name."""
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)

    def as_json(self) -> dict[str, Any]:
        """As `/sim/requests` shows it."""
        return {
            "request_id": self.header("x-request-id"),
            "method": self.method,
            "path": self.path,
            "headers": [[key.decode("latin-1"), value.decode("latin-1")] for key, value in self.headers],
            "body_sha256": self.body_sha256,
            "body_length": self.body_length,
            "received_at": self.received_at,
        }


class RequestLog:
    """Keeps the last `size` requests; 0 keeps none and costs nothing, unless they are written to a file."""

    def __init__(self, size: int) -> None:
        self._entries: deque[ReceivedRequest] = deque(maxlen=size)
        self._file: BinaryIO | None = None
        self.total = 0

    @contextlib.contextmanager
    def writing_to(self, path: Path | None) -> Iterator[None]:
        """Append every request to a file as well, as a line of JSON, before it is answered; None writes none.

        What was written survives the engine, even if that is killed.
        """
        if path is None:
            yield
            return
        with path.open("ab", buffering=0) as self._file:
            yield
        self._file = None

    def add(self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Remember a request."""
        self.total += 1
        if not self._entries.maxlen and self._file is None:
            return
        digest = hashlib.sha256(body).hexdigest()
        received = ReceivedRequest(method, path, headers, digest, len(body), time.time())
        self._entries.append(received)
        if self._file is not None:
            told = {"request_id": received.header("x-request-id"), "path": path, "body_sha256": digest}
            self._file.write(msgspec.json.encode(told) + b"\n")

    def clear(self) -> None:
        """Forget all requests."""
        self._entries.clear()

    def find(self, request_id: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Requests, oldest first; only those with an `x-request-id`, and only the last ones, if asked for."""
        found = [one for one in self._entries if request_id is None or one.header("x-request-id") == request_id]
        return [one.as_json() for one in (found[-limit:] if limit else found)]
