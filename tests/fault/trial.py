"""Runs one fault under load and says what it did to whom."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec

from tests.fault.ledger import Account, ClientLedger
from tests.fault.load import STREAM_TOKENS, Traffic
from tests.fault.stand import LEASE_S, Plan, Stand, running_stand
from tests.fault.watch import Watch

Step = Callable[[Stand], Awaitable[None]]

BEFORE_S = 1.5
AVOIDED_S = 2.0
MET_S = 12.0
READMITTED_S = 15.0
LEASES_S = LEASE_S + 5.0


async def nothing(stand: Stand) -> None:
    """Leave everything as it is."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong.

    Attributes:
        name: what the table calls it.
        begin: makes it happen.
        prepare: what has to be in place before the load.
        end: makes it right again.
        lasts: seconds in between.
        after: seconds of traffic afterwards, at least.
        plan: what the run is made of.
        spares: whether clients must notice nothing at all.
        visible: whether the engine fails in a way that must be noticed within two seconds, and be forgiven later.
        culprit: whether it befalls an engine, whose streams may be cut.
        degraded: the reason that `kvpicker_degraded` must give while it lasts, and not afterwards.
        traffic: what clients do beside the steady load.
        rate: short requests per second.
        streams: how many are open at any time.
        tokens: how long these are, from and below.
        short: seconds that the short form lets it last; None leaves it out.
        alone: whether it keeps the machine so busy that no other may run beside it.
    """

    name: str
    begin: Step
    end: Step = nothing
    prepare: Step = nothing
    lasts: float = 4.0
    after: float = 2.0
    plan: Plan = Plan()
    spares: bool = False
    visible: bool = False
    culprit: bool = False
    degraded: str = ""
    traffic: Callable[[Traffic], Awaitable[None]] | None = None
    rate: float = 40.0
    streams: int = 16
    tokens: tuple[int, int] = STREAM_TOKENS
    short: float | None = None
    alone: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault did.

    Attributes:
        fault: its name.
        account: what became of the requests.
        leaked: leases that are left when all requests have ended.
        expired: leases that ended because Envoy said nothing of their request.
        noticed: seconds from the fault to the engine's first failure; None if it did not fail.
        avoided: seconds from the fault until traffic avoided the engine; None if it did not.
        readmitted: seconds from the end of the fault until it got its share again, the same.
        broken: the requirements that were not met.
    """

    fault: str
    account: Account
    leaked: int = 0
    expired: int = 0
    noticed: float | None = None
    avoided: float | None = None
    readmitted: float | None = None
    broken: tuple[str, ...] = ()


