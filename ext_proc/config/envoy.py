"""The settings of what kvpicker and Envoy agree on."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from ext_proc.config.section import Section, Text

DataPlane: TypeAlias = Literal["auto", "override-host", "original-dst", "subset"]


class EnvoyConfig(Section, frozen=True, kw_only=True):
    """What kvpicker and Envoy agree on.

    Attributes:
        endpoints_file: Path of the EDS file that kvpicker writes and Envoy reads. Unset writes none, for an
            Envoy that learns its endpoints elsewhere.
        cluster: Name of the Envoy cluster that the endpoints belong to.
        fallbacks: Further endpoints that Envoy may try when the chosen one refuses, at most; the same as
            Envoy's `num_retries`.
        data_plane: How Envoy finds the chosen endpoint, which decides whether the fallbacks can be named to it:
            `override-host` takes a list of endpoints (plain Envoy, Istio); `original-dst` (Envoy AI Gateway) and
            `subset` (kgateway) take one, and answer a list with 503 or place the request at random. `auto` names one
            on streams in full duplex, which gateways ask for, and all on others.
        message_timeout_s: Seconds that Envoy waits for an answer of kvpicker (its `message_timeout`).
        max_message_timeout_s: Seconds that Envoy waits if kvpicker asks it to (its `max_message_timeout`); 0 for an
            Envoy that cannot be asked, whose own default that is. Requests in a queue wait a second less than that,
            or most of `message_timeout_s` if it is 0.
    """

    endpoints_file: Text | None = None
    cluster: Annotated[str, Meta(min_length=1, max_length=256)] = "kvpicker_endpoints"
    fallbacks: Annotated[int, Meta(ge=0, le=10)] = 2
    data_plane: DataPlane = "auto"
    message_timeout_s: Annotated[float, Meta(gt=0, le=3_600)] = 2.0
    max_message_timeout_s: Annotated[float, Meta(ge=0, le=3_600)] = 300.0

    @property
    def named(self) -> int:
        """Endpoints that a pick names."""
        return 1 if self.data_plane in {"original-dst", "subset"} else self.fallbacks + 1

    @property
    def named_in_duplex(self) -> int:
        """Endpoints that a pick names on a stream in full duplex."""
        return 1 if self.data_plane == "auto" else self.named
