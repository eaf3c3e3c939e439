"""Messages on the wire, checked with an independent codec."""

from __future__ import annotations

from typing import Any

import pytest
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingResponse as TypedResponse
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.errors import ModelNotFound, NoReadyEndpoint
from ext_proc.core.exchange_messages import Continue, Kind, Refuse, RequestHeaders
from ext_proc.core.model import Api, Decision, Endpoint, InferenceRequest, Operation
from ext_proc.core.names import DECISION_KEY, DESTINATION, KVPICKER_NAMESPACE, RANK, SUBSET, SUBSET_NAMESPACE
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingResponse
from ext_proc.wire.codec import Encoder, decision_id, decode, encode_refusal
from ext_proc.wire.subset import Subset
from tests.unit.wire.picking import ADDRESSES, headers_message


def decision(
    identity: str = "i-1", addresses: tuple[str, ...] = ("10.0.0.11:8000",), rank: int | None = None
) -> Decision:
    """Make a decision."""
    return Decision(
        id=identity,
        endpoints=tuple(Endpoint(address=address, pool="main", slot=slot) for slot, address in enumerate(addresses)),
        request=InferenceRequest(operation=Operation.CHAT, api=Api.OPENAI, prompt_tokens=100),
        chain_length=0,
        hit_tokens=64,
        reason="prefix",
        strategy="least-wait",
        terms=(),
        filters=(),
        decided_at=0.0,
        rank=rank,
    )


@given(st.text(st.characters(codec="utf-8", exclude_characters="|"), min_size=1, max_size=400))
def test_decision_metadata_is_a_struct_for_any_length(identity: str) -> None:
    """The metadata that is written by hand parses as the Struct it stands for."""
    message = Encoder(1).encode(Continue(Kind.REQUEST_BODY, decision(identity)))
    fields = ProcessingResponse.FromString(message).dynamic_metadata.fields
    text = fields[KVPICKER_NAMESPACE].struct_value.fields[DECISION_KEY].string_value
    assert decision_id(text) == identity
    assert text.endswith("|10.0.0.11:8000|64/100|prefix")


@pytest.mark.parametrize("kind", [Kind.REQUEST_HEADERS, Kind.REQUEST_BODY, Kind.REQUEST_TRAILERS], ids=str)
def test_pick_is_understood_by_another_codec(kind: Kind) -> None:
    """Envoy's own message definitions read the same pick."""
    message = Encoder(2).encode(Continue(kind, decision(addresses=("10.0.0.11:8000", "[fd00::1]:8000"))))
    typed = TypedResponse.parse(message)
    lb = typed.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    assert lb["x-gateway-destination-endpoint"].string_value == "10.0.0.11:8000,[fd00::1]:8000"


@pytest.mark.parametrize("rank", [None, 0, 3])
@pytest.mark.parametrize("kind", [Kind.REQUEST_HEADERS, Kind.REQUEST_BODY], ids=lambda kind: kind.name)
def test_the_rank_is_named_beside_the_pick_or_taken_away(kind: Kind, rank: int | None) -> None:
    """A client's rank reaches no engine: ours takes its place, or it is removed while the headers can be changed."""
    response = ProcessingResponse.FromString(Encoder(1).encode(Continue(kind, decision(rank=rank))))
    mutation = getattr(response, kind.name.lower()).response.header_mutation
    named = {option.header.key: option.header.raw_value for option in mutation.set_headers}
    assert named.get(RANK) == (None if rank is None else str(rank).encode())
    assert named[DESTINATION] == b"10.0.0.11:8000"
    assert list(mutation.remove_headers) == ([RANK] if rank is None and kind is Kind.REQUEST_HEADERS else [])


@pytest.mark.parametrize("skip_body", [False, True], ids=["keep body", "skip body"])
@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
def test_bare_answer_is_of_the_kind_asked(kind: Kind, skip_body: bool) -> None:
    """An answer names the kind of message it answers, and overrides the mode only if told to."""
    response = ProcessingResponse.FromString(Encoder(1).encode(Continue(kind, skip_body=skip_body)))
    assert response.WhichOneof("response") == kind.name.lower()
    assert response.HasField("mode_override") is skip_body


