"""Warms a new process up: all code is loaded before the first request, and start-up memory is left to rest."""

from __future__ import annotations

import gc
import random
import time

from ext_proc.assembly import build_core
from ext_proc.config import parse
from ext_proc.core.exchange import Exchange
from ext_proc.core.exchange_messages import BodyMode
from ext_proc.core.exchange_policy import ExchangePolicy
from ext_proc.core.observer import NoObserver
from ext_proc.wire._pb.core_pb2 import HeaderValue
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest
from ext_proc.wire.codec import Encoder
from ext_proc.wire.ext_proc import ExtProcSession
from ext_proc.wire.passing import Passing

_WARM_UP_ROUNDS = 50

_GC_THRESHOLDS = (10_000, 20, 100)
"""A decision leaves no cycles; with the usual 700 the collector runs every few dozen requests and finds nothing. Ended
tasks and connections do leave some: with more than this at once, freeing them would hold up requests for long."""


def warm_up() -> None:
    """Send a few requests through throw-away parts, so that the first real one finds all code loaded.

    Then freeze what start-up allocated: the collector need not walk it again while requests wait.
    """
    config = parse("pools: {warm: {endpoints: ['192.0.2.1:1', '192.0.2.2:1'], models: [warm]}}")
    observer = NoObserver()
    core = build_core(config, observer)
    change = core.registry.replace("warm", config.pools["warm"].specs)
    core.follow(change)
    encoder, passing, generator = Encoder(1), Passing(), random.Random(0)  # noqa: S311  breaks ties
    headers, body = _warm_up_messages()
    for _ in range(_WARM_UP_ROUNDS):
        exchange = Exchange(core.picker, core.feedback, observer, ExchangePolicy(), time.monotonic, generator)
        session = ExtProcSession(exchange, encoder, observer, passing)
        session.receive(headers)
        session.receive(body)
        session.close(delivered=False)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _warm_up_messages() -> tuple[bytes, bytes]:
    headers = ProcessingRequest()
    pairs = {":method": b"POST", ":path": b"/v1/chat/completions", "content-type": b"application/json"}
    headers.request_headers.headers.headers.extend(
        HeaderValue(key=key, raw_value=value) for key, value in pairs.items()
    )
    headers.protocol_config.request_body_mode = int(BodyMode.BUFFERED_PARTIAL)  # type: ignore[assignment]
    body = ProcessingRequest()
    content = b"warm " * 1000
    body.request_body.body = b'{"model":"warm","messages":[{"role":"user","content":"' + content + b'"}]}'
    body.request_body.end_of_stream = True
    return headers.SerializeToString(), body.SerializeToString()
