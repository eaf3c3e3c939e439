"""The error tree; each class carries its HTTP status, its reason code and its name in the clients' APIs.

```text
KvpickerError
├── ConfigError                  what an operator wrote cannot be used
├── StrategyError                what a strategy returned cannot be used
└── Refusal                      a request that kvpicker answers itself
    ├── ModelRequired       400
    ├── ModelNotFound       404
    ├── NoReadyEndpoint     503
    ├── SubsetEmpty         503
    ├── Saturated           429
    ├── QueueFull           429
    ├── WaitedInVain        429
    ├── Displaced           429
    ├── NotYetScaled        503
    ├── Asleep              503
    ├── ShuttingDown        503
    └── InternalFailure     503
```
"""

from __future__ import annotations

from typing import ClassVar

UNSTOPPABLE = (KeyboardInterrupt, GeneratorExit)
"""What code of strangers may raise that is no failure of theirs; a SystemExit of theirs must not end kvpicker."""


class KvpickerError(Exception):
    """Root of all errors that kvpicker raises on purpose."""


class ConfigError(KvpickerError):
    """A configuration, endpoints file or option that cannot be used.

    `path` names the field at fault, `where` the file and line; both may be empty.
    """

    def __init__(self, message: str, *, path: str = "", where: str = "") -> None:
        super().__init__(": ".join(part for part in (where, path, message) if part))
        self.message = message
        self.path = path
        self.where = where


class StrategyError(KvpickerError):
    """What a strategy returned cannot be used; the message quotes nothing of it, so it may be logged."""


class Refusal(KvpickerError):
    """A request that kvpicker answers itself, in the shape of the client's API.

    Attributes:
        status: HTTP status.
        reason: reason code in logs, metrics and Envoy's response code details.
        openai_type: `error.type` of the OpenAI shape.
        anthropic_type: `error.type` of the Anthropic shape.
        dropped: why it was dropped, in the words of the Endpoint Picker's gateways; None if it was not dropped.
        retry_after: seconds for the Retry-After header; None sends none.
    """

    status: ClassVar[int] = 500
    reason: ClassVar[str] = "internal"
    openai_type: ClassVar[str] = "server_error"
    anthropic_type: ClassVar[str] = "api_error"
    dropped: ClassVar[str | None] = None
    retry_after: int | None = None


class ModelRequired(Refusal):
    """Several models are served and the request names none."""

    status = 400
    reason = "model_required"
    openai_type = "invalid_request_error"
    anthropic_type = "invalid_request_error"


class ModelNotFound(Refusal):
    """No endpoint serves the model that the request names."""

    status = 404
    reason = "model_not_found"
    openai_type = "invalid_request_error"
    anthropic_type = "not_found_error"


class NoReadyEndpoint(Refusal):
    """No endpoint can take the request now (Endpoint Picker protocol: 503)."""

    status = 503
    reason = "no_ready_endpoint"
    anthropic_type = "overloaded_error"
    dropped = "rejected-no-endpoints"
    retry_after = 1


class SubsetEmpty(Refusal):
    """The subset hint names no endpoint that may serve the request (Endpoint Picker protocol: 503)."""

    status = 503
    reason = "subset_empty"
    anthropic_type = "overloaded_error"
    dropped = "rejected-no-endpoints"
    retry_after = 1


class Overload(Refusal):
    """Asks to come back later; `retry_after` is when there is likely to be a place."""

    status = 429
    openai_type = "rate_limit_error"
    anthropic_type = "rate_limit_error"
    dropped = "rejected-saturated"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Saturated(Overload):
    """Every endpoint that may serve the request is at its cap (Endpoint Picker protocol: 429)."""

    reason = "saturated"
    retry_after = 1


class QueueFull(Overload):
    """Every endpoint is at its cap, and as many requests wait as may."""

    reason = "queue_full"
    retry_after = 1


class WaitedInVain(Overload):
    """The request waited for an endpoint as long as it may."""

    reason = "waited_in_vain"
    dropped = "rejected-ttl-expired"
    retry_after = 1


class Displaced(Overload):
    """The request waited, and another one needed its place in the queue more."""

    reason = "displaced"
    dropped = "evicted-queue-pressure"
    retry_after = 1


class NotYetScaled(Overload):
    """The first endpoint of a pool did not come in time."""

    status = 503
    reason = "not_yet_scaled"
    openai_type = "server_error"
    anthropic_type = "overloaded_error"
    dropped = "rejected-no-endpoints"
    retry_after = 1


class Asleep(Overload):
    """Every engine that may serve the request sleeps, and none is woken for it, or not in time."""

    status = 503
    reason = "asleep"
    openai_type = "server_error"
    anthropic_type = "overloaded_error"
    dropped = "rejected-no-endpoints"
    retry_after = 5

    def __init__(self, message: str, retry_after: int = 5) -> None:
        super().__init__(message, retry_after)


class ShuttingDown(Overload):
    """The request waited at a kvpicker that ends; another one, or the next, may take it."""

    status = 503
    reason = "shutting_down"
    openai_type = "server_error"
    anthropic_type = "overloaded_error"
    dropped = "rejected-shutting-down"
    retry_after = 1


class InternalFailure(Refusal):
    """A fault of kvpicker, answered to the client only where the configuration says to fail closed."""

    status = 503
    reason = "internal"
    retry_after = 1
