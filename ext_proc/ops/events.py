"""The names of log events: an interface that operators build searches and alerts on."""

from __future__ import annotations

import enum
from typing import Final

NEVER: Final = None
"""No line of the event is held back: operators rely on each, and no client can make many."""


class Event(enum.Enum):
    """A log event with its level, what is limited, and its meaning.

    Attributes:
        name_: the value of `event` in the log line.
        level: the level it is logged at.
        kind: the field that divides the event into kinds, each of which has its own `log.max_per_second`; empty if the
            event is one kind, None if it is never held back.
        meaning: what happened.
    """

    REQUEST_FINISHED = ("request_finished", "info", "ending", "A request that was given an endpoint has ended.")
    REQUEST_REFUSED = ("request_refused", "info", "reason", "A request was answered by kvpicker itself.")
    REQUEST_PASSED = ("request_passed", "debug", "reason", "A request was left to Envoy's fallback policy.")
    EXCHANGE_FAILED = (
        "exchange_failed",
        "error",
        "reason",
        "An exchange ended by a fault of kvpicker or of the data plane.",
    )
    STRATEGY_FAILED = ("strategy_failed", "error", "strategy", "A strategy failed and was replaced for one request.")
    HEALTH_CHANGED = ("health_changed", "warning", "state", "An endpoint changed its state of health.")
    LIFECYCLE_CHANGED = ("lifecycle_changed", "info", NEVER, "An endpoint was cordoned, drained or let back in.")
    ENDPOINT_SLEEPS = ("endpoint_sleeps", "info", "", "An engine says that it sleeps, and gets no requests.")
    ENDPOINT_WAKES = ("endpoint_wakes", "info", "", "An engine that slept gets requests again.")
    WAKE_FAILED = ("wake_failed", "warning", "reason", "An engine that was to be woken was not.")
    ORDERS_RESTORED = (
        "orders_restored",
        "info",
        NEVER,
        "Cordons and drains that were ordered before a restart hold again.",
    )
    CONFIG_APPLIED = ("config_applied", "info", NEVER, "A configuration took effect.")
    CONFIG_REJECTED = ("config_rejected", "error", "", "A changed configuration is unusable; the last good one stays.")
    ENDPOINTS_CHANGED = ("endpoints_changed", "info", "", "Endpoints were added to a pool or removed from it.")
    ENDPOINTS_REJECTED = ("endpoints_rejected", "error", "", "An endpoints file is unusable; the last good list stays.")
    CERTIFICATES_CHANGED = ("certificates_changed", "info", "", "New connections are given certificates that changed.")
    CERTIFICATES_REJECTED = (
        "certificates_rejected",
        "error",
        "",
        "Changed certificates are unusable; the last good ones stay.",
    )
    CERTIFICATE_EXPIRES = (
        "certificate_expires",
        "warning",
        NEVER,
        "The certificate that Envoy is shown is not valid any more, or not for long; said once a day.",
    )
    INFERENCE_POOL_CHANGED = (
        "inference_pool_changed",
        "info",
        "",
        "An InferencePool says something else of its failure mode or its gateways.",
    )
    ENVOY_MISFIT = (
        "envoy_misfit",
        "warning",
        NEVER,
        "Envoy is set so that kvpicker cannot do its part: `misfit`, what that means, and how it is mended.",
    )
    SOURCE_FAILED = ("source_failed", "warning", "source", "Something kvpicker learns from cannot be read.")
    SOURCE_RECOVERED = ("source_recovered", "info", "source", "What could not be read can be read again.")
    LIBRARY_COMPLAINED = (
        "library_complained",
        "warning",
        "library",
        "A library that kvpicker uses logged a warning or an error.",
    )
    SERVER_STARTED = ("server_started", "info", NEVER, "A server of kvpicker listens.")
    SERVER_STOPPED = ("server_stopped", "info", NEVER, "A server of kvpicker has stopped.")
    LINES_SUPPRESSED = ("lines_suppressed", "warning", NEVER, "Lines that were held back and counted on no other line.")

    def __init__(self, name: str, level: str, kind: str | None, meaning: str) -> None:
        self.name_ = name
        self.level = level
        self.kind = kind
        self.meaning = meaning


def reference() -> str:
    """Render the events as a markdown table."""
    rows = [f"| `{event.name_}` | {event.level} | {_limited(event)} | {event.meaning} |" for event in Event]
    return "\n".join(["| event | level | limited per | meaning |", "|---|---|---|---|", *rows]) + "\n"


def _limited(event: Event) -> str:
    if event.kind is NEVER:
        return "never"
    return f"`{event.kind}`" if event.kind else "event"