class Trial:
    """One run of one fault."""

    def __init__(self, fault: Fault, stand: Stand) -> None:
        self._fault = fault
        self._stand = stand
        self._ledger = ClientLedger()
        self._watch = Watch(stand.envoy)
        name = f"r{time.monotonic_ns():x}"
        how = {"rate": fault.rate, "streams": fault.streams, "tokens": fault.tokens, "name": name}
        self._traffic = Traffic(stand.envoy.url, stand.session, self._ledger, **how)
        self._began = self._ended = 0.0
        self._broken: list[str] = []

    async def run(self, lasts: float) -> Row:
        """Break it, mend it, and count."""
        fault, stand = self._fault, self._stand
        culprit = stand.culprit.address if fault.culprit else ""
        async with self._watch.running(), self._traffic.running():
            await asyncio.sleep(BEFORE_S)
            self._began = time.monotonic()
            await fault.begin(stand)
            if fault.traffic is not None:
                await fault.traffic(self._traffic)
            await asyncio.sleep(max(self._began + lasts - time.monotonic(), 0))
            await self._wait_for_failure(culprit)
            await self._expect_degraded(during=True)
            await fault.end(stand)
            self._ended = time.monotonic()
            await asyncio.sleep(fault.after)
            await self._wait_for_return(culprit)
        leaked = await self._leaked()
        await self._expect_degraded(during=False)
        account = self._ledger.settle(stand.received(), stand.culprit.name if culprit else "")
        return self._judge(account, leaked, await self._expired(), culprit)

    async def _wait_for_failure(self, culprit: str) -> None:
        """Let a fault go on until a request has met it: whoever comes back from the one before gets few."""
        if not self._fault.visible:
            return
        while time.monotonic() < self._began + MET_S:
            if self._noticed(culprit) is not None:
                return
            await asyncio.sleep(0.2)

    async def _wait_for_return(self, culprit: str) -> None:
        if not self._fault.visible:
            return
        while time.monotonic() < self._ended + READMITTED_S + 1.0:
            if self._watch.trusted(culprit, self._ended, time.monotonic()) is not None:
                return
            await asyncio.sleep(0.2)

    async def _leaked(self) -> int:
        """Wait for leases to end, which is when the access log of the last request has come."""
        deadline = time.monotonic() + LEASES_S
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                left = sum([await one.metric("kvpicker_leases") for one in self._stand.kvpickers])
                if not left or time.monotonic() > deadline:
                    return int(left)
            assert time.monotonic() < deadline + 5, "kvpicker's metrics cannot be read"
            await asyncio.sleep(0.2)

    async def _expired(self) -> int:
        return int(sum([await one.metric("kvpicker_leases_expired_total") for one in self._stand.kvpickers]))

    async def _expect_degraded(self, *, during: bool) -> None:
        if not self._fault.degraded:
            return
        reason = self._fault.degraded
        on = await self._stand.kvpickers[0].metric("kvpicker_degraded", reason=reason)
        if bool(on) is not during:
            self._broken.append(f"kvpicker_degraded{{{reason}}} is {on:g} {'during' if during else 'after'} it")

    def _judge(self, account: Account, leaked: int, expired: int, culprit: str) -> Row:
        fault, broken = self._fault, self._broken
        noticed = self._noticed(culprit) if culprit else None
        avoided = self._watch.avoided(culprit, self._began, self._ended) if culprit else None
        readmitted = self._watch.trusted(culprit, self._ended, time.monotonic()) if culprit else None
        for name in ("repeated", "altered", "hung", "cut_elsewhere"):
            if getattr(account, name):
                broken.append(f"{name} {getattr(account, name)}")
        if leaked:
            broken.append(f"leaked leases {leaked}")
        if not account.answered:
            broken.append("nothing was answered")
        if fault.spares and account.failed + account.cut:
            broken.append(f"failed {account.failed}, cut {account.cut}")
        if fault.visible and noticed is None:
            broken.append("the engine did not fail")
        elif fault.visible and (avoided is None or self._began + avoided > (noticed or 0.0) + AVOIDED_S):
            broken.append(f"avoided after {_seconds(avoided)}")
        if fault.visible and (readmitted is None or readmitted > READMITTED_S):
            broken.append(f"re-admitted after {_seconds(readmitted)}")
        return Row(
            fault=fault.name,
            account=account,
            leaked=leaked,
            expired=expired,
            noticed=None if noticed is None else noticed - self._began,
            avoided=avoided,
            readmitted=readmitted,
            broken=tuple(broken),
        )

    def _noticed(self, culprit: str) -> float | None:
        """When the engine failed for the first time, to Envoy or to a client."""
        found = (self._watch.first_failure(culprit, self._began), self._ledger.first_failure(self._began))
        return min((at for at in found if at is not None), default=None)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


async def run_fault(fault: Fault) -> Row:
    """Run a fault on a stand of its own."""
    async with running_stand(fault.plan) as stand:
        await fault.prepare(stand)
        return await Trial(fault, stand).run(fault.lasts)


def as_json(row: Row) -> dict[str, Any]:
    """Return a row as plain data."""
    rest = {name: getattr(row, name) for name in row.__struct_fields__ if name != "account"}
    return {**rest, **msgspec.to_builtins(row.account)}
