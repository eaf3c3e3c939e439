"""Keeps the endpoints of a pool as a YAML file lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.sources.files import INTERVAL_S, FileWatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ext_proc.core.pool import EndpointSpec


class EndpointsFile:
    """A watched list of endpoints; a file that is missing or broken never takes the last good list away.

    Attributes:
        pool: the pool the list belongs to.
        specs: the list in force; empty until the file could be read once.
    """

    def __init__(
        self,
        path: Path | str,
        pool: str,
        parse: Callable[[str, str], Sequence[EndpointSpec]],
        apply: Callable[[str, Sequence[EndpointSpec]], None],
        on_error: Callable[[str, Exception], None],
        *,
        interval: float = INTERVAL_S,
    ) -> None:
        """Watch nothing yet; see `start` and `run`.

        Args:
            path: the file; it need not exist.
            pool: the pool the list belongs to.
            parse: makes the list of the file's text and name, or raises.
            apply: takes the pool and each list that comes in force.
            on_error: takes the pool and each fault, once per content of the file; must not raise.
            interval: seconds between two looks.
        """
        self.pool = pool
        self.specs: Sequence[EndpointSpec] = ()
        self._apply = apply
        self._watcher = FileWatcher(path, parse, self._use, lambda error: on_error(pool, error), interval=interval)

    @property
    def error(self) -> Exception | None:
        """Why the file's present content is not in force; None while it is."""
        return self._watcher.error

    def start(self) -> None:
        """Read the file once and apply its list, if it has a usable one."""
        self._watcher.check()

    async def run(self) -> None:
        """Apply each change within half a second, until cancelled."""
        await self._watcher.run()

    def _use(self, specs: Sequence[EndpointSpec]) -> None:
        self._apply(self.pool, specs)
        self.specs = specs
