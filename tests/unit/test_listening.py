"""What comes of listening to KV events reaches the log and the status of endpoints."""

from __future__ import annotations

from typing import Any

import msgspec

from ext_proc.config import parse
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.listening import Listening
from ext_proc.ops.collector import EndpointStatus
from ext_proc.ops.events import Event
from ext_proc.ops.metrics import Metrics
from tests.unit.core.builders import Fleet

SMALL = "pools: {p: {endpoints: ['10.0.0.1:80']}}"


def test_a_change_of_state_is_one_line() -> None:
    """A problem is a warning with its reason, its end a notice; an endpoint that is not listened to has no silence."""
    fleet, said = Fleet(1), list[tuple[Event, dict[str, Any]]]()
    listening = Listening(
        parse(SMALL),
        fleet.registry,
        fleet.ledger,
        ResidentIndex(),
        Metrics(frozenset),
        lambda event, **fields: said.append((event, fields)),
    )
    endpoint = fleet.endpoints[0]
    listening._changed(endpoint, "no_events")
    listening._changed(endpoint, "")
    where = {"source": "kv_events", "endpoint": endpoint.address}
    assert said == [(Event.SOURCE_FAILED, where | {"reason": "no_events"}), (Event.SOURCE_RECOVERED, where)]
    status = EndpointStatus(endpoint=endpoint)
    assert listening.completed(status) == msgspec.structs.replace(status, kv_silence=None, kv_blocks=0)
    assert not listening.is_degraded
