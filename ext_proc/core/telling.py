"""What clients may know of a decision, added to the answer that carries it."""

from __future__ import annotations

import msgspec

from ext_proc.core.exchange_messages import Continue, Refuse
from ext_proc.core.exchange_policy import ExchangePolicy
from ext_proc.core.explanation import header
from ext_proc.core.model import Decision
from ext_proc.core.picker import Rejection


def tell(
    policy: ExchangePolicy, action: Continue | Refuse, made: Decision | Rejection, asker: str
) -> Continue | Refuse:
    """Add the decision where every client is shown it, and its explanation if this one asks and may know."""
    if policy.show_decisions and isinstance(action, Continue):
        action = msgspec.structs.replace(action, shown=True)
    if asker and policy.explains_to(asker):
        action = msgspec.structs.replace(action, explanation=header(made))
    return action
