"""Every way in which the picker can be broken, and the checks that must notice it, each in the modes that are tried.

A name stands for one fault and what follows from it: where several checks notice, they look at the same thing from
different sides.
"""

from __future__ import annotations

from typing import NamedTuple

from ext_proc.conformance.modes import Mode


class Break(NamedTuple):
    """A fault.

    Attributes:
        checks: ids of the checks that fail by it, and no others of their groups.
        modes: the modes in which it is tried.
        alone: whether the others of their groups are left out, which it would only make slow.
    """

    checks: frozenset[str]
    modes: tuple[Mode, ...]
    alone: bool

    @property
    def patterns(self) -> list[str]:
        """The checks that are tried, as patterns."""
        return sorted(self.checks if self.alone else {f"{check.partition('.')[0]}.*" for check in self.checks})


def _seen(*checks: str, modes: tuple[Mode, ...] = (Mode.BUFFERED, Mode.DUPLEX), alone: bool = False) -> Break:
    return Break(frozenset(checks), modes, alone)


_SERIAL = (Mode.BUFFERED,)
_LEAN = (Mode.LEAN,)
_STREAMED = (Mode.STREAMED,)
_DUPLEX = (Mode.DUPLEX,)
_HINTS = ("subset.list", "subset.string", "subset.ipv6", "subset.ineligible", "subset.empty", "subset.port")

