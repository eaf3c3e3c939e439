"""The watched list of a pool's endpoints, with the configuration's own parser."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from ext_proc.config import parse_endpoints
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.sources.endpoints_file import EndpointsFile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

ONE = "endpoints:\n  - 10.0.0.11:8000\n"
TWO = ONE + "  - {address: '[fd00:0::12]:8000', models: [acme/chat-8b]}\n"


class Fixture:
    """A registry fed by one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.registry = Registry()
        self.errors: list[tuple[str, str]] = []
        self.source = EndpointsFile(path, "chat", parse_endpoints, self.apply, self.fail)

    def apply(self, pool: str, specs: Sequence[EndpointSpec]) -> None:
        """Do what the program does with a list."""
        self.registry.replace(pool, specs)

    def fail(self, pool: str, error: Exception) -> None:
        """Keep what an operator would read."""
        self.errors.append((pool, str(error)))

    def addresses(self) -> set[str]:
        """Return what requests can go to."""
        return set(self.registry.snapshot.by_address)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch while the test runs."""
        self.source.start()
        task = asyncio.create_task(self.source.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def until(self, condition: Callable[[], bool]) -> float:
        """Wait for something to become true and say how long it took."""
        begin = time.monotonic()
        while not condition():
            assert time.monotonic() - begin < 5, "condition not met in time"
            await asyncio.sleep(0.01)
        return time.monotonic() - begin


async def test_an_edit_reaches_the_registry_within_half_a_second(tmp_path: Path) -> None:
    """Endpoints come and go with the file, in canonical notation (E07), and the others keep their state."""
    fixture = Fixture(tmp_path / "chat.yaml")
    fixture.path.write_text(ONE)
    async with fixture.running():
        (first,) = fixture.registry.snapshot.endpoints
        fixture.path.write_text(TWO)
        assert await fixture.until(lambda: fixture.addresses() == {"10.0.0.11:8000", "[fd00::12]:8000"}) < 0.5
        assert fixture.registry.snapshot.by_address["10.0.0.11:8000"] is first
        fixture.path.write_text(ONE)
        await fixture.until(lambda: fixture.addresses() == {"10.0.0.11:8000"})


async def test_a_broken_file_keeps_the_last_good_list(tmp_path: Path) -> None:
    """The list stays as it was while the file is broken or gone, and each fault is reported once (I01)."""
    fixture = Fixture(tmp_path / "chat.yaml")
    fixture.path.write_text(ONE)
    async with fixture.running():
        fixture.path.write_text("endpoints: [")
        await fixture.until(lambda: fixture.source.error is not None)
        fixture.path.unlink()
        await fixture.until(lambda: len(fixture.errors) == 2)
        assert fixture.addresses() == {spec.address for spec in fixture.source.specs} == {"10.0.0.11:8000"}
        fixture.path.write_text(TWO)
        await fixture.until(lambda: len(fixture.addresses()) == 2)
    assert [pool for pool, _ in fixture.errors] == ["chat", "chat"]
    assert fixture.source.error is None


async def test_a_file_missing_at_the_start_is_waited_for(tmp_path: Path) -> None:
    """Nothing is applied until the file comes (I16)."""
    fixture = Fixture(tmp_path / "chat.yaml")
    async with fixture.running():
        assert not fixture.registry.snapshot.by_pool
        assert len(fixture.errors) == 1
        fixture.path.write_text(ONE)
        await fixture.until(lambda: fixture.addresses() == {"10.0.0.11:8000"})


async def test_an_endpoint_that_comes_and_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    """Flapping uses one slot over and over and ends as it began (E10)."""
    fixture = Fixture(tmp_path / "chat.yaml")
    fixture.path.write_text(ONE)
    fixture.source.start()
    for _ in range(50):
        fixture.path.write_text(TWO)
        fixture.source.start()
        assert {endpoint.slot for endpoint in fixture.registry.snapshot.endpoints} == {0, 1}
        fixture.path.write_text(ONE)
        fixture.source.start()
    assert fixture.addresses() == {"10.0.0.11:8000"}
    assert fixture.errors == []
