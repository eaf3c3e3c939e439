"""The pick: where it stands, what it names, and when it comes."""

from __future__ import annotations

import ipaddress
import time
from typing import Final

from ext_proc.conformance.answers import name
from ext_proc.conformance.check import ENVOY, PROTOCOL, Case, Level, Skipped, check, demand
from ext_proc.conformance.exchange import Transcript, play
from ext_proc.conformance.messages import DESTINATION, UNKNOWN_ADDRESS
from ext_proc.conformance.modes import Mode

_TRIES: Final = 5


@check("pick.both", f"{PROTOCOL}: values MUST be identical")
async def both(case: Case) -> str:
    """The endpoint is named in the header and in the metadata `envoy.lb`, with the same value."""
    seen = await play(case, case.request())
    answer = seen.pick()
    in_metadata = "nothing" if answer.named is None else answer.named
    in_header = answer.destinations or ["nothing"]
    demand(in_header == [in_metadata], f"header {', '.join(in_header)}; metadata {in_metadata}")
    return f"{in_metadata} in both"


@check("pick.address", PROTOCOL)
async def address(case: Case) -> str:
    """The pick is an ip:port, or several with commas between them; an IPv6 address stands in brackets."""
    answer = (await play(case, case.request())).pick()
    for value in answer.values:
        wrong = [one for one in value.split(",") if not _is_address(one)]
        demand(not wrong, f"{wrong[0]!r} is no ip:port" if wrong else "")
    return answer.values[0]


@check("pick.single", f"{ENVOY}: ORIGINAL_DST answers a list with 503, subsets place it at random")
async def single(case: Case) -> str:
    """For a data plane that takes one address (--single), one is named, without commas or blanks."""
    if not case.settings.single:
        raise Skipped("lists may be named: --single says otherwise")
    answer = (await play(case, case.request())).pick()
    lists = [value for value in answer.values if "," in value or value != value.strip()]
    demand(not lists, f"names {lists[0]!r}" if lists else "")
    return answer.values[0]


@check("pick.member", f"{PROTOCOL}: the EPP MUST pick from the InferencePool")
async def member(case: Case) -> str:
    """Every endpoint that is picked is one of the pool."""
    known = set(case.settings.endpoints)
    if not case.settings.complete:
        raise Skipped("the pool is not known: name all its endpoints with --endpoint")
    for _ in range(_TRIES):
        answer = (await play(case, case.request())).pick()
        strange = {one.strip() for value in answer.values for one in value.split(",")} - known
        demand(not strange, f"{', '.join(sorted(strange))} is not of the pool")
    return f"{_TRIES} picks, all of the pool"


@check(
    "pick.once", "kubernetes-sigs/gateway-api-inference-extension#2988: each pick books a request", level=Level.SHOULD
)
async def once(case: Case) -> str:
    """One request gets one pick."""
    body = case.chat()
    seen = await play(case, case.request(body[:30], body[30:], b""))
    seen.pick()
    named = {str(answer.named or answer.destinations) for answer in seen.picks}
    demand(len(seen.picks) == 1, f"{len(seen.picks)} picks: {', '.join(sorted(named))}")
    return "one pick"


@check("pick.overwrites", f"{ENVOY}: a client's header is obeyed by ORIGINAL_DST as it is")
async def overwrites(case: Case) -> str:
    """A destination that the client names is replaced or removed, never obeyed or joined by the pick, on every path."""
    spoof = ((DESTINATION, UNKNOWN_ADDRESS.encode()),)
    ways = {
        "a chat": case.request(headers=spoof),
        "a broken body": case.request(b"{broken", headers=spoof),
        "a GET": case.request(pieces=(), method="GET", path="/v1/models", headers=spoof),
        "a strange path": case.request(pieces=(), method="GET", path="/strange", headers=spoof),
    }
    for way, request in ways.items():
        seen = await play(case, request)
        demand(not seen.unanswered, f"{way}: {seen.said}")
        found = [each for answer in seen.answers for each in (*answer.destinations, answer.named)]
        demand(UNKNOWN_ADDRESS not in str(found), f"{way}: the client's {UNKNOWN_ADDRESS} was obeyed")
        demand(bool(seen.refused) or _is_replaced(seen), f"{way}: the client's value goes on, alone or beside the pick")
    return f"replaced or removed for {', '.join(ways)}"


def _is_replaced(seen: Transcript) -> bool:
    """Tell whether the destination header is removed, or set in a way that leaves no other value.

    Envoy 1.40 appends where `append` is true, and replaces whatever `append_action` says.
    """
    for answer in seen.answers:
        if answer.mutation is not None and DESTINATION in answer.mutation.remove_headers:
            return True
        for option in answer.set_headers:
            if name(option).lower() == DESTINATION:
                return not option.append
    return False


@check("pick.headers-only", f"{ENVOY}: no body follows, so a picker that waits for one hangs the request")
async def headers_only(case: Case) -> str:
    """A request that ends with its headers is answered at once, with a pick."""
    get = await play(case, case.request(pieces=(), method="GET", path="/v1/models"))
    demand(not get.unanswered, f"GET: {get.said}")
    empty = await play(case, case.request(pieces=()))
    demand(not empty.unanswered, f"empty POST: {empty.said}")
    demand(bool(get.picks), f"GET: {get.said}")
    return f"GET {get.destination()}; empty POST: {empty.said if empty.refused else empty.destination()}"


@check("pick.upgrade", "envoyproxy/envoy#47161: a WebSocket sends nothing before it is accepted", level=Level.SHOULD)
async def upgrade(case: Case) -> str:
    """An upgrade is answered by its headers, since no body comes before the answer to it."""
    wants = (("connection", b"upgrade"), ("upgrade", b"websocket"))
    path = "/v1/realtime?model=" + (case.settings.model or "m")
    request = case.request(pieces=(), method="GET", path=path, headers=wants, last=False)
    seen = await play(case, request)
    demand("request_headers" in seen.kinds or bool(seen.refused), seen.said)
    return seen.said


@check("pick.early", f"{ENVOY}: a later pick is lost when the body has more than one piece", modes=(Mode.STREAMED,))
async def early(case: Case) -> str:
    """Where the body is streamed the pick comes with the answer to the headers."""
    seen = await play(case, case.request())
    kind = seen.pick().kind
    demand(kind == "request_headers", f"it came with the answer to {kind}")
    return "with the headers"


@check("pick.timely", f"{ENVOY}: message_timeout is 200 ms by default", level=Level.SHOULD)
async def timely(case: Case) -> str:
    """A small request gets its pick within 200 ms (the best of five tries counts)."""
    times = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        seen = await play(case, case.request())
        times.append(time.perf_counter() - began)
        demand(not seen.unanswered, seen.said)
        if times[-1] < case.settings.prompt_s / 4:
            break
    demand(min(times) < case.settings.prompt_s, f"{min(times) * 1000:.0f} ms")
    return f"{min(times) * 1000:.1f} ms with all messages"


def _is_address(text: str) -> bool:
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        version = ipaddress.ip_address(host[1:-1] if bracketed else host).version
    except ValueError:
        return False
    return bool(colon) and bracketed == (version == 6) and port.isdecimal() and 0 < int(port) < 65536  # noqa: PLR2004


CHECKS: Final = (both, address, single, member, once, overwrites, headers_only, upgrade, early, timely)
