"""Envoy's access log service → outcomes and renewals, joined to decisions by our own metadata."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct

from ext_proc.core.attempts import NO_ATTEMPTS, Attempt
from ext_proc.core.feedback import Feedback
from ext_proc.core.model import Ending, Outcome
from ext_proc.core.names import (
    ACCESS_LOG_SERVICE,
    DECISION_KEY,
    KVPICKER_NAMESPACE,
    LB_NAMESPACE,
    SERVED,
    USAGE_NAMESPACE,
)
from ext_proc.core.status_endings import ending_of_status
from ext_proc.wire._pb.access_log_entry_pb2 import (
    AccessLogCommon,
    AccessLogType,
    HTTPAccessLogEntry,
    ResponseFlags,
)
from ext_proc.wire._pb.access_log_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from ext_proc.wire.codec import decision_id
from ext_proc.wire.transport import Method, Reply
from ext_proc.wire.usage import NO_USAGE, read_failure, read_usage, read_words

_GOING_ON = Reply()
_LAST = Reply(StreamAccessLogsResponse().SerializeToString())
# The library looks an enum's name up at each use.
_PERIODIC = AccessLogType.DownstreamPeriodic
_ATTEMPT = AccessLogType.UpstreamEnd
_MAX_OPEN = 1_000
"""Requests whose failed attempts are remembered until their end; the oldest are forgotten first."""

_MAX_TRIED = 16

_END_TYPES = frozenset({AccessLogType.DownstreamEnd, AccessLogType.NotSet})


class AccessLogSession:
    """One stream of access-log batches; the answer comes when the peer ends it."""

    __slots__ = ("_attempts", "_clock", "_count", "_feedback", "_fresh")

    def __init__(self, feedback: Feedback, clock: Callable[[], float], count: Callable[[str], None]) -> None:
        self._feedback = feedback
        self._clock = clock
        self._count = count
        self._attempts: dict[str, list[Attempt]] = {}
        self._fresh: list[Attempt] = []

    def receive(self, message: bytes) -> Reply:
        """Settle or renew what the entries of a batch speak of; foreign entries are counted and left."""
        try:
            batch = StreamAccessLogsMessage.FromString(message)
        except DecodeError:
            self._count("malformed")
            return Reply(None, True, grpc.StatusCode.INVALID_ARGUMENT, "not a StreamAccessLogsMessage")
        now = self._clock()
        for entry in batch.http_logs.log_entry:
            try:
                self._count(self._take(entry, now))
            except Exception:  # noqa: BLE001  one odd entry must not lose the outcomes behind it
                self._count("failed")
        # Those whose request did not end in the same batch go on elsewhere, perhaps for long.
        for attempt in self._fresh:
            self._feedback.failed(attempt, now)
        self._fresh.clear()
        return _GOING_ON

    def close(self, *, delivered: bool) -> Reply:  # noqa: ARG002
        """Answer a peer that half-closed."""
        return _LAST

    def _take(self, entry: HTTPAccessLogEntry, now: float) -> str:
        common = entry.common_properties
        # A look-up in a map adds what it does not find, here to a message that is dropped afterwards.
        namespaces = common.metadata.filter_metadata
        identity = decision_id(namespaces[KVPICKER_NAMESPACE].fields[DECISION_KEY].string_value)
        kind = common.access_log_type
        if not identity:
            return self._keep(entry, common) if kind == _ATTEMPT else self._undecided(entry, common, now)
        self._feedback.log_tells(identity, now)
        if kind == _PERIODIC:
            served = _served(common, namespaces)
            if self._feedback.renew(identity, now, served):
                return "renewed"
            if served is not None:
                self._feedback.strangers.seen(identity, served, now)
            return self._stranger(identity)
        if kind not in _END_TYPES:
            return "ignored"
        attempts = self._attempts.pop(_name(entry), NO_ATTEMPTS) if self._attempts else NO_ATTEMPTS
        outcome = _outcome(entry, common, namespaces, identity)
        if self._feedback.settle(outcome, now, attempts):
            self._settled(attempts)
            return "settled"
        self._feedback.made(outcome, now)
        self._feedback.strangers.ended(identity)
        return self._stranger(identity)

    def _keep(self, entry: HTTPAccessLogEntry, common: AccessLogCommon) -> str:
        """Remember a failed attempt until its request ends; only a name that both entries have joins them."""
        address = _served(common, common.metadata.filter_metadata)
        if address is None:
            return "ignored"
        seconds, name = _seconds(common.duration), _name(entry)
        ending = _ending(entry, common, entry.response.response_code.value)
        attempt = Attempt(address, ending, seconds, request_id=name)
        tried = self._attempts.setdefault(name, [])
        if len(tried) < _MAX_TRIED:  # clients may give many requests one name
            tried.append(attempt)
        self._fresh.append(attempt)
        if len(self._attempts) > _MAX_OPEN:
            del self._attempts[next(iter(self._attempts))]
        return "attempt"

    def _settled(self, attempts: Sequence[Attempt]) -> None:
        """Leave out what the outcome of the request has told."""
        for attempt in attempts:
            attempt.noted = True

    def _undecided(self, entry: HTTPAccessLogEntry, common: AccessLogCommon, now: float) -> str:
        """Settle the decision of a client that left as its pick was on the way, which only the request's name joins.

        What else is undecided, Envoy placed by itself.
        """
        kind = common.access_log_type
        served = _served(common, common.metadata.filter_metadata) if kind == _PERIODIC else None
        if served is not None:
            self._feedback.strangers.seen(f"/{_name(entry)}", served, now)
        else:
            self._feedback.strangers.ended(f"/{_name(entry)}")
        is_flagged_end = common.response_flags and kind in _END_TYPES
        if is_flagged_end and _ending(entry, common, 0) is Ending.CLIENT_GONE:
            request_id = entry.request.request_id or common.stream_id
            if request_id and self._feedback.left(request_id, now):
                return "settled"
        return "undecided"

    def _stranger(self, identity: str) -> str:
        if identity in self._feedback.streams:
            return "repeated"
        return "foreign" if self._feedback.is_foreign(identity) else "unknown"


def _outcome(
    entry: HTTPAccessLogEntry, common: AccessLogCommon, namespaces: MutableMapping[str, Struct], identity: str
) -> Outcome:
    """Make the outcome of a decision from the last entry of its request.

    Parts of the entry are handed round, here and below, because each look at a message costs as much as a call.
    """
    response = entry.response
    status = response.response_code.value
    words = read_words(namespaces[USAGE_NAMESPACE]) if USAGE_NAMESPACE in namespaces else {}
    ending = _ending(entry, common, status)
    if ending is Ending.CLIENT_GONE and "done" in words:  # read to its end; OpenAI's clients hang up at [DONE]
        ending = Ending.OK
    if ending is Ending.OK and ("failed" in words or "cut" in words):
        ending = read_failure(words) if "failed" in words else Ending.CUT
    return Outcome(
        decision_id=identity,
        ending=ending,
        status=status,
        served=_served(common, namespaces),
        attempts=common.upstream_request_attempt_count or 1,
        details=response.response_code_details,
        duration=_seconds(common.duration),
        first_byte=_first_byte(common),
        usage=read_usage(words) if words else NO_USAGE,
        response_id=str(words.get("response_id", "")) if words else "",
        request_id=entry.request.request_id or common.stream_id,
    )


def _ending(entry: HTTPAccessLogEntry, common: AccessLogCommon, status: int) -> Ending:
    """Tell how an exchange ended; a status of 200 alone proves nothing, since it is sent before the end."""
    flags = common.response_flags
    if flags:
        return _flagged(ResponseFlags.FromString(flags), entry, common)
    if not common.HasField("time_to_last_upstream_rx_byte"):
        return Ending.TIMEOUT if "timeout" in entry.response.response_code_details else Ending.LOCAL
    return ending_of_status(status)


def _flagged(flags: ResponseFlags, entry: HTTPAccessLogEntry, common: AccessLogCommon) -> Ending:
    begun = common.HasField("time_to_first_upstream_rx_byte")
    if flags.downstream_connection_termination or flags.downstream_remote_reset or flags.downstream_protocol_error:
        return Ending.CLIENT_GONE
    if flags.upstream_connection_failure:
        return Ending.CONNECT_FAILURE
    if (
        flags.upstream_request_timeout
        or flags.stream_idle_timeout
        or flags.duration_timeout
        or flags.upstream_max_stream_duration_reached
    ):
        return Ending.TIMEOUT
    if flags.upstream_connection_termination or flags.upstream_remote_reset or flags.upstream_protocol_error:
        return Ending.CUT if begun else Ending.RESET
    if flags.upstream_retry_limit_exceeded:
        return Ending.SERVER_ERROR if entry.response.response_code.value else Ending.RESET
    return Ending.LOCAL


def _served(common: AccessLogCommon, namespaces: MutableMapping[str, Struct]) -> str | None:
    served = namespaces[LB_NAMESPACE].fields[SERVED].string_value
    if served:
        return served
    if common.HasField("upstream_remote_address"):
        socket = common.upstream_remote_address.socket_address
        host = f"[{socket.address}]" if ":" in socket.address else socket.address
        return f"{host}:{socket.port_value}"
    return None


def _name(entry: HTTPAccessLogEntry) -> str:
    return entry.request.request_id or entry.common_properties.stream_id


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos * 1e-9


def _first_byte(common: AccessLogCommon) -> float | None:
    if not common.HasField("time_to_first_upstream_rx_byte"):
        return None
    return _seconds(common.time_to_first_upstream_rx_byte) - _seconds(common.time_to_first_upstream_tx_byte)


def access_log_method(feedback: Feedback, clock: Callable[[], float], count: Callable[[str], None]) -> Method:
    """Make the method `StreamAccessLogs`; `count` hears what became of each entry."""
    return Method(ACCESS_LOG_SERVICE, "StreamAccessLogs", lambda: AccessLogSession(feedback, clock, count))
