"""Answers of API servers are read as they are, and odd ones do no harm."""

from __future__ import annotations

import json

import pytest

from ext_proc.sources.kubernetes.objects import EndpointSlice, Kind, Pod, UnusableAnswerError
from tests.kube.objects import endpoint_slice, pod

KIND = Kind(Pod)


def test_odd_object_in_a_list_is_left_out() -> None:
    """One object of an odd shape does not cost all the others."""
    odd = pod("odd", "10.0.0.2") | {"status": ["odd"]}
    page = KIND.page(json.dumps({"metadata": {"resourceVersion": "1"}, "items": [odd, pod("a", "10.0.0.1")]}).encode())
    assert page.items is not None
    assert [item.metadata.name for item in page.items] == ["a"]


def test_odd_object_in_a_watch_counts_as_deleted() -> None:
    """An object that turns odd is an endpoint no more, and the watch goes on."""
    odd = pod("odd", "10.0.0.2") | {"status": 7}
    odd["metadata"]["resourceVersion"] = "12"
    event = KIND.event(json.dumps({"type": "MODIFIED", "object": odd}).encode())
    assert (event.type, event.version, event.key) == ("DELETED", "12", "uid-odd")


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{", b"<html>", b'{"type": 1, "object": {}}', b"\xff\xfe{}"])
def test_answers_that_are_none(text: bytes) -> None:
    """What no API server says is refused as such, whoever said it."""
    with pytest.raises(UnusableAnswerError):
        KIND.event(text)
    with pytest.raises(UnusableAnswerError):
        KIND.page(text)


def test_null_is_an_empty_list() -> None:
    """Go writes null where there is nothing."""
    assert KIND.page(b'{"metadata": {"resourceVersion": "1"}, "items": null}').items is None
    text = json.dumps(endpoint_slice("s", "vllm", None) | {"ports": None}).encode()
    event = Kind(EndpointSlice).event(b'{"type": "ADDED", "object": ' + text + b"}")
    assert event.object is not None
    assert event.object.endpoints is None
