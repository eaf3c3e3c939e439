"""The file in which the orders of operators outlive kvpicker's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ext_proc.core.errors import ConfigError
from ext_proc.core.lifecycle import Order, Stage
from ext_proc.sources.replacing import replace_file

VERSION = 1
MODE = 0o600
MOST_ORDERS = 10_000
MOST_MODELS = 32
MOST_BYTES = 8 * 1024 * 1024
ASIDE = ".unusable"
"""What the name of a file ends in that was set aside."""

LONGEST_S = 366 * 86_400.0
"""No deadline that is read is taken to be further away: the wall clock may have jumped since it was written."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One order as it stands in the file.

    Attributes:
        address: of the endpoint.
        pool: that it belongs to.
        stage: where it was ordered to stand.
        until: the deadline of a drain, Unix seconds.
        models: that it served, by which it is known again; empty where they were not known, or too many.
    """

    address: Annotated[str, Meta(min_length=1, max_length=1_024)]
    pool: Annotated[str, Meta(min_length=1, max_length=256)]
    stage: Literal["cordoned", "draining", "drained"]
    until: float | None = None
    models: Annotated[list[str], Meta(max_length=MOST_MODELS)] = []


class Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    version: int
    orders: Annotated[list[Entry], Meta(max_length=MOST_ORDERS)]


class _Version(msgspec.Struct):
    version: int


class OrdersFile:
    """Reads the file that an earlier process left, and writes it anew.

    Args:
        path: the file.
        wall_clock: Unix seconds.
        clock: monotonic seconds.
    """

    def __init__(self, path: Path, wall_clock: Callable[[], float], clock: Callable[[], float]) -> None:
        self.path = path
        self._wall_clock = wall_clock
        self._clock = clock

    def read(self) -> list[Order] | None:
        """Return the orders that were left, or None if there is no file.

        Raises:
            ConfigError: it cannot be read, or is none of ours.
        """
        try:
            with self.path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror or error}", path=str(self.path)) from error
        return [self._order(entry) for entry in self._decoded(content).orders]

    def set_aside(self) -> Path | None:
        """Move a file that is none of ours out of the way, over one that was moved before.

        Returns where it is now; None where it had to stay, and the next writing replaces it.
        """
        aside = self.path.with_name(f"{self.path.name}{ASIDE}")
        try:
            self.path.replace(aside)
        except OSError:
            return None
        return aside

    def write(self, orders: Sequence[Order]) -> None:
        """Put orders into the file; of too many those that come last.

        Raises:
            ConfigError: it cannot be written; the old one stays.
        """
        content = Content(version=VERSION, orders=[self._entry(order) for order in orders[-MOST_ORDERS:]])
        try:
            replace_file(self.path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n", MODE)
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror or error}", path=str(self.path)) from error

    def _decoded(self, content: bytes) -> Content:
        if len(content) > MOST_BYTES:
            raise ConfigError(f"has more than {MOST_BYTES} bytes", path=str(self.path))
        try:
            version = msgspec.json.decode(content, type=_Version).version
            if version != VERSION:
                raise ConfigError(f"has version {version}, and this kvpicker knows {VERSION}", path=str(self.path))
            return msgspec.json.decode(content, type=Content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"is no file of orders: {error}", path=str(self.path)) from error

    def _order(self, entry: Entry) -> Order:
        if entry.stage != "draining":
            return Order(entry.address, entry.pool, Stage(entry.stage), None, frozenset(entry.models))
        left = 0.0 if entry.until is None else min(max(entry.until - self._wall_clock(), 0.0), LONGEST_S)
        return Order(entry.address, entry.pool, Stage.DRAINING, self._clock() + left, frozenset(entry.models))

    def _entry(self, order: Order) -> Entry:
        until = None if order.deadline is None else round(self._wall_clock() + order.deadline - self._clock(), 3)
        stage: Literal["cordoned", "draining", "drained"] = "cordoned"
        if order.stage is not Stage.CORDONED:
            stage = "draining" if order.stage is Stage.DRAINING else "drained"
        models = sorted(order.models) if len(order.models) <= MOST_MODELS else []
        return Entry(address=order.address, pool=order.pool, stage=stage, until=until, models=models)
