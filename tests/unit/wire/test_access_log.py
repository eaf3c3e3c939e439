"""Access-log entries become outcomes, written here with an independent codec as Envoy would write them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from envoy_data_plane.envoy.config.core.v3 import Address, Metadata, SocketAddress
from envoy_data_plane.envoy.data.accesslog.v3 import (
    AccessLogCommon,
    AccessLogType,
    HttpAccessLogEntry,
    HttpRequestProperties,
    HttpResponseProperties,
    ResponseFlags,
)
from envoy_data_plane.envoy.service.accesslog.v3 import (
    StreamAccessLogsMessage,
    StreamAccessLogsMessageHttpAccessLogEntries,
)
from envoy_data_plane.google.protobuf import Struct

from ext_proc.core.model import Ending, Outcome, Usage
from ext_proc.wire.access_log import AccessLogSession
from tests.unit.wire.picking import Picking, body_message, headers_message

SECOND = dt.timedelta(seconds=1)
ANSWERED = {
    "time_to_first_upstream_tx_byte": 0.1 * SECOND,
    "time_to_first_upstream_rx_byte": 0.5 * SECOND,
    "time_to_last_upstream_rx_byte": SECOND,
    "duration": SECOND,
}


def entry(
    decision_id: str,
    *,
    kind: AccessLogType = AccessLogType.DownstreamEnd,
    code: int = 200,
    details: str = "via_upstream",
    usage: dict[str, Any] | None = None,
    served: str = "",
    request_id: str = "req-1",
    **common: Any,
) -> bytes:
    """Write a batch of one entry."""
    metadata = {"kvpicker": Struct.from_dict({"decision": f"{decision_id}|x|0/0|tie"})} if decision_id else {}
    if usage is not None:
        metadata["kvpicker.usage"] = Struct.from_dict(usage)
    if served:
        metadata["envoy.lb"] = Struct.from_dict({"x-gateway-destination-endpoint-served": served})
    properties = AccessLogCommon(access_log_type=kind, metadata=Metadata(filter_metadata=metadata), **common)
    log_entry = HttpAccessLogEntry(
        common_properties=properties,
        request=HttpRequestProperties(request_id=request_id),
        response=HttpResponseProperties(response_code=code, response_code_details=details),
    )
    batch = StreamAccessLogsMessageHttpAccessLogEntries(log_entry=[log_entry])
    return bytes(StreamAccessLogsMessage(http_logs=batch))


class Log:
    """A decision in flight, and the access log that will tell of it."""

    def __init__(self) -> None:
        self.picking = Picking()
        session = self.picking.session()
        session.receive(headers_message())
        session.receive(body_message())
        session.close(delivered=True)
        self.decision = self.picking.notes.all("decided")[0]
        self.results: list[str] = []
        self._session = AccessLogSession(self.picking.core.feedback, lambda: self.picking.now, self.results.append)

    def take(self, message: bytes) -> None:
        """Deliver a batch."""
        self._session.receive(message)

    def outcome(self, **how: Any) -> Outcome:
        """Deliver the last entry of the request and return what was made of it."""
        self.take(entry(self.decision.id, **how))
        (outcome,) = self.picking.notes.all("finished")
        assert isinstance(outcome, Outcome)
        return outcome


@pytest.fixture
def log() -> Log:
    """Put one request in flight."""
    return Log()


def flags(**which: bool) -> dict[str, Any]:
    """Set response flags."""
    return {"response_flags": ResponseFlags(**which)}


BEGUN = {key: ANSWERED[key] for key in ("time_to_first_upstream_tx_byte", "time_to_first_upstream_rx_byte")}
GONE = {**BEGUN, **flags(downstream_connection_termination=True)}


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        (ANSWERED, Ending.OK),
        ({**ANSWERED, "code": 404}, Ending.CLIENT_ERROR),
        ({**ANSWERED, "code": 500}, Ending.SERVER_ERROR),
        ({**ANSWERED, "code": 503}, Ending.OVERLOADED),
        ({**ANSWERED, "code": 429}, Ending.OVERLOADED),
        ({**ANSWERED, "code": 307}, Ending.OK),
        ({**ANSWERED, "usage": {"words": "failed=1"}}, Ending.STREAM_ERROR),
        ({**ANSWERED, "usage": {"words": "prompt=3 cut=1"}}, Ending.CUT),
        ({"code": 503, **flags(upstream_connection_failure=True)}, Ending.CONNECT_FAILURE),
        ({"code": 503, **flags(upstream_connection_termination=True)}, Ending.RESET),
        ({**BEGUN, **flags(upstream_protocol_error=True)}, Ending.CUT),
        (GONE, Ending.CLIENT_GONE),
        ({**GONE, "usage": {"words": "prompt=3 done=1"}}, Ending.OK),
        ({**GONE, "usage": {"words": "failed=1 done=1"}}, Ending.STREAM_ERROR),
        ({**GONE, "usage": {"words": "prompt=3 completion=4"}}, Ending.CLIENT_GONE),
        ({"code": 504, **flags(upstream_request_timeout=True)}, Ending.TIMEOUT),
        ({**BEGUN, **flags(stream_idle_timeout=True)}, Ending.TIMEOUT),
        ({**BEGUN, "details": "max_duration_timeout"}, Ending.TIMEOUT),
        ({"code": 413, "details": "request_payload_too_large"}, Ending.LOCAL),
        ({"code": 503, **flags(no_healthy_upstream=True)}, Ending.LOCAL),
    ],
    ids=lambda value: str(value) if isinstance(value, Ending) else "",
)
def test_ending_is_read_from_flags_marks_and_code(log: Log, how: dict[str, Any], ending: Ending) -> None:
    """A status of 200 proves nothing; flags and time marks tell how it ended."""
    assert log.outcome(**how).ending is ending


def test_outcome_has_times_attempts_and_server(log: Log) -> None:
    """Times count from where they should, and the endpoint that served is known."""
    served = log.decision.endpoints[1].address
    outcome = log.outcome(**ANSWERED, served=served, upstream_request_attempt_count=2)
    assert (outcome.served, outcome.attempts, outcome.duration) == (served, 2, 1.0)
    assert outcome.first_byte == pytest.approx(0.4)
    assert outcome.request_id == "req-1"


def test_served_endpoint_falls_back_to_the_peer_address(log: Log) -> None:
    """Without the load balancer's metadata the peer's address tells who served, IPv6 in brackets."""
    address = Address(socket_address=SocketAddress(address="fd00::12", port_value=8000))
    assert log.outcome(**ANSWERED, upstream_remote_address=address).served == "[fd00::12]:8000"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"words": "prompt=120 completion=5 cached=96"}, Usage(120, 5, 96)),
        ({"words": "anthropic_input=20 anthropic_output=5 anthropic_cached=100"}, Usage(120, 5, 100)),
        ({"words": "prompt=99999999999 completion=x cached= odd ="}, Usage()),
        ({"prompt": 120, "completion": 5, "cached": 96}, Usage(120, 5, 96)),
        ({"anthropic_input": 20, "anthropic_output": 5, "anthropic_cached": 100}, Usage(120, 5, 100)),
        ({"anthropic_input": 20, "anthropic_output": 5}, Usage(20, 5, None)),
        ({"completion": 25}, Usage(None, 25, None)),
        ({"prompt": "12", "completion": True, "cached": -4}, Usage()),
        ({"prompt": 1e30, "completion": float("inf")}, Usage()),
        ({}, Usage()),
        (None, Usage()),
    ],
    ids=[
        "words",
        "anthropic words",
        "odd words",
        "openai",
        "anthropic",
        "anthropic cold",
        "partial",
        "odd types",
        "huge",
        "empty",
        "absent",
    ],
)
def test_usage_is_read_or_unknown(log: Log, usage: dict[str, Any] | None, expected: Usage) -> None:
    """Counts that are missing or nonsense are unknown, never zero and never an error (B01, B02, B04)."""
    assert log.outcome(**ANSWERED, usage=usage).usage == expected


def test_an_outcome_is_settled_once(log: Log) -> None:
    """The same entry twice releases the lease once."""
    log.outcome(**ANSWERED)
    log.take(entry(log.decision.id, **ANSWERED))
    assert log.picking.in_flight() == 0
    assert log.results == ["settled", "unknown"]


def test_an_entry_of_a_decision_that_its_stream_settled_is_a_repetition(log: Log) -> None:
    """It counts neither as foreign nor as unknown, and shows that the log speaks of such decisions."""
    feedback = log.picking.core.feedback
    assert not feedback.streams.has_log(log.picking.now)
    assert feedback.settle_stream(Outcome(decision_id=log.decision.id, ending=Ending.OK), log.picking.now)
    log.take(entry(log.decision.id, **ANSWERED))
    log.take(entry(log.decision.id, kind=AccessLogType.DownstreamPeriodic))
    assert log.results == ["repeated", "repeated"]
    assert len(log.picking.notes.all("finished")) == 1
    assert feedback.streams.has_log(log.picking.now)
    assert not feedback.streams.has_log(log.picking.now + 61)


def test_an_entry_that_comes_before_the_end_of_its_stream_settles(log: Log) -> None:
    """Then it is the stream that repeats."""
    feedback = log.picking.core.feedback
    feedback.hold(log.decision.id)
    log.take(entry(log.decision.id, **ANSWERED))
    assert not feedback.settle_stream(Outcome(decision_id=log.decision.id, ending=Ending.OK), log.picking.now)
    assert log.results == ["settled"]
    assert feedback.streams.has_log(log.picking.now)


def test_periodic_entries_renew_the_lease(log: Log) -> None:
    """A request that Envoy still reports as running stays in flight however long it takes (F09)."""
    for _ in range(20):
        log.picking.now += 30
        log.take(entry(log.decision.id, kind=AccessLogType.DownstreamPeriodic))
        log.picking.core.feedback.expire(log.picking.now)
    assert log.picking.in_flight() == 1
    assert set(log.results) == {"renewed"}


def test_lost_entries_never_leak_a_lease(log: Log) -> None:
    """Without any news the lease ends by itself and the request is counted as lost."""
    log.picking.now += 10_000
    log.picking.core.feedback.expire(log.picking.now)
    assert log.picking.in_flight() == 0
    assert [outcome.ending for outcome in log.picking.notes.all("finished")] == [Ending.LOST]


@pytest.mark.parametrize("identity", ["", "other-1"], ids=["undecided", "of another kvpicker"])
def test_foreign_entries_change_nothing(log: Log, identity: str) -> None:
    """Entries of requests that were not decided here are counted and left."""
    log.take(entry(identity, **ANSWERED))
    assert log.picking.in_flight() == 1
    assert log.results == ["foreign" if identity else "undecided"]


@pytest.mark.parametrize("code", [200, 404])
def test_a_response_that_another_kvpicker_placed_is_known_by_its_maker(log: Log, code: int) -> None:
    """What continues it may come here (A53); one that was not made ties nothing."""
    maker = log.decision.endpoints[1].address
    log.take(entry("other-1", **ANSWERED, code=code, usage={"response_id": "resp_1"}, served=maker))
    known = log.picking.core.picker.responses.address("resp_1", log.picking.now)
    assert known == (maker if code == 200 else None)
    assert log.picking.in_flight() == 1


def test_failed_first_attempt_is_blamed_and_the_prefix_moves(log: Log) -> None:
    """After a retry the endpoint that served holds the prefix, and the one that refused is ejected (G21)."""
    first, second = log.decision.endpoints[:2]
    log.outcome(**ANSWERED, served=second.address, upstream_request_attempt_count=2)
    core = log.picking.core
    assert core.health.state(first.slot) == "ejected"
    assert (core.index.blocks(first.slot), core.index.blocks(second.slot)) == (0, log.decision.chain_length)


def test_one_entry_that_fails_loses_no_other(log: Log) -> None:
    """An entry that cannot be taken is counted, and the batch goes on."""
    settle = log.picking.core.feedback.settle
    log.picking.core.feedback.settle = None
    log.take(entry(log.decision.id, **ANSWERED))
    log.picking.core.feedback.settle = settle
    log.take(entry(log.decision.id, **ANSWERED))
    assert log.results == ["failed", "settled"]


def test_counts_beyond_reason_do_not_ruin_the_estimate(log: Log) -> None:
    """An engine that reports more tokens than were allowed cannot distort what is expected of others."""
    log.outcome(**ANSWERED, usage={"words": "prompt=9999999 completion=9999999 cached=9999999"})
    expectations = log.picking.core.expectations
    assert max(each.output for each in expectations.models.values()) < 2000


def test_garbage_ends_the_stream_only(log: Log) -> None:
    """Bytes that are no batch end the stream with an error and are counted."""
    log.take(b"\xff\xff")
    assert log.results == ["malformed"]


TRIED = {"kind": AccessLogType.UpstreamEnd, **flags(upstream_connection_failure=True)}


def at(address: str) -> dict[str, Any]:
    """Say who was tried."""
    host, _, port = address.rpartition(":")
    return {"upstream_remote_address": Address(socket_address=SocketAddress(address=host, port_value=int(port)))}


def test_a_failed_attempt_counts_before_its_request_ends(log: Log) -> None:
    """The endpoint is left alone at once, though the request goes on elsewhere; its end does not count it again."""
    first, second = log.decision.endpoints[:2]
    log.take(entry("", **TRIED, **at(first.address)))
    core = log.picking.core
    assert core.health.state(first.slot) != "ready"
    changes = len(log.picking.notes.all("health_changed"))
    outcome = log.outcome(**ANSWERED, served=second.address, upstream_request_attempt_count=2)
    assert (outcome.ending, outcome.served) == (Ending.OK, second.address)
    assert len(log.picking.notes.all("health_changed")) == changes
    assert core.health.state(second.slot) == "ready"
    assert log.results == ["attempt", "settled"]


def test_a_running_request_counts_where_envoy_says_that_it_runs(log: Log) -> None:
    """A report on a running request names the endpoint of its present attempt."""
    first, second = log.decision.endpoints[:2]
    load = log.picking.core.ledger.load
    log.take(entry(log.decision.id, kind=AccessLogType.DownstreamPeriodic, **at(second.address)))
    assert log.results == ["renewed"]
    assert (load(first.slot).in_flight, load(second.slot).in_flight) == (0, 1)


@pytest.mark.parametrize("identity", ["", "other-1"], ids=["placed by Envoy", "of another kvpicker"])
def test_a_drain_waits_for_what_others_placed(log: Log, identity: str) -> None:
    """As far as it is reported as running: until its end, or until nothing is heard of it any more."""
    core, other = log.picking.core, log.decision.endpoints[1]
    running = {"kind": AccessLogType.DownstreamPeriodic, **at(other.address), "request_id": "req-2"}
    for end in ("entry", "silence"):
        log.take(entry(identity, **running))
        mark = core.lifecycle.drain(other, log.picking.now, 600.0)
        assert not core.lifecycle.advance(log.picking.now)
        assert mark.running == 1
        if end == "entry":
            log.take(entry(identity, **ANSWERED, request_id="req-2"))
        else:
            log.picking.now += 46.0
            core.feedback.expire(log.picking.now)
        assert core.lifecycle.advance(log.picking.now) == [mark]
        core.lifecycle.undrain(other)
    assert core.ledger.load(other.slot).in_flight == 0


def test_attempts_of_strangers_are_bounded(log: Log) -> None:
    """Attempts whose requests never end are forgotten, the oldest first."""
    for number in range(1_100):
        log.take(entry("", **TRIED, **at("10.9.9.9:1"), request_id=f"req-{number}"))
    assert len(log._session._attempts) == 1_000
    assert "req-0" not in log._session._attempts
    log.take(entry("", **TRIED))
    assert log.results[-1] == "ignored"


def test_one_name_for_many_requests_stays_small(log: Log) -> None:
    """Clients choose the names of requests; one that gives all the same fills nothing."""
    for _ in range(100):
        log.take(entry("", **TRIED, **at("10.9.9.9:1")))
    assert [len(tried) for tried in log._session._attempts.values()] == [16]


def test_a_client_that_left_as_its_pick_was_on_the_way_leaks_no_lease() -> None:
    """Envoy never had our metadata then, and its entry is joined by the request's name; others are left alone."""
    picking = Picking()
    for name in ("req-0", "req-1"):
        session = picking.session()
        session.receive(headers_message("/v1/chat/completions", ("x-request-id", name)))
        session.receive(body_message())
        session.close(delivered=True)
    results: list[str] = []
    log = AccessLogSession(picking.core.feedback, lambda: picking.now, results.append)
    log.receive(entry("", code=0))
    log.receive(entry("", code=0, **flags(downstream_connection_termination=True)))
    log.receive(entry("", code=0, **flags(downstream_connection_termination=True)))
    assert results == ["undecided", "settled", "undecided"]
    assert picking.in_flight() == 1
    (outcome,) = picking.notes.all("finished")
    assert outcome.ending is Ending.CLIENT_GONE
