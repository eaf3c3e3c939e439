"""What all exchanges of a server share: what they read, what they tell clients, and what a fault of ours means."""

from __future__ import annotations

import msgspec

from ext_proc.core.addresses import Network, within
from ext_proc.core.token_hits import TokenSource


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
    """

    refuse_on_failure: bool = False
    inspect_bytes: int = 8 * 1024 * 1024
    collect_bytes: int = 2 * 1024 * 1024
    collect_s: float = 10.0
    show_decisions: bool = False
    networks: tuple[Network, ...] = ()
    tokens: TokenSource | None = None

    def explains_to(self, asker: str) -> bool:
        """Tell whether the client at an `ip:port` gets the explanation it asks for; empty if none asks."""
        return bool(asker) and within(asker, self.networks)
