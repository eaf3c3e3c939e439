"""What kvpicker and Envoy agree on."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ext_proc.config.section import Section


class EnvoyConfig(Section, frozen=True, kw_only=True):
    """What kvpicker and Envoy agree on.

    Attributes:
        endpoints_file: Path of the EDS file that kvpicker writes and Envoy reads. Unset writes none, for an
            Envoy that learns its endpoints elsewhere.
        cluster: Name of the Envoy cluster that the endpoints belong to.
        fallbacks: Further endpoints that Envoy may try when the chosen one refuses, at most; the same as
            Envoy's `num_retries`.
        message_timeout_s: Seconds that Envoy waits for an answer of kvpicker (its `message_timeout`).
        max_message_timeout_s: Seconds that Envoy waits if kvpicker asks it to (its `max_message_timeout`); 0 for an
            Envoy that cannot be asked, whose own default that is. Requests in a queue wait a second less than that,
            or most of `message_timeout_s` if it is 0.
    """

    endpoints_file: str | None = None
    cluster: Annotated[str, Meta(min_length=1, max_length=256)] = "kvpicker_endpoints"
    fallbacks: Annotated[int, Meta(ge=0, le=10)] = 2
    message_timeout_s: Annotated[float, Meta(gt=0, le=3_600)] = 2.0
    max_message_timeout_s: Annotated[float, Meta(ge=0, le=3_600)] = 300.0
