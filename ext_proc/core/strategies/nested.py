"""How a strategy names another one among its parameters."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec


class StrategyChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A strategy that another one leaves the choice to.

    A field of this type in a `Parameters` struct is made by whoever makes the strategy that has it, and passed to its
    constructor by keyword under the field's name.

    Attributes:
        name: name of an installed strategy.
        parameters: that strategy's own parameters.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9-]{0,62}$")] = "least-wait"
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