def test_short_choice_is_repeated_for_each_attempt() -> None:
    """One endpoint for three attempts is named three times, so that a retry cannot reach another model."""
    assert Encoder(3).destination(decision()) == ",".join(["10.0.0.11:8000"] * 3)


@pytest.mark.parametrize(
    ("refusal", "retry_after"), [(ModelNotFound("gone"), None), (NoReadyEndpoint("busy"), b"1")], ids=["404", "503"]
)
def test_refusal_carries_status_details_and_retry_after(
    refusal: ModelNotFound | NoReadyEndpoint, retry_after: bytes | None
) -> None:
    """A refusal tells the client when to try again, where that helps."""
    immediate = ProcessingResponse.FromString(encode_refusal(Refuse(refusal, Api.OPENAI))).immediate_response
    headers = {option.header.key: option.header.raw_value for option in immediate.headers.set_headers}
    assert headers.get("retry-after") == retry_after
    assert headers["content-type"] == b"application/json"
    assert immediate.details == f"kvpicker_{refusal.reason}"


@pytest.mark.parametrize(
    ("members", "address", "inside"),
    [
        (["[fd00:0::11]:8000"], "[fd00::11]:8000", True),
        (["fd00::11"], "[fd00::11]:8001", True),
        (["10.0.0.1:80"], "10.0.0.1:81", False),
        ([""], "10.0.0.1:80", False),
    ],
    ids=["other notation", "host alone", "other port", "empty"],
)
def test_subset_compares_addresses_not_text(members: list[str], address: str, inside: bool) -> None:
    """Equal addresses in other notation match (E07)."""
    assert (address in Subset(members)) is inside


def test_h01_names_of_headers_are_read_in_any_spelling() -> None:
    """A data plane that passes names on as clients write them does not hide what a client must not set."""
    message = headers_message("/x", ("X-Gateway-Destination-Endpoint", "127.0.0.1:9"), ("X-Request-ID", "a"))
    event = decode(message)
    assert isinstance(event, RequestHeaders)
    assert (event.spoofed, event.request_id) == (True, "a")


@pytest.mark.parametrize(
    ("lines", "read"),
    [(["gzip"], "gzip"), (["identity", "gzip"], "identity, gzip"), (["gzip", "br", "gzip"], "gzip, br, gzip")],
    ids=["one", "two", "three"],
)
def test_g13_encodings_in_several_lines_are_one_list(lines: list[str], read: str) -> None:
    """Of a repeated Content-Encoding none is lost, or a body in two encodings would be read as if it had one."""
    event = decode(headers_message("/x", *(("content-encoding", line) for line in lines)))
    assert isinstance(event, RequestHeaders)
    assert event.head.content_encoding == read


@pytest.mark.parametrize(
    ("hint", "allowed"),
    [
        (" 10.0.0.12:8000 , 10.0.0.12:8000,", ["10.0.0.12:8000"]),
        (["10.0.0.12", "  10.0.0.13:8000  "], ["10.0.0.12:8000", "10.0.0.13:8000"]),
        ([["10.0.0.11:8000"], {"a": "10.0.0.11:8000"}, 10, None, True, "10.0.0.13:8000"], ["10.0.0.13:8000"]),
        (["engine-a:8000", "10.0.0.12:", "10.0.0.12:0", ":8000", "10.0.0.300:8000", "http://10.0.0.11:8000"], []),
        ({"10.0.0.11:8000": True}, []),
        ("", []),
        ([], []),
        (True, []),
        (None, ["10.0.0.11:8000", "10.0.0.12:8000", "10.0.0.13:8000"]),
    ],
    ids=["text", "hosts", "odd members", "no addresses", "map", "empty text", "empty list", "boolean", "null"],
)
def test_g09_a_hint_of_any_shape_allows_what_it_names(hint: Any, allowed: list[str]) -> None:
    """What is no address allows nothing, and what is there but names nobody allows nobody."""
    event = decode(headers_message(metadata={SUBSET_NAMESPACE: {SUBSET: hint}}))
    assert isinstance(event, RequestHeaders)
    assert [one for one in ADDRESSES if event.subset is None or one in event.subset] == allowed
