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
        retry_after: seconds for the Retry-After header; None sends none.
    """

    status: ClassVar[int] = 500
    reason: ClassVar[str] = "internal"
    openai_type: ClassVar[str] = "server_error"
    anthropic_type: ClassVar[str] = "api_error"
    retry_after: ClassVar[int | None] = None


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
    retry_after = 1


class SubsetEmpty(Refusal):
    """The subset hint names no endpoint that may serve the request (Endpoint Picker protocol: 503)."""

    status = 503
    reason = "subset_empty"
    anthropic_type = "overloaded_error"
    retry_after = 1


class InternalFailure(Refusal):
    """A fault of kvpicker, answered to the client only where the configuration says to fail closed."""

    status = 503
    reason = "internal"
    retry_after = 1
