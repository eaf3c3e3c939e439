"""What all exchanges of a server share: what they read, what they tell clients, and what a fault of ours means."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from ext_proc.core.addresses import Network, within
from ext_proc.core.admission import Admission
from ext_proc.core.token_hits import TokenSource
from ext_proc.core.wishes import NO_NAMES, HeaderNames

HIGHEST_PRIORITY = 100
"""Also the lowest, below 0."""

NO_PRIORITIES: Mapping[str, int] = {}

_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


class Objectives:
    """Priorities by name that come and go while requests do, unlike those of a configuration.

    Attributes:
        priorities: what the names mean now.
    """

    def __init__(self) -> None:
        self.priorities = NO_PRIORITIES


class ExchangePolicy(msgspec.Struct, frozen=True):
    """What all exchanges of a server share.

    Attributes:
        refuse_on_failure: True to refuse a request on a fault of our own, False to leave it to Envoy's fallback.
        inspect_bytes: bound on what is read of a request body, compressed or not.
        show_decisions: True to show every client the decision on its request.
        networks: clients in them are told, if they ask, why their request went where it went.
        collect_bytes: bytes of a request body that are held back until the pick, where holding them back is our part.
        collect_s: seconds for which they are, at most.
        tokens: knows the exact tokens of requests; None where every pool goes by text.
        admission: lets requests wait whose endpoints are all at their caps; None lets none wait.
        extension: seconds that Envoy is asked to be patient, beyond the time a request may wait; 0 does not ask.
        named: endpoints that a pick names on a stream in full duplex.
        names: which headers say whose a request is, and what is wished for it.
        priorities: what the names of priorities mean.
        objectives: what further names mean; who goes by them makes up no numbers. None knows none.
    """

    refuse_on_failure: bool = False
    inspect_bytes: int = 8 * 1024 * 1024
    collect_bytes: int = 2 * 1024 * 1024
    collect_s: float = 10.0
    show_decisions: bool = False
    networks: tuple[Network, ...] = ()
    tokens: TokenSource | None = None
    admission: Admission | None = None
    extension: float = 0.0
    named: int = 1
    names: HeaderNames = NO_NAMES
    priorities: Mapping[str, int] = NO_PRIORITIES
    objectives: Objectives | None = None

    def priority(self, text: str) -> int:
        """Read a priority: one of the names, or where there are no objectives a whole number; everything else is 0."""
        named = self.priorities.get(text)
        if named is not None:
            return named
        if self.objectives is not None:
            return self.objectives.priorities.get(text, 0)
        if not _NUMBER.fullmatch(text):
            return 0
        return min(max(int(text), -HIGHEST_PRIORITY), HIGHEST_PRIORITY)

    def explains_to(self, asker: str) -> bool:
        """Tell whether the client at an `ip:port` gets the explanation it asks for; empty if none asks."""
        return bool(asker) and within(asker, self.networks)
