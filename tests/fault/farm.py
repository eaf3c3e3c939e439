"""Many simulated engines in one process, whose addresses it prints once they listen."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack

from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.fault.load import MODEL
from tests.fault.stand import PRESET


async def main(count: int) -> None:
    """Run engines until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with AsyncExitStack() as stack:
        options = EngineOptions(preset=PRESET, speed=1.0, models=(MODEL,), record=0)
        engines = [await stack.enter_async_context(SimEngine(options)) for _ in range(count)]
        sys.stdout.write(json.dumps({"addresses": [engine.address for engine in engines]}) + "\n")
        sys.stdout.flush()
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
