"""What a client is told when there is no endpoint for it."""

from __future__ import annotations

import json
from typing import Any, Final

from ext_proc.conformance.answers import text
from ext_proc.conformance.check import ENVOY, PROTO, PROTOCOL, Case, Level, Skipped, check, demand
from ext_proc.conformance.checks.mutations import FRAMING, faults
from ext_proc.conformance.exchange import Transcript, play
from ext_proc.conformance.messages import DROPPED, UNKNOWN_ADDRESS

_SECRET: Final = "sk-conformance-7f3a"  # noqa: S105  it opens nothing
_PROMPT: Final = "the-secret-of-the-prompt"
_BROKEN: Final = (b"{", b'{"model":', b"not json at all", b'{"messages":[{"role":"user","content":"x"')
_REASONS: Final = ("rejected-", "evicted")


async def _refusal(case: Case) -> Transcript:
    """Have a request refused, by a hint that allows nothing.

    Raises:
        Skipped: it is not refused, which another check finds.
    """
    headers = (("authorization", f"Bearer {_SECRET}".encode()),)
    seen = await play(case, case.request(case.chat(_PROMPT), subset=[UNKNOWN_ADDRESS], headers=headers), linger=True)
    if seen.refusal is None:
        raise Skipped(f"the target refuses nothing ({seen.said})")
    return seen


def _headers(seen: Transcript) -> dict[str, str]:
    mutation = seen.refusal.headers if seen.refusal is not None else None
    options = [] if mutation is None else mutation.set_headers
    return {option.header.key.lower(): text(option) for option in options if option.header is not None}


def _body(seen: Transcript) -> bytes:
    return b"" if seen.refusal is None else bytes(seen.refusal.body)


@check("refusal.status", f"{PROTOCOL}: 503 or 429")
async def status(case: Case) -> str:
    """A refusal has the HTTP status of an error."""
    seen = await _refusal(case)
    demand(400 <= seen.refused < 600, f"status {seen.refused}")  # noqa: PLR2004  HTTP
    return str(seen.refused)


@check("refusal.last", f"{PROTO}: it ends the exchange; Envoy 1.40 drops what follows", level=Level.SHOULD)
async def last(case: Case) -> str:
    """Nothing follows an immediate response."""
    seen = await _refusal(case)
    after = seen.kinds[seen.kinds.index("immediate_response") + 1 :]
    demand(not after, f"{', '.join(after)} after it")
    return "nothing followed"


@check("refusal.headers", f"{ENVOY}: content-length is its own, x-envoy-* refused", level=Level.SHOULD)
async def headers(case: Case) -> str:
    """A refusal sets no header that frames a message or belongs to Envoy, and only well-formed ones."""
    seen = await _refusal(case)
    demand(seen.refusal is not None, "no refusal")
    options = [] if seen.refusal is None or seen.refusal.headers is None else list(seen.refusal.headers.set_headers)
    wrong = [name for name in _headers(seen) if name in FRAMING or name.startswith("x-envoy-")]
    demand(not wrong, f"sets {', '.join(wrong)}")
    found = faults(options)
    demand(not found, "; ".join(found))
    return ", ".join(_headers(seen)) or "none"


@check("refusal.dropped-reason", "llm-d-router: its refusals have it", level=Level.SHOULD)
async def dropped_reason(case: Case) -> str:
    """A refusal for want of an endpoint says why in the header x-llm-d-request-dropped-reason."""
    reason = _headers(await _refusal(case)).get(DROPPED, "")
    demand(reason.startswith(_REASONS), f"{DROPPED}: {reason or 'missing'}")
    return reason


@check("refusal.json", "OpenAI and Anthropic clients read the error from the body", level=Level.SHOULD)
async def body(case: Case) -> str:
    """The body of a refusal is an error as JSON, with its content-type."""
    seen = await _refusal(case)
    try:
        found: Any = json.loads(_body(seen))
    except ValueError:
        found = None
    error = found.get("error") if isinstance(found, dict) else None
    demand(isinstance(error, dict) and bool(error.get("message")), f"body {_body(seen)[:60]!r}")
    kind = _headers(seen).get("content-type", "missing")
    demand(kind.startswith("application/json"), f"content-type {kind}")
    return "an error object"


@check("refusal.silent", "class: what is refused is logged by others")
async def silent(case: Case) -> str:
    """A refusal repeats neither prompt nor credential."""
    seen = await _refusal(case)
    said = b"".join(bytes(answer.message) for answer in seen.answers)
    found = [word for word in (_SECRET, _PROMPT) if word.encode() in said]
    demand(not found, f"it says {', '.join(found)}")
    return "neither"


@check("refusal.broken-json", "class: a client's fault is no failure of the gateway; llm-d-router answers 400")
async def broken_json(case: Case) -> str:
    """A body that is no JSON is passed on with a pick, or refused as the client's fault."""
    outcomes = []
    for broken in _BROKEN:
        seen = await play(case, case.request(broken))
        client = 400 <= seen.refused < 500  # noqa: PLR2004  HTTP
        demand(client or (bool(seen.picks) and not seen.unanswered), f"{broken!r}: {seen.said}")
        outcomes.append(str(seen.refused or "picked"))
    return ", ".join(dict.fromkeys(outcomes))


CHECKS: Final = (status, last, headers, dropped_reason, body, silent, broken_json)
