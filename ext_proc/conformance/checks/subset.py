"""The subset hint: the only endpoints that the data plane allows."""

from __future__ import annotations

from typing import Any, Final

from ext_proc.conformance.check import PROTOCOL, Case, Level, Skipped, check, demand
from ext_proc.conformance.exchange import Transcript, play
from ext_proc.conformance.messages import SUBSET, SUBSET_NAMESPACE, UNKNOWN_ADDRESS, Metadata

ONLY: Final = f"{PROTOCOL}: the EPP MUST pick only from the list"
UNAVAILABLE: Final = 503
_SHOWN: Final = 4
_ODD: Final[tuple[Metadata, ...]] = (
    {},
    {SUBSET_NAMESPACE: {}},
    {SUBSET_NAMESPACE: {SUBSET: None}},
    {SUBSET_NAMESPACE: {SUBSET: 7}},
    {SUBSET_NAMESPACE: {SUBSET: {"a": "b"}}},
    {SUBSET_NAMESPACE: {SUBSET: [["x"], None]}},
)


def named(transcript: Transcript) -> set[str]:
    """Return all endpoints that a pick names; raises Failed if there is none."""
    return {one.strip() for value in transcript.pick().values for one in value.split(",")}


async def _only(case: Case, hint: Any, allowed: str, **changes: object) -> None:
    found = named(await play(case, case.request(subset=hint, **changes)))
    demand(found == {allowed}, f"hint {hint!r}: picked {', '.join(sorted(found))}")


async def _refused(case: Case, hint: Any) -> str:
    seen = await play(case, case.request(subset=hint))
    demand(seen.refused == UNAVAILABLE, f"hint {hint!r}: {seen.said}")
    return f"503 for {hint!r}"


@check("subset.list", ONLY)
async def listed(case: Case) -> str:
    """A hint that lists endpoints is obeyed."""
    endpoints = (case.endpoint, *case.settings.endpoints[1:_SHOWN])
    for endpoint in endpoints:
        await _only(case, [endpoint], endpoint)
    return f"{len(endpoints)} endpoints, each picked when it alone was allowed"


@check("subset.string", "Gateway API Inference Extension: its small picker takes both forms", level=Level.SHOULD)
async def string(case: Case) -> str:
    """A hint that is one text with commas is obeyed as well."""
    await _only(case, f"{UNKNOWN_ADDRESS},{case.endpoint}", case.endpoint)
    return "obeyed"


@check("subset.ipv6", f"{PROTOCOL}; ip:port with IPv6 in brackets")
async def ipv6(case: Case) -> str:
    """IPv6 addresses in a hint are told apart from their ports; one of the pool is picked by its hint."""
    await _only(case, ["[2001:db8::1]:8000", case.endpoint], case.endpoint)
    own = next((endpoint for endpoint in case.settings.endpoints if endpoint.startswith("[")), None)
    if own is None:
        return "a strange IPv6 address was passed over; none of the pool is known"
    await _only(case, [own], own)
    return f"{own} picked by its hint"


@check("subset.ineligible", f"{PROTOCOL}: 503 if the list has no eligible member")
async def ineligible(case: Case) -> str:
    """A hint without an endpoint of the pool is answered by an immediate response with 503."""
    return await _refused(case, [UNKNOWN_ADDRESS])


@check("subset.empty", f"{PROTOCOL}: 503 if the list is empty")
async def empty(case: Case) -> str:
    """An empty hint is answered by an immediate response with 503."""
    return await _refused(case, [])


@check("subset.port", f"{PROTOCOL}: the list is of ip:port")
async def port(case: Case) -> str:
    """An endpoint on another port of an allowed address is not allowed."""
    host, _, number = case.endpoint.rpartition(":")
    taken = {one.rpartition(":")[2] for one in case.settings.endpoints}
    other = next(str(other) for other in range(int(number) % 65000 + 1, 65535) if str(other) not in taken)
    return await _refused(case, [f"{host}:{other}"])


@check("subset.odd", "class: metadata_options forward whatever other filters wrote", level=Level.SHOULD)
async def odd(case: Case) -> str:
    """A hint that is null, a number or a nest fails nothing: there is a pick, or 503."""
    for metadata in _ODD:
        seen = await play(case, case.request(metadata=metadata))
        demand(bool(seen.picks) or seen.refused == UNAVAILABLE, f"{dict(metadata)}: {seen.said}")
    await _only(case, [case.endpoint, 5, None], case.endpoint)
    return f"{len(_ODD)} odd hints; a list with odd members is obeyed for the others"


@check("subset.headers-only", ONLY)
async def headers_only(case: Case) -> str:
    """The hint is obeyed for a request without a body as well."""
    await _only(case, [case.endpoint], case.endpoint, pieces=(), method="GET", path="/v1/models")
    return "obeyed"


@check("subset.header", f"{PROTOCOL}: the hint is metadata, which no client can write")
async def header(case: Case) -> str:
    """A client's header of the same name has no effect."""
    seen = await play(case, case.request(headers=((SUBSET, UNKNOWN_ADDRESS.encode()),)))
    demand(not seen.refused, f"{seen.said}, as if it were a hint")
    found = named(seen)
    demand(UNKNOWN_ADDRESS not in found, f"picked {UNKNOWN_ADDRESS}")
    others = case.settings.endpoints[1:2]
    if not others:
        raise Skipped("only one endpoint is known")
    picks = set()
    for _ in range(8):
        picks |= named(await play(case, case.request(subset=[case.endpoint], headers=((SUBSET, others[0].encode()),))))
    demand(picks == {case.endpoint}, f"picked {', '.join(sorted(picks))} beside the hint")
    return "no effect"


CHECKS: Final = (listed, string, ipv6, ineligible, empty, port, odd, headers_only, header)
