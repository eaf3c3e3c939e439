"""Reads what a picker answers."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Final

import betterproto2
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc

from ext_proc.conformance.messages import DESTINATION, LB_NAMESPACE

UNREADABLE: Final = "unreadable"
PATIENCE: Final = "override_message_timeout"
EMPTY: Final = "empty"
REFUSAL: Final = "immediate_response"
"""Kinds of answers beside those that are named as the message they answer."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """One ProcessingResponse.

    Attributes:
        message: what was read; empty if nothing could be.
        kind: name of the message that it answers, or one of the kinds above.
        size: its bytes.
    """

    message: ext_proc.ProcessingResponse
    kind: str
    size: int

    @classmethod
    def read(cls, data: bytes) -> Answer:
        """Read the bytes of an answer, whatever they are."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # old fields of headers may be used
                message = ext_proc.ProcessingResponse.parse(data)
        except Exception:  # noqa: BLE001  bytes of strangers: what the codec raises is not documented
            return cls(ext_proc.ProcessingResponse(), UNREADABLE, len(data))
        kind, _ = betterproto2.which_one_of(message, "response")
        if not kind:
            kind = PATIENCE if message.override_message_timeout is not None else EMPTY
        return cls(message, kind, len(data))

    @property
    def common(self) -> ext_proc.CommonResponse | None:
        """What answers to headers and to bodies have in common."""
        part = getattr(self.message, self.kind, None)
        return part.response if isinstance(part, ext_proc.HeadersResponse | ext_proc.BodyResponse) else None

    @property
    def refusal(self) -> ext_proc.ImmediateResponse | None:
        """The answer to the client, where it is one."""
        return self.message.immediate_response

    @property
    def mutation(self) -> ext_proc.HeaderMutation | None:
        """What it does to headers or trailers, those of a refusal aside."""
        part = getattr(self.message, self.kind, None)
        if isinstance(part, ext_proc.TrailersResponse):
            return part.header_mutation
        return None if self.common is None else self.common.header_mutation

    @property
    def set_headers(self) -> list[core.HeaderValueOption]:
        """The headers that it sets."""
        return [] if self.mutation is None else list(self.mutation.set_headers)

    @property
    def piece(self) -> ext_proc.StreamedBodyResponse | None:
        """The piece of a body in full duplex."""
        mutation = None if self.common is None else self.common.body_mutation
        return None if mutation is None else mutation.streamed_response

    @property
    def metadata(self) -> dict[str, Any]:
        """The dynamic metadata."""
        struct = self.message.dynamic_metadata
        return {} if struct is None else struct.to_dict()

    @property
    def named(self) -> Any:
        """The endpoint in the metadata, as it stands there; None if there is none."""
        part = self.metadata.get(LB_NAMESPACE)
        return part.get(DESTINATION) if isinstance(part, dict) else None

    @property
    def values(self) -> list[str]:
        """What the pick is wherever it stands, each an address or a list of them with commas."""
        return self.destinations if self.named is None else [*self.destinations, str(self.named)]

    @property
    def destinations(self) -> list[str]:
        """The values that it sets for the destination header."""
        return [text(option) for option in self.set_headers if name(option).lower() == DESTINATION]


def name(option: core.HeaderValueOption) -> str:
    """Return the name of a header that is set."""
    return "" if option.header is None else option.header.key


def value(option: core.HeaderValueOption) -> bytes:
    """Return the value of a header that is set, from wherever it stands."""
    header = option.header
    return b"" if header is None else header.raw_value or header.value.encode()


def text(option: core.HeaderValueOption) -> str:
    """Return the same as text."""
    return value(option).decode("utf-8", "replace")
