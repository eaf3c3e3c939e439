"""The simulated engine's own calls under /sim/: faults, received requests and state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from typing import Any

from ext_proc.sim.asks import decode_object
from ext_proc.sim.driver import Driver
from ext_proc.sim.errors import ApiError, bad_request
from ext_proc.sim.faults import FaultBook
from ext_proc.sim.metrics_page import MetricsPage
from ext_proc.sim.request_log import RequestLog

Refuse = Callable[[float], Coroutine[Any, Any, None]]

DEFAULT_REFUSAL = 5.0
_HANDOVER = 0.02
"""Seconds in which the answer to a `refuse` call leaves before the connections close."""


class Admin:
    """What tests and operators can see and change from outside."""

    def __init__(self, driver: Driver, metrics: MetricsPage, faults: FaultBook, log: RequestLog) -> None:
        self.driver = driver
        self.metrics = metrics
        self.faults = faults
        self.log = log
        self.refuse: Refuse | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, method: str, path: str, query: Mapping[str, str], raw: bytes) -> Any:
        """Answer an admin call with a JSON value.

        Raises:
            ApiError: no such call (404), or one that cannot be used (400).
        """
        match method, path:
            case "GET", "/sim/faults":
                return [asdict(fault) for fault in self.faults.standing]
            case "POST", "/sim/faults":
                return self._add_fault(decode_object(raw))
            case "DELETE", "/sim/faults":
                self.faults.clear()
                return []
            case "GET", "/sim/requests":
                limit = query.get("limit", "")
                return self.log.find(query.get("request_id"), int(limit) if limit.isdecimal() else None)
            case "DELETE", "/sim/requests":
                self.log.clear()
                return []
            case "GET", "/sim/state":
                return self._state()
        raise ApiError(404, f"there is no {method} {path}")

    def stop(self) -> None:
        """Cancel what admin calls left running."""
        for task in self._tasks:
            task.cancel()

    def _add_fault(self, data: dict[str, Any]) -> dict[str, Any]:
        if data.get("kind") != "refuse":
            return asdict(self.faults.add(data))
        seconds = data.get("for", DEFAULT_REFUSAL)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0 or not self.refuse:
            raise bad_request("for must be a number of seconds", "for")
        task = asyncio.get_running_loop().create_task(self._refuse_soon(seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return {"kind": "refuse", "for": seconds}

    async def _refuse_soon(self, seconds: float) -> None:
        await asyncio.sleep(_HANDOVER)
        if self.refuse is not None:
            await self.refuse(seconds)

    def _state(self) -> dict[str, Any]:
        scheduler = self.driver.scheduler
        block_size = scheduler.limits.block_size
        return {
            "in_flight": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "used_tokens": scheduler.cache.used * block_size,
            "cached_tokens": scheduler.cache.cached * block_size,
            "kv_tokens": scheduler.cache.capacity * block_size,
            "requests": self.log.total,
        }
