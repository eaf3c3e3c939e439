"""What the wire tests share: a picker without a network, and messages as Envoy writes them."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from ext_proc.assembly import Core, build_core, exchange_policy
from ext_proc.config import parse
from ext_proc.core.exchange import Exchange
from ext_proc.core.exchange_messages import BodyMode
from ext_proc.core.model import Decision, Outcome
from ext_proc.core.observer import NoObserver
from ext_proc.wire._pb.core_pb2 import HeaderValue
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest
from ext_proc.wire.codec import Encoder
from ext_proc.wire.ext_proc import ExtProcSession
from ext_proc.wire.passing import Passing

ADDRESSES = ("10.0.0.11:8000", "10.0.0.12:8000", "10.0.0.13:8000")
CHAT = b'{"model":"acme/chat-8b","messages":[{"role":"user","content":"' + b"List three rivers. " * 40 + b'"}]}'
CONFIG = """
pools:
  main:
    endpoints: ["10.0.0.11:8000", "10.0.0.12:8000", "10.0.0.13:8000"]
    models: [acme/chat-8b]
"""
TWO_POOLS = """
pools:
  chat: {endpoints: ["10.0.0.11:8000"], models: [acme/chat-8b]}
  embed: {endpoints: ["10.0.0.17:8000"], models: [acme/embed-1]}
"""


class Notes(NoObserver):
    """Keeps what it hears as plain tuples."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def decided(self, decision: Decision, seconds: float) -> None:
        """Note it."""
        self.heard.append(("decided", decision))

    def refused(self, request: Any, refusal: Any, filters: Any) -> None:
        """Note it."""
        self.heard.append(("refused", refusal.reason))
        self.heard.append(("left", [str(report) for report in filters]))

    def waited(self, pool: str, result: str, seconds: float) -> None:
        """Note it."""
        self.heard.append(("waited", (pool, result)))

    def passed(self, reason: str) -> None:
        """Note it."""
        self.heard.append(("passed", reason))

    def failed(self, reason: str, error: BaseException | None = None) -> None:
        """Note it."""
        self.heard.append(("failed", reason))

    def first_token(self, decision: Decision, seconds: float) -> None:
        """Note it."""
        self.heard.append(("first_token", seconds))

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Note it."""
        self.heard.append(("finished", outcome))

    def all(self, kind: str) -> list[Any]:
        """Return what was heard of one kind."""
        return [value for name, value in self.heard if name == kind]


class Picking:
    """Everything below the transport, with a clock that a test moves."""

    def __init__(self, config: str = CONFIG, *, refuse_on_failure: bool = False) -> None:
        self.notes = Notes()
        self.now = 1000.0
        parsed = parse(config)
        self.core: Core = build_core(parsed, self.notes)
        for name, pool in parsed.pools.items():
            change = self.core.registry.replace(name, pool.specs, frozenset(pool.models))
            self.core.follow(change)
        self._policy = msgspec.structs.replace(
            exchange_policy(parsed, None, self.core.admission), refuse_on_failure=refuse_on_failure
        )
        self._generator = random.Random(7)

    def exchange(self) -> Exchange:
        """Open an exchange."""
        core = self.core
        return Exchange(core.picker, core.feedback, self.notes, self._policy, lambda: self.now, self._generator)

    def session(self, attempts: int = 3) -> ExtProcSession:
        """Open a session."""
        return ExtProcSession(self.exchange(), Encoder(attempts), self.notes, Passing())

    def in_flight(self) -> int:
        """Count the requests that the ledger believes to run."""
        return sum(load.in_flight for load in self.core.ledger._loads.values())


def headers_message(
    path: str = "/v1/chat/completions",
    *extra: tuple[str, str],
    method: str = "POST",
    mode: BodyMode = BodyMode.BUFFERED_PARTIAL,
    response_mode: BodyMode = BodyMode.NONE,
    end: bool = False,
    metadata: dict[str, Any] | None = None,
) -> bytes:
    """Write a request_headers message."""
    request = ProcessingRequest()
    pairs = ((":method", method), (":path", path), (":authority", "llm"), ("content-type", "application/json"), *extra)
    entries = [HeaderValue(key=key, raw_value=value.encode()) for key, value in pairs]
    request.request_headers.headers.headers.extend(entries)
    request.request_headers.end_of_stream = end
    request.protocol_config.request_body_mode = int(mode)
    request.protocol_config.response_body_mode = int(response_mode)
    for namespace, fields in (metadata or {}).items():
        request.metadata_context.filter_metadata[namespace].update(fields)
    return request.SerializeToString()


def body_message(body: bytes = CHAT, *, end: bool = True) -> bytes:
    """Write a request_body message."""
    request = ProcessingRequest()
    request.request_body.body = body
    request.request_body.end_of_stream = end
    return request.SerializeToString()
