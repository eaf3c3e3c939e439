"""How slow an endpoint is against its peers: those that serve the same models in the same pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median_low

from ext_proc.core.model import Endpoint


def slowness(endpoints: Sequence[Endpoint], latencies: Sequence[float | None]) -> list[float]:
    """Compare latencies.

    Args:
        endpoints: of one pool.
        latencies: seconds per generated token of each; None where they are not known.

    Returns:
        The latency of each over the median of its peers, itself among them; of two, over the quicker one's. 1 where
        nothing is known.
    """
    peers = defaultdict[frozenset[str], list[float]](list)
    for endpoint, latency in zip(endpoints, latencies, strict=True):
        if latency is not None:
            peers[endpoint.models].append(latency)
    usual = {models: median_low(known) for models, known in peers.items()}
    return [
        1.0 if latency is None or not usual[endpoint.models] else latency / usual[endpoint.models]
        for endpoint, latency in zip(endpoints, latencies, strict=True)
    ]
