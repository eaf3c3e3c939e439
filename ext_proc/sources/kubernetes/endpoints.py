"""Makes the endpoints of a pool from Kubernetes objects.

An address belongs to whoever took it last: of two pods with one address, to the pod that was created last; of two
slices, to the pod in the slice that changed last. For one and the same pod, "ready" in any slice wins. Whoever is
about to end is not ready any more, whatever its readiness probe says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ext_proc.core import addresses
from ext_proc.core.pool import EndpointSpec
from ext_proc.sources.kubernetes.objects import NO_TEXTS, EndpointSlice, InferencePool, Pod, SliceEndpoint

_OVER = frozenset({"Succeeded", "Failed"})
"""Phases of pods that keep their address on record although it may be another's by now."""

_FAILING = "False"


class Claim(NamedTuple):
    """One object's word on one address; `owner` is the pod's uid, `is_ending` that it will not be ready again."""

    owner: str
    is_ready: bool
    spec: EndpointSpec
    is_ending: bool = False


class Found(msgspec.Struct, frozen=True):
    """The endpoints of a pool.

    Attributes:
        specs: the endpoints.
        owners: the uid of the pod behind each address.
        unready: addresses that are not ready.
    """

    specs: tuple[EndpointSpec, ...] = ()
    owners: Mapping[str, str] = NO_TEXTS
    unready: frozenset[str] = frozenset()

    def renewed(self, before: Found) -> frozenset[str]:
        """Return the addresses that are another pod's now, which inherits nothing."""
        shared = self.owners.keys() & before.owners.keys()
        return frozenset(address for address in shared if self.owners[address] != before.owners[address])


class PoolFacts(msgspec.Struct, frozen=True):
    """What an InferencePool says beside its endpoints.

    Attributes:
        failure_mode: what the gateway does when the endpoint picker does not answer: `FailOpen` or `FailClose`; empty
            without an endpoint picker.
        parents: gateways it is attached to, `namespace/name`.
        problems: conditions that do not hold, as `gateway: Condition: Reason`.
    """

    failure_mode: str = ""
    parents: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def pool_facts(pool: InferencePool) -> PoolFacts:
    """Read what an InferencePool says beside its endpoints."""
    parents, problems = [], []
    for parent in pool.status.parents or ():
        name = f"{parent.parent_ref.namespace}/{parent.parent_ref.name}".lstrip("/")
        parents.append(name)
        problems += [
            f"{name}: {condition.type}: {condition.reason}"
            for condition in parent.conditions or ()
            if condition.status == _FAILING and condition.type in {"Accepted", "ResolvedRefs"}
        ]
    picker = pool.spec.endpoint_picker_ref
    return PoolFacts("" if picker is None else picker.failure_mode, tuple(parents), tuple(problems))


def resolve(claims: Iterable[Claim]) -> Found:
    """Decide whose each address is, by claims in the order in which they were made; leave out those about to end."""
    holders: dict[str, Claim] = {}
    for claim in claims:
        held = holders.get(claim.spec.address)
        if held is None or held.owner != claim.owner or claim.is_ready:
            holders[claim.spec.address] = claim
    listed = [claim for claim in holders.values() if claim.is_ready or not claim.is_ending]
    return Found(
        tuple(claim.spec for claim in listed),
        {claim.spec.address: claim.owner for claim in listed},
        frozenset(claim.spec.address for claim in listed if not claim.is_ready),
    )


def pod_claims(pod: Pod, ports: Iterable[int], labels: Mapping[str, str]) -> tuple[Claim, ...]:
    """Return what a pod says of its addresses, one per port; nothing before it has an IP or once it is over.

    Args:
        pod: the pod.
        ports: the ports of its pool.
        labels: label of an endpoint by label of a pod that it is taken from.
    """
    metadata, status = pod.metadata, pod.status
    if not status.pod_ip or status.phase in _OVER:
        return ()
    has, is_ready = endpoint_labels(metadata.labels or NO_TEXTS, labels), _is_ready(pod)
    is_ending = metadata.deletion_timestamp is not None
    return tuple(
        Claim(metadata.uid, is_ready, EndpointSpec(address=address, labels=has), is_ending)
        for address in _addresses(status.pod_ip, _active(pod, ports))
    )


def age(pod: Pod) -> tuple[str, str]:
    """Return what sorts pods by their creation."""
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


def slice_claims(
    part: EndpointSlice, port: int | str | None, labels: Mapping[str, Mapping[str, str]]
) -> tuple[Claim, ...]:
    """Return what an EndpointSlice says of its addresses.

    Args:
        part: the slice.
        port: name or number of the port; None takes the only one.
        labels: the labels of endpoints by uid of their pod.
    """
    numbers = slice_ports(part, port)
    claims = []
    for entry in part.endpoints or () if part.address_type != "FQDN" else ():
        owner = entry.target_ref.uid if entry.target_ref is not None else ""
        has = labels.get(owner, NO_TEXTS)
        claims += [
            Claim(
                owner or address,
                _is_serving(entry),
                EndpointSpec(address=address, labels=has),
                bool(entry.conditions.terminating),
            )
            for ip in (entry.addresses or ())[:1]
            for address in _addresses(ip, numbers)
        ]
    return tuple(claims)


def slice_ports(part: EndpointSlice, port: int | str | None) -> list[int]:
    """Return the numbers of the ports that are meant; none where that is not clear."""
    known = [one for one in part.ports or () if one.port is not None and (one.protocol or "TCP") == "TCP"]
    if port is not None:
        known = [one for one in known if port in (one.port, one.name or None)]
    numbers = sorted({one.port for one in known if one.port is not None})
    return numbers if port is not None or len(numbers) == 1 else []


def endpoint_labels(of_pod: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of an endpoint: those that are wanted and that its pod has."""
    return {label: of_pod[source] for label, source in wanted.items() if source in of_pod}


def selector_text(labels: Mapping[str, str]) -> str:
    """Write labels that objects must have as a query says it."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _is_ready(pod: Pod) -> bool:
    if pod.metadata.deletion_timestamp is not None:
        return False
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions or ())


def _is_serving(entry: SliceEndpoint) -> bool:
    conditions = entry.conditions
    return conditions.ready is not False and not conditions.terminating


def _active(pod: Pod, ports: Iterable[int]) -> Iterable[int]:
    """Leave out ports that the pod itself does not count among its open ones."""
    annotations = pod.metadata.annotations
    text = None if annotations is None else annotations.ports or annotations.older_ports
    if text is None:
        return ports
    active = {part.strip() for part in text.split(",")}
    return [port for port in ports if str(port) in active]


def _addresses(ip: str, ports: Iterable[int]) -> Sequence[str]:
    try:
        return [addresses.join(ip, port) for port in ports]
    except ValueError:
        return []
