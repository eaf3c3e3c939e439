"""Which endpoints the picker that can be broken may choose."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from typing import Any

POOL = ("10.0.0.21:8000", "10.0.0.22:8000", "[2001:db8::21]:8000")
BOMB = 500_000
FAILS = -1


def allowed(has: Callable[[str], bool], hint: Any, *, bodyless: bool) -> tuple[str, ...]:
    """Return the endpoints that a hint allows; `FAILS`-like faults are raised."""
    pool = ("10.9.9.9:1",) if has("picks-strangers") and hint is None else POOL
    pool = ("engine-1:8000",) if has("picks-names") and hint is None else pool
    if hint is not None and (has("ignores-hints") or (has("ignores-hints-without-a-body") and bodyless)):
        return tuple(one for one in POOL if one not in str(hint))
    if hint is None:
        return pool
    if isinstance(hint, str):
        if has("knows-no-text-hint"):
            return ()
        hint = hint.split(",")
    if not isinstance(hint, list):
        if has("trusts-hints"):
            raise TypeError
        return ()
    if not hint and has("empty-hint-is-none"):
        return pool
    texts = [one.strip() for one in hint if isinstance(one, str)]
    if has("splits-at-the-first-colon"):
        texts = [f"{host}:{int(port)}" for host, _, port in (text.partition(":") for text in texts)]
    hosts = {text.rpartition(":")[0] for text in texts} if has("compares-addresses-alone") else set()
    found = tuple(one for one in pool if one in texts or one.rpartition(":")[0] in hosts)
    return pool if hint and not found and has("picks-when-none-is-allowed") else found


def refusal_status(has: Callable[[str], bool]) -> int:
    """Return the status of a refusal."""
    return 200 if has("refuses-with-200") else 500 if has("refuses-with-500") else 503


def fault(has: Callable[[str], bool], headers: Mapping[str, bytes], body: bytes, *, bodyless: bool) -> int:
    """Return with what status a body is refused, `FAILS` if the stream fails by it, 0 if it is taken."""
    if bodyless:
        return 0
    packed = headers.get("content-encoding") == b"gzip"
    if packed and has("knows-no-gzip"):
        return 415
    if packed and has("unpacks-everything") and len(gzip.decompress(body)) > BOMB:
        return FAILS
    if not body and has("fails-on-an-empty-body"):
        return FAILS
    if has("fails-on-broken-json") or has("fails-on-deep-json") or has("trusts-json"):
        return _parsed(has, body)
    return 0


def _parsed(has: Callable[[str], bool], body: bytes) -> int:
    try:
        read = json.loads(body)
    except RecursionError:
        return FAILS if has("fails-on-deep-json") else 0
    except ValueError:
        return 500 if has("fails-on-broken-json") else 0
    return FAILS if has("trusts-json") and not isinstance(read, dict) else 0
