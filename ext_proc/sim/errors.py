"""Errors that the simulated engine answers with, in the shape of the API that was called."""

from __future__ import annotations

import http
from typing import Any

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: HTTP status.
        message: what the client reads.
        param: field of the request at fault; None if no single one is.
        retry_after: seconds for the Retry-After header; None sends none.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after = retry_after


def bad_request(message: str, param: str | None = None) -> ApiError:
    """The client's fault: 400."""
    return ApiError(400, message, param=param)


def openai_error(error: ApiError) -> dict[str, Any]:
    """The error object of OpenAI's API as vLLM fills it: the type is named after the HTTP status."""
    kind = _phrase(error.status) + ("" if error.status == http.HTTPStatus.INTERNAL_SERVER_ERROR else "Error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.status}}


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """The error object of Anthropic's API."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase.replace(" ", "").replace("-", "")
    except ValueError:
        return "Api"
