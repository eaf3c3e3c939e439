"""same-zone: endpoints of this zone first, the fewest requests in flight among them."""

from collections.abc import Sequence

import msgspec

from ext_proc import Context, Endpoint, InferenceRequest, Ranking


class SameZoneParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of same-zone.

    Attributes:
        zone: value of the label `zone` that is near.
        detour: requests more that a near endpoint may have in flight before a far one is better.
    """

    zone: str
    detour: int = 10


class SameZone:
    """Prefers what is near."""

    Parameters = SameZoneParameters

    def __init__(self, parameters: SameZoneParameters) -> None:
        self._zone, self._detour = parameters.zone, parameters.detour

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Cost each candidate its requests in flight, and the detour to those in another zone."""
        detours = [0 if endpoint.labels.get("zone") == self._zone else self._detour for endpoint in candidates]
        return Ranking([load.in_flight + detour for load, detour in zip(context.loads, detours, strict=True)])
