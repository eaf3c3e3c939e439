"""What clients are told, at the level of messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingResponse as TypedResponse

from ext_proc.core.names import ASKER, DECISION_KEY, EXPLANATION_HEADER, EXPLANATION_KEY, KVPICKER_NAMESPACE, SHOWN_KEY
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest
from tests.unit.wire.picking import CHAT, CONFIG, Picking, body_message, headers_message

NETWORKS = CONFIG + "explain: {networks: [10.0.0.0/8]}\n"
SHOWING = CONFIG + "explain: {header: true}\n"
UNKNOWN = b'{"model":"unknown","messages":[]}'


def asking(address: str, attribute: str = ASKER) -> bytes:
    """Write the headers of a request whose client asks, as the gateway says, from an address."""
    message = ProcessingRequest.FromString(headers_message())
    message.attributes["envoy.filters.http.ext_proc"].update({attribute: address})
    return message.SerializeToString()


def answer(config: str, headers: bytes, body: bytes = CHAT) -> TypedResponse:
    """Return the answer to the body."""
    session = Picking(config).session()
    session.receive(headers)
    return TypedResponse.parse(session.receive(body_message(body)).message)


def metadata(response: TypedResponse) -> dict[str, Any]:
    """Return our metadata of an answer, read by another codec."""
    assert response.dynamic_metadata is not None
    found: dict[str, Any] = response.dynamic_metadata.to_dict()[KVPICKER_NAMESPACE]
    return found


def test_a_client_of_the_networks_is_told() -> None:
    """The explanation stands beside the decision, whole, whatever its length."""
    told = metadata(answer(NETWORKS, asking("10.1.2.3:51234")))
    assert set(told) == {DECISION_KEY, EXPLANATION_KEY}
    assert json.loads(told[EXPLANATION_KEY])["decision"] == told[DECISION_KEY].partition("|")[0]


@pytest.mark.parametrize(
    ("config", "headers"),
    [
        (NETWORKS, headers_message()),
        (NETWORKS, asking("11.1.2.3:51234")),
        (NETWORKS, asking("")),
        (NETWORKS, asking("10.1.2.3:51234", "source.address")),
        (NETWORKS, headers_message("/v1/chat/completions", ("x-kvpicker-explain", "1"), ("x-gateway-explain", "1"))),
        (CONFIG, asking("10.1.2.3:51234")),
    ],
    ids=["not-asked", "elsewhere", "nobody", "not-our-attribute", "headers-only", "off"],
)
def test_others_are_told_nothing(config: str, headers: bytes) -> None:
    """Only the gateway's attribute counts, and only from the networks."""
    assert set(metadata(answer(config, headers))) == {DECISION_KEY}
    refused = answer(config, headers, UNKNOWN).immediate_response
    assert refused is not None
    assert refused.headers is not None
    assert EXPLANATION_HEADER not in {option.header.key for option in refused.headers.set_headers if option.header}


def test_every_client_is_shown_the_decision_if_wanted() -> None:
    """The decision is repeated under the key that the gateway makes a header of."""
    told = metadata(answer(SHOWING, headers_message()))
    assert told[SHOWN_KEY] == told[DECISION_KEY]


def test_a_refusal_carries_its_explanation() -> None:
    """Kvpicker answers by itself, so the header is its own."""
    refused = answer(NETWORKS, asking("10.1.2.3:51234"), UNKNOWN).immediate_response
    assert refused is not None
    assert refused.headers is not None
    values = {option.header.key: option.header.raw_value for option in refused.headers.set_headers if option.header}
    assert json.loads(values[EXPLANATION_HEADER])["refused"] == "model_not_found"
