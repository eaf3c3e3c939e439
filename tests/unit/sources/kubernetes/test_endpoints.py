"""Endpoints are made of pods and slices by rules that say whose an address is."""

from __future__ import annotations

import json
from typing import TypeVar

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from ext_proc.core.pool import EndpointSpec
from ext_proc.sources.kubernetes.endpoints import (
    Claim,
    Found,
    age,
    pod_claims,
    pool_facts,
    resolve,
    selector_text,
    slice_claims,
)
from ext_proc.sources.kubernetes.objects import EndpointSlice, InferencePool, Pod
from tests.kube.objects import Object, endpoint, endpoint_slice, inference_pool, pod

T = TypeVar("T")
FIRST, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def read(item: Object, kind: type[T]) -> T:
    """Read an object."""
    return msgspec.json.decode(json.dumps(item), type=kind)


def of_pods(*items: Object, ports: tuple[int, ...] = (8000,)) -> Found:
    """Make the endpoints of pods."""
    pods = sorted((read(item, Pod) for item in items), key=age)
    return resolve(claim for one in pods for claim in pod_claims(one, ports, {}))


def of_slices(*items: Object, port: int | str | None = None) -> dict[str, str]:
    """Make the endpoints of slices, in the order in which they changed: addresses with their owners."""
    found = resolve(claim for item in items for claim in slice_claims(read(item, EndpointSlice), port, {}))
    return ready(found)


def ready(found: Found) -> dict[str, str]:
    """Return the addresses that are ready, with their owners."""
    return {address: owner for address, owner in found.owners.items() if address not in found.unready}


def test_address_is_the_later_pods() -> None:
    """Of two pods with one address it is that of the later one, and if that is not ready nobody's (E20)."""
    old, new = pod("old", "10.0.0.1", created=FIRST), pod("new", "10.0.0.1", created=LATER)
    assert ready(of_pods(new, old)) == {"10.0.0.1:8000": "uid-new"}
    assert len(of_pods(new, old).specs) == 1
    assert ready(of_pods(pod("new", "10.0.0.1", created=LATER, ready=False), old)) == {}
    assert ready(of_pods(new, pod("old", "10.0.0.1", created=FIRST, terminating=True))) == {"10.0.0.1:8000": "uid-new"}
    assert of_pods(pod("new", "10.0.0.1", created=LATER, terminating=True), old) == Found()


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_pod_that_is_over_has_no_address(phase: str) -> None:
    """An evicted pod stays on record with an address that may be another's by now."""
    evicted = pod("evicted", "10.0.0.1", created=LATER, ready=False, phase=phase)
    assert of_pods(evicted, pod("a", "10.0.0.1")).owners == {"10.0.0.1:8000": "uid-a"}


def test_ports_that_a_pod_does_not_open() -> None:
    """The newer annotation goes before the older one; ports that the pool does not have are none."""
    texts = {"llm-d.ai/active-ports": "8001,7000", "inference.networking.k8s.io/active-ports": "8000"}
    assert set(of_pods(pod("a", "fd00::1", annotations=texts), ports=(8000, 8001)).owners) == {"[fd00::1]:8001"}
    assert of_pods(pod("a", "not an address"), ports=(8000,)).specs == ()


def test_pod_in_two_slices() -> None:
    """Ready in one slice wins for one pod; for two pods the slice that changed last (E20)."""
    ready, unready = endpoint("10.0.0.1", "u1", ready=True), endpoint("10.0.0.1", "u1", ready=False)
    one, two = endpoint_slice("1", "s", [ready]), endpoint_slice("2", "s", [unready])
    assert of_slices(one, two) == of_slices(two, one) == {"10.0.0.1:8000": "u1"}
    other = endpoint_slice("3", "s", [endpoint("10.0.0.1", "u2", ready=True)])
    assert of_slices(one, other) == {"10.0.0.1:8000": "u2"}
    assert of_slices(other, one) == {"10.0.0.1:8000": "u1"}
    other = endpoint_slice("3", "s", [endpoint("10.0.0.1", "u2", ready=False)])
    assert of_slices(one, other) == {}


def test_slices_that_name_no_addresses() -> None:
    """Host names are no endpoints, and neither is an address without a port or of another protocol."""
    named = endpoint_slice("1", "s", [endpoint("engine.example", "u", ready=True)], family="FQDN")
    datagrams = endpoint_slice("2", "s", [endpoint("10.0.0.1", "u", ready=True)])
    datagrams["ports"][0]["protocol"] = "UDP"
    portless = endpoint_slice("3", "s", [endpoint("10.0.0.1", "u", ready=True)], {})
    assert of_slices(named) == of_slices(datagrams) == of_slices(portless) == {}
    assert of_slices(endpoint_slice("4", "s", [{"addresses": ["10.0.0.1"]}])) == {"10.0.0.1:8000": "10.0.0.1:8000"}


def test_renewed_addresses_are_those_with_another_owner() -> None:
    """Only an address that stays and changes its pod is renewed."""
    before, after = Found((), {"a": "u1", "b": "u2", "c": "u3"}), Found((), {"a": "u1", "b": "u9", "d": "u4"})
    assert after.renewed(before) == {"b"}


def test_facts_without_an_endpoint_picker() -> None:
    """A pool need not name an endpoint picker, and a gateway need not say anything."""
    item = inference_pool("p")
    del item["spec"]["endpointPickerRef"], item["status"]
    facts = pool_facts(read(item, InferencePool))
    assert (facts.failure_mode, facts.parents, facts.problems) == ("", (), ())
    item["spec"]["endpointPickerRef"] = {"name": "kvpicker"}
    assert pool_facts(read(item, InferencePool)).failure_mode == "FailClose"


def test_selector_is_written_in_order() -> None:
    """One selector has one text, however it was written."""
    assert selector_text({"b": "2", "a": "1"}) == selector_text({"a": "1", "b": "2"}) == "a=1,b=2"


CLAIMS = st.lists(
    st.builds(
        lambda ip, owner, ready: Claim(owner, ready, EndpointSpec(address=f"10.0.0.{ip}:80")),
        st.integers(1, 3),
        st.sampled_from("xyz"),
        st.booleans(),
    ),
    max_size=12,
)


@given(CLAIMS)
def test_each_address_is_one_endpoint_of_its_last_owner(claims: list[Claim]) -> None:
    """Whatever is claimed, no address is there twice, and each one is its last claimant's, ready if that one is."""
    found = resolve(claims)
    listed = [spec.address for spec in found.specs]
    assert sorted(listed) == sorted(found.owners)
    assert found.unready <= found.owners.keys()
    for address, owner in found.owners.items():
        of_address = [claim for claim in claims if claim.spec.address == address]
        assert of_address[-1].owner == owner
        last = len(of_address) - next(
            (n for n, claim in enumerate(reversed(of_address)) if claim.owner != owner), len(of_address)
        )
        assert (address not in found.unready) == any(claim.is_ready for claim in of_address[last:])
