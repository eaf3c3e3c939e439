"""Knows the answers that Envoy gives in the place of an engine, by its own words and by those it is configured with."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ext_proc.core.model import Ending

ENGINE_UNREACHABLE: Final = "The engine could not be reached or closed the connection before it answered."
ENGINE_TIMEOUT: Final = "The engine did not answer in time."
NO_ENGINE_READY: Final = "No engine is ready."
"""What rendered configurations of Envoy say in their answers."""

_NO_CONNECTION = re.compile(rb"(?:remote|local) connection failure|connection timeout")
_OWN_WORDS: Final = (
    (b"upstream connect error or disconnect/reset before headers", Ending.RESET),
    (b"upstream request timeout", Ending.TIMEOUT),
    (b"stream timeout", Ending.TIMEOUT),
    (b"no healthy upstream", Ending.LOCAL),
)
"""How the bodies of Envoy's own answers begin (source/common/router/router.cc)."""

_CONFIGURED: Final = (
    (ENGINE_UNREACHABLE.encode(), Ending.RESET),
    (ENGINE_TIMEOUT.encode(), Ending.TIMEOUT),
    (NO_ENGINE_READY.encode(), Ending.LOCAL),
)
_WITHIN: Final = 1024


class OwnAnswer(NamedTuple):
    """What an answer of Envoy's tells.

    Attributes:
        ending: how the request ended.
        is_exact: False if an access log knows it better, as whether there was a connection.
    """

    ending: Ending
    is_exact: bool


def read_own_answer(body: bytes) -> OwnAnswer | None:
    """Tell what Envoy says in the beginning of a body; None where the words are others."""
    for words, ending in _OWN_WORDS:
        if body.startswith(words):
            failed = ending is Ending.RESET and _NO_CONNECTION.search(body, 0, _WITHIN)
            return OwnAnswer(Ending.CONNECT_FAILURE if failed else ending, is_exact=True)
    for words, ending in _CONFIGURED:
        if body.find(words, 0, _WITHIN) >= 0:
            return OwnAnswer(ending, is_exact=False)
    return None
