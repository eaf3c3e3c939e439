"""Has the orders of operators outlive a restart: reads the file that holds them, and writes it after each change."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from ext_proc.config import Config
from ext_proc.core.errors import ConfigError
from ext_proc.core.lifecycle import Lifecycle, Order
from ext_proc.ops.events import Event
from ext_proc.sources.orders_file import OrdersFile

AWAITED_S = 3_600.0
"""How long the order on an endpoint that is not listed is kept after a start; its source may be late."""

HEARING_SHARE = 1 / 3
"""Of the time after which silence means an end: more than one report on each running request."""

SOURCE = "orders"


def orders_path(config: Config) -> Path | None:
    """Return where a configuration keeps orders; None where it names no place that can be written.

    Beside Envoy's endpoints file, which several kvpickers may write, each has one of its own: by what it listens on.
    """
    if config.admin.orders_file is not None:
        return Path(config.admin.orders_file)
    if config.envoy.endpoints_file is None:
        return None
    beside = Path(config.envoy.endpoints_file)
    whose = sha256("\n".join(config.listen).encode()).hexdigest()[:8]
    return beside.with_name(f"{beside.stem}.orders-{whose}.json")


class Remembering:
    """Keeps a file in step with the orders that hold.

    Args:
        lifecycle: knows them.
        config: says where the file is.
        say: writes a log event with its fields.
        clock: monotonic seconds.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        config: Config,
        say: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        path = orders_path(config)
        self._file = None if path is None else OrdersFile(path, wall_clock, clock)
        self._hearing = HEARING_SHARE * config.leases.renewal_timeout_s
        self._lifecycle = lifecycle
        self._say = say
        self._clock = clock
        self._written: tuple[Order, ...] = ()
        self._problem = ""

    @property
    def path(self) -> str | None:
        """The file; None if orders are forgotten by a restart."""
        return None if self._file is None else str(self._file.path)

    @property
    def is_degraded(self) -> bool:
        """Whether orders that hold would be forgotten by a restart although they are to be kept."""
        return bool(self._problem)

    @property
    def keeps(self) -> bool:
        """Whether orders outlive a restart."""
        return self._file is not None and not self._problem

    def restore(self) -> None:
        """Take over the orders of an earlier process; a file that cannot be used is told of, and kept beside."""
        if self._file is None:
            return
        try:
            orders = self._file.read()
        except ConfigError as error:
            aside = self._file.set_aside()
            kept = {} if aside is None else {"set_aside": str(aside)}
            self._say(Event.SOURCE_FAILED, source=SOURCE, reason=str(error), **kept)
            return
        if orders is None:
            self._write(())  # so that a place that cannot be written is known before it is needed
        else:
            now = self._clock()
            self._lifecycle.restore(orders, now + AWAITED_S, now + self._hearing)
            self._written = self._lifecycle.orders
        if orders:
            self._say(Event.ORDERS_RESTORED, file=self.path, orders=len(orders))

    def save(self) -> None:
        """Write the file if other orders hold than it has; one that could not be written is tried again."""
        orders = self._lifecycle.orders
        if self._file is not None and (orders != self._written or self._problem):
            self._write(orders)

    def _write(self, orders: tuple[Order, ...]) -> None:
        assert self._file is not None  # noqa: S101  both callers have looked
        try:
            self._file.write(orders)
        except ConfigError as error:
            if str(error) != self._problem:
                self._say(Event.SOURCE_FAILED, source=SOURCE, reason=str(error))
            self._problem = str(error)
            return
        self._written = orders
        if self._problem:
            self._problem = ""
            self._say(Event.SOURCE_RECOVERED, source=SOURCE)
