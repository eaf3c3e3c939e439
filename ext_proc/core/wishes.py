"""What a gateway says of a request in headers of the Endpoint Picker protocol, beside what stands in its body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Final

import msgspec

from ext_proc.core.model import InferenceRequest
from ext_proc.core.names import LEGACY_NAMES, MODEL_REWRITE, TPOT_TARGET, TTFT_TARGET
from ext_proc.core.prompts import with_model
from ext_proc.core.prompts.encodings import PLAIN

LONGEST_VALUE: Final = 256
LONGEST_TARGET_MS: Final = 86_400_000.0
"""A day; what is longer is no target, and must not outgrow any clock."""

_MILLISECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


class UnwritableBodyError(Exception):
    """The model in a body cannot be changed: it is compressed, no JSON object, or its model is not to be found."""


class Wishes(msgspec.Struct, frozen=True, gc=False):
    """What is wished for one request.

    Attributes:
        model: name of the model that is to answer, in place of the body's; empty leaves that.
        ttft: seconds in which the first token is wanted; None for no matter when.
        tpot: seconds that each further token may take; None the same.
    """

    model: str = ""
    ttft: float | None = None
    tpot: float | None = None

    def rewritten(self, model: str | None, encoding: str, body: bytes, *, may_lack: bool = True) -> bytes | None:
        """Return the body with the model that is wished for; None if it is to go on as it is.

        Args:
            model: what the body names.
            encoding: its Content-Encoding.
            body: its bytes.
            may_lack: whether a body that names none is given one.

        Raises:
            UnwritableBodyError: it names another model, and cannot be changed.
        """
        if not self.model or self.model == model:
            return None
        made = with_model(body, self.model, may_lack=may_lack) if encoding.strip().lower() in PLAIN else None
        if made is None:
            raise UnwritableBodyError
        return made

    def applied(self, request: InferenceRequest) -> InferenceRequest:
        """Add them to what was understood of the request."""
        return msgspec.structs.replace(
            request, model=self.model or request.model, ttft_target=self.ttft, tpot_target=self.tpot
        )


class HeaderNames(msgspec.Struct, frozen=True, eq=False):
    """Which headers are read for what, each by its names in the order in which they count; no names read nothing.

    Attributes:
        tenant: on whose behalf a request is sent.
        priority: which goes first.
        model: the model that is to answer in place of the body's.
        ttft: milliseconds in which the first token is wanted.
        tpot: milliseconds that each further token may take.
        every: all of these names.
    """

    tenant: tuple[str, ...] = ()
    priority: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    ttft: tuple[str, ...] = ()
    tpot: tuple[str, ...] = ()

    every: frozenset[str] = frozenset()

    def read(self, values: Mapping[str, str]) -> tuple[str, str, Wishes | None]:
        """Read headers: tenant and priority as they stand there, empty if absent, and the wishes if there are any."""
        if not self.every:
            return "", "", None
        tenant, priority = _first(values, self.tenant), _first(values, self.priority)
        return tenant[:LONGEST_VALUE], priority[:LONGEST_VALUE].strip(), self._wishes(values)

    def _wishes(self, values: Mapping[str, str]) -> Wishes | None:
        model = _first(values, self.model)[:LONGEST_VALUE].strip()
        ttft, tpot = _seconds(_first(values, self.ttft)), _seconds(_first(values, self.tpot))
        return Wishes(model, ttft, tpot) if model or ttft is not None or tpot is not None else None


NO_NAMES: Final = HeaderNames()


def names_of(
    tenant: str | None = None, priority: str | None = None, *, rewrite: bool = False, targets: bool = False
) -> HeaderNames:
    """Say which headers are read; those that the protocol has two names for are read by both.

    Args:
        tenant: the header that names the tenant; None reads none.
        priority: the header that holds the priority; None reads none.
        rewrite: whether the model may be named in place of the body's.
        targets: whether times that are wanted are read.
    """
    model = _both(MODEL_REWRITE) if rewrite else ()
    ttft, tpot = (_both(TTFT_TARGET), _both(TPOT_TARGET)) if targets else ((), ())
    parts = (_both(tenant), _both(priority), model, ttft, tpot)
    return HeaderNames(*parts, frozenset(chain.from_iterable(parts)))


def _both(name: str | None) -> tuple[str, ...]:
    if name is None:
        return ()
    return (name, LEGACY_NAMES[name]) if name in LEGACY_NAMES else (name,)


def _first(values: Mapping[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        value = values.get(name)
        if value:
            return value
    return ""


def _seconds(text: str) -> float | None:
    """Read a time in milliseconds; what is none, or none that could be kept, is no target."""
    if not _MILLISECONDS.fullmatch(text.strip()):
        return None
    milliseconds = float(text)
    return milliseconds / 1e3 if 0.0 < milliseconds <= LONGEST_TARGET_MS else None