BREAKS: dict[str, Break] = {
    "no-liveness": _seen("health.liveness"),
    "no-readiness": _seen("health.readiness"),
    "no-own-health": _seen("health.ext-proc"),
    "no-server-health": _seen("health.server"),
    "well-whatever-is-asked": _seen("health.unknown"),
    "answers-headers-as-body": _seen("order.headers", modes=_SERIAL),
    "answers-body-as-headers": _seen("order.body", modes=_SERIAL),
    "answers-trailers-as-body": _seen("order.trailers", modes=_SERIAL),
    "body-before-headers": _seen("order.duplex", "order.unknown", modes=_DUPLEX),
    "answers-headers-twice": _seen("order.duplex", modes=_DUPLEX),
    "greets": _seen(
        "order.body", "order.late-start", "order.trailers", "order.duplex", "order.unasked", "order.unknown"
    ),
    "has-an-afterthought": _seen("order.unasked"),
    "answers-nothing": _seen("order.readable", "order.late-start", "response.headers-only", modes=_SERIAL),
    "ends-on-unknown": _seen("order.unknown"),
    "begins-with-headers-only": _seen("order.late-start"),
    "names-no-metadata": _seen("pick.both"),
    "names-no-header": _seen("pick.both", "pick.overwrites"),
    "names-two-endpoints": _seen("pick.both"),
    "picks-lists": _seen("pick.single"),
    "picks-names": _seen("pick.address", "pick.member"),
    "picks-strangers": _seen("pick.member"),
    "picks-twice": _seen("pick.once", modes=_SERIAL),
    "obeys-the-client": _seen("pick.overwrites"),
    "appends": _seen("pick.overwrites"),
    "leaves-strange-paths-alone": _seen("pick.overwrites"),
    "waits-for-a-body": _seen("pick.headers-only", "pick.overwrites", "subset.headers-only"),
    "waits-on-upgrade": _seen("pick.upgrade"),
    "picks-late": _seen("pick.early", modes=_STREAMED),
    "is-slow": _seen("pick.timely", modes=_SERIAL, alone=True),
    "ignores-hints": _seen(*_HINTS, "subset.headers-only", "subset.odd", "subset.header", "parallel.apart"),
    "knows-no-text-hint": _seen("subset.string"),
    "splits-at-the-first-colon": _seen("subset.ipv6", "subset.list"),
    "refuses-with-500": _seen("subset.ineligible", "subset.empty", "subset.port", "subset.odd"),
    "picks-when-none-is-allowed": _seen("subset.ineligible", "subset.port"),
    "empty-hint-is-none": _seen("subset.empty"),
    "compares-addresses-alone": _seen("subset.port"),
    "trusts-hints": _seen("subset.odd"),
    "ignores-hints-without-a-body": _seen("subset.headers-only"),
    "header-is-a-hint": _seen("subset.header"),
    "writes-blanks-its-own-way": _seen("body.same", modes=_DUPLEX),
    "streams-in-every-mode": _seen("body.form", modes=_STREAMED),
    "loses-empty-beginnings": _seen("body.splits", modes=_DUPLEX),
    "long-request-pieces": _seen("body.pieces", modes=_DUPLEX),
    "waits-for-the-end": _seen("body.cut", modes=_LEAN),
    "ignores-an-empty-end": _seen("body.empty-end", "body.splits", modes=_DUPLEX),
    "takes-the-end-twice": _seen("body.duplicate-end", modes=_DUPLEX),
    "waits-for-a-last-piece": _seen("body.trailers", modes=_DUPLEX),
    "changes-trailers": _seen("body.trailers", modes=_DUPLEX),
    "fails-on-an-empty-body": _seen("body.empty"),
    "knows-no-gzip": _seen("body.encoded"),
    "takes-small-messages": _seen("body.large-message", modes=_SERIAL),
    "drops-the-end-mark": _seen("response.echo", modes=_DUPLEX),
    "drops-single-bytes": _seen("response.splits", modes=_DUPLEX),
    "long-response-pieces": _seen("response.pieces", modes=_DUPLEX),
    "collects-answers": _seen("response.at-once", modes=_DUPLEX),
    "forgets-an-answers-trailers": _seen("response.trailers", modes=_DUPLEX),
    "waits-for-an-answers-body": _seen("response.headers-only"),
    "answers-answers-as-requests": _seen("response.kinds", modes=_STREAMED),
    "believes-what-served": _seen("response.served"),
    "rewrites-the-status": _seen("response.status"),
    "trusts-usage": _seen("response.odd-usage", modes=_DUPLEX),
    "ignores-early-answers": _seen("response.early", modes=_DUPLEX),
    "refuses-with-200": _seen("refusal.status"),
    "goes-on-after-refusal": _seen("refusal.last"),
    "frames-refusals": _seen("refusal.headers"),
    "refuses-without-a-reason": _seen("refusal.dropped-reason"),
    "refuses-in-plain-text": _seen("refusal.json"),
    "quotes-the-prompt": _seen("refusal.silent"),
    "fails-on-broken-json": _seen("refusal.broken-json"),
    "sets-content-length": _seen("mutation.framing"),
    "writes-headers-again": _seen("mutation.own"),
    "breaks-lines": _seen("mutation.valid"),
    "fills-both-values": _seen("mutation.valid"),
    "clears-routes-for-nothing": _seen("mutation.route-cache"),
    "replaces-the-message": _seen("mutation.replace"),
    "overrides-late": _seen("mutation.mode", modes=_SERIAL),
    "asks-for-buffered-answers": _seen("mutation.mode"),
    "asks-twice-for-patience": _seen("mutation.patience"),
    "asks-for-no-time": _seen("mutation.patience"),
    "sets-it-twice": _seen("mutation.one-value", "pick.both"),
    "dies-of-cancel": _seen("end.cancel", "end.half-close", "end.status", "end.early"),
    "fails-when-left": _seen("end.half-close"),
    "stays-after-half-close": _seen("end.half-close", "end.status", alone=True),
    "ends-with-an-error": _seen("end.half-close", "end.status"),
    "ends-after-the-request": _seen("end.early", modes=_DUPLEX),
    "ends-after-the-answer": _seen("end.early", modes=_DUPLEX),
    "few-streams": _seen("parallel.streams"),
    "mixes-streams": _seen("parallel.apart"),
    "one-stream-at-a-time": _seen("parallel.streams", "parallel.stalled"),
    "stalls-on-huge-bodies": _seen("hostile.huge", modes=_DUPLEX),
    "fails-on-deep-json": _seen("hostile.deep"),
    "trusts-json": _seen("hostile.json"),
    "unpacks-everything": _seen("hostile.bomb"),
    "headers-are-text": _seen("hostile.headers"),
    "fails-on-strange-paths": _seen("hostile.paths"),
    "dies-of-a-second-beginning": _seen("hostile.order"),
    "dies-of-bytes": _seen("hostile.bytes", "hostile.order"),
}
