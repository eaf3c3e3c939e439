"""Tells from the status of an answer, or of an error within an answer, how the request ended."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from ext_proc.core.model import Ending

_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, 529})
"""529 is Anthropic's word for overload."""

_UNSUPPORTED: Final = frozenset({HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED})
"""What the client asked for, this engine will never do, however well it is; vLLM answers so."""

_CLIENT_ERROR: Final = int(HTTPStatus.BAD_REQUEST)
_SERVER_ERROR: Final = int(HTTPStatus.INTERNAL_SERVER_ERROR)


def ending_of_status(status: int) -> Ending:
    """Return how a request ended whose answer came whole."""
    if status < _CLIENT_ERROR:
        return Ending.OK
    if status in _BUSY:
        return Ending.OVERLOADED
    return Ending.SERVER_ERROR if status >= _SERVER_ERROR and status not in _UNSUPPORTED else Ending.CLIENT_ERROR


def ending_of_failure(status: int) -> Ending:
    """Return how a request ended whose answer began well and then carried an error.

    Args:
        status: what the error names; anything below 400 if it names none.
    """
    ending = ending_of_status(status)
    return Ending.STREAM_ERROR if ending in {Ending.OK, Ending.SERVER_ERROR} else ending
