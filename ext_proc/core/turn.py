"""One request that waits for its turn at endpoints that are all at their caps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf
from typing import Any, Protocol

import msgspec

from ext_proc.core.errors import Refusal
from ext_proc.core.model import FilterReport, InferenceRequest
from ext_proc.core.token_hits import TokenPrompt


class Owner(Protocol):
    """Whose request it is; the answers are actions of the exchange, which stands above this module."""

    def take_turn(self, turn: Turn, now: float) -> Any:
        """Try the ordinary pick and note what came of it; None if there is still no place."""

    def turn_away(self, turn: Turn, refusal: Refusal) -> Any:
        """Make the answer to Envoy of a refusal."""


def _nobody() -> None:
    """Stand in for a call that nobody waits for."""


class Turn(msgspec.Struct, eq=False):
    """One waiting request; it ends by exactly one of: served, refused, left.

    Attributes:
        owner: whose it is.
        kind: number of the message that is answered.
        request: what was understood of it.
        since: when it began to wait, monotonic seconds.
        tokens: the prompt by its tokens; None where they are not known.
        subset: the only addresses that may be chosen; None allows all.
        tenant: on whose behalf it is sent; empty for all that name nobody.
        priority: higher goes first.
        filters: what the filters left when it was tried last; empty if others were before it all the time.
        call: tells the one who waits that `action` is there.
        action: the answer, once there is one.
        cost: tokens that it will hold, prompt and expected answer.
        held: bytes of its body that are held here beside the prompt.
        size: bytes that it holds here while it waits.
        returned: True if it was refused before and came back when it was told to.
        cold: True if no endpoint that could serve it, busy or not, was ready when it was tried last.
        placed: True once it has an endpoint.
        deadline: until when it may wait, monotonic seconds.
        row: the row that it stands in; None before and after it waits.
        pool: the pool whose bounds it counts against.
    """

    owner: Owner
    kind: int
    request: InferenceRequest
    since: float
    tokens: TokenPrompt | None = None
    subset: Collection[str] | None = None
    tenant: str = ""
    priority: int = 0
    filters: tuple[FilterReport, ...] = ()
    call: Callable[[], None] = _nobody
    action: Any = None
    cost: float = 1.0
    held: int = 0
    size: int = 0
    returned: bool = False
    cold: bool = False
    placed: bool = False
    deadline: float = inf
    row: Any = None
    pool: str = ""

    @property
    def is_waiting(self) -> bool:
        """Whether it stands in a row."""
        return self.row is not None

    def pick(self, now: float) -> Any:
        """Try the ordinary pick; None if there is still no place."""
        return self.owner.take_turn(self, now)

    def refuse(self, refusal: Refusal) -> Any:
        """Make the answer to Envoy of a refusal."""
        return self.owner.turn_away(self, refusal)
