"""The parts of Kubernetes objects that are read, and the answers of an API server that carry them.

Shapes: core/v1, discovery.k8s.io/v1, inference.networking.k8s.io/v1 and llm-d.ai/v1alpha2. A Go server writes null for
an empty list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

NO_TEXTS: Mapping[str, str] = {}


class Part(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A part of an object; fields that are not read are skipped."""


class Annotations(Part, frozen=True):
    """The annotations that are read: ports of a pod that are open, as llm-d and before it the extension name them."""

    ports: str | None = msgspec.field(default=None, name="llm-d.ai/active-ports")
    older_ports: str | None = msgspec.field(default=None, name="inference.networking.k8s.io/active-ports")


class Metadata(Part, frozen=True):
    """What every object has."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: Annotations | None = None


class Condition(Part, frozen=True):
    """A condition of an object."""

    type: str = ""
    status: str = ""
    reason: str = ""


class PodStatus(Part, frozen=True):
    """How a pod is."""

    phase: str = ""
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    conditions: list[Condition] | None = None


class Pod(Part, frozen=True):
    """A pod."""

    metadata: Metadata
    status: PodStatus = PodStatus()


class TargetPort(Part, frozen=True):
    """A port of an InferencePool's pods."""

    number: int


class LabelSelector(Part, frozen=True):
    """The labels that pods must have."""

    match_labels: dict[str, str] | None = None


class EndpointPickerRef(Part, frozen=True):
    """What an InferencePool says of its endpoint picker."""

    name: str = ""
    failure_mode: str = "FailClose"


class InferencePoolSpec(Part, frozen=True):
    """What an InferencePool wants."""

    selector: LabelSelector = LabelSelector()
    target_ports: list[TargetPort] | None = None
    endpoint_picker_ref: EndpointPickerRef | None = None


class ParentRef(Part, frozen=True):
    """A gateway that an InferencePool is attached to."""

    name: str = ""
    namespace: str = ""


class ParentStatus(Part, frozen=True):
    """What a gateway says of an InferencePool."""

    parent_ref: ParentRef = ParentRef()
    conditions: list[Condition] | None = None


class InferencePoolStatus(Part, frozen=True):
    """What gateways say of an InferencePool."""

    parents: list[ParentStatus] | None = None


class InferencePool(Part, frozen=True):
    """An InferencePool."""

    metadata: Metadata
    spec: InferencePoolSpec = InferencePoolSpec()
    status: InferencePoolStatus = InferencePoolStatus()


class PoolRef(Part, frozen=True):
    """The InferencePool that an InferenceObjective is for."""

    name: str = ""


class InferenceObjectiveSpec(Part, frozen=True):
    """What an InferenceObjective wants; no priority is 0."""

    priority: int | None = None
    pool_ref: PoolRef = PoolRef()


class InferenceObjective(Part, frozen=True):
    """An InferenceObjective: a name that requests may have their priority by."""

    metadata: Metadata
    spec: InferenceObjectiveSpec = InferenceObjectiveSpec()


class ServiceSpec(Part, frozen=True):
    """What a Service wants."""

    selector: dict[str, str] | None = None


class Service(Part, frozen=True):
    """A Service."""

    metadata: Metadata
    spec: ServiceSpec = ServiceSpec()


class SliceConditions(Part, frozen=True):
    """How an address of a slice is; null means that nothing speaks against it."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetRef(Part, frozen=True):
    """The object behind an address of a slice."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class SliceEndpoint(Part, frozen=True):
    """One address of a slice; further ones are the same."""

    addresses: list[str] | None = None
    conditions: SliceConditions = SliceConditions()
    target_ref: TargetRef | None = None


class SlicePort(Part, frozen=True):
    """A port of a slice; no number means any."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(Part, frozen=True):
    """A part of the addresses of a Service."""

    metadata: Metadata
    address_type: str = ""
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None


class Thing(Protocol):
    """Any object."""

    @property
    def metadata(self) -> Metadata:
        """What every object has."""


T = TypeVar("T", bound=Thing)
_Item = TypeVar("_Item")


class ListMetadata(Part, frozen=True):
    """The version of a list, and where it goes on; empty at its end."""

    resource_version: str = ""
    continues: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, Generic[_Item], frozen=True):
    """A list, or a part of one."""

    metadata: ListMetadata
    items: list[_Item] | None = None


class Status(Part, frozen=True):
    """How an API server says no."""

    code: int = 0
    reason: str = ""
    message: str = ""


class Event(msgspec.Struct, Generic[_Item], frozen=True):
    """A line of a watch. `object` is None where only the version counts, and for `ERROR`, which has a `status`."""

    type: str
    version: str = ""
    key: str = ""
    object: _Item | None = None
    status: Status | None = None


class _Line(Part, frozen=True):
    type: str
    object: msgspec.Raw


class _Bare(Part, frozen=True):
    metadata: Metadata


class UnusableAnswerError(ValueError):
    """An answer that is not what the API describes."""


def key_of(metadata: Metadata) -> str:
    """Return what tells an object from all others, also from an earlier one of its name."""
    return metadata.uid or metadata.name


class Kind(Generic[T]):
    """Reads the answers that speak of objects of one kind.

    An object of an odd shape is left out, so that it does no harm to the others.
    """

    def __init__(self, shape: type[T]) -> None:
        self._object = msgspec.json.Decoder(shape)
        self._page = msgspec.json.Decoder(Page[shape])  # type: ignore[valid-type]
        self._raw_page = msgspec.json.Decoder(Page[msgspec.Raw])
        self._line = msgspec.json.Decoder(_Line)
        self._bare = msgspec.json.Decoder(_Bare)
        self._status = msgspec.json.Decoder(Status)

    def page(self, body: bytes) -> Page[T]:
        """Read a list.

        Raises UnusableAnswerError if it is none.
        """
        try:
            try:
                return self._page.decode(body)
            except msgspec.ValidationError:
                raw = self._raw_page.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnusableAnswerError(str(error)) from None
        return Page(raw.metadata, self._readable(raw.items or ()))

    def event(self, line: bytes) -> Event[T]:
        """Read a line of a watch; an object of an odd shape counts as deleted.

        Raises UnusableAnswerError if it is none.
        """
        try:
            read = self._line.decode(line)
            if read.type == "ERROR":
                return Event("ERROR", status=self._status.decode(read.object))
            if read.type == "BOOKMARK":
                return Event("BOOKMARK", self._bare.decode(read.object).metadata.resource_version)
            return self._change(read)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnusableAnswerError(str(error)) from None

    def _change(self, read: _Line) -> Event[T]:
        try:
            found = self._object.decode(read.object)
        except msgspec.ValidationError:
            metadata = self._bare.decode(read.object).metadata
            return Event("DELETED", metadata.resource_version, key_of(metadata))
        return Event(read.type, found.metadata.resource_version, key_of(found.metadata), found)

    def _readable(self, items: Sequence[msgspec.Raw]) -> list[T]:
        found = []
        for item in items:
            try:
                found.append(self._object.decode(item))
            except msgspec.ValidationError:
                continue
        return found
