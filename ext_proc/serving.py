"""Runs one kvpicker in this process, until a signal tells it to stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ext_proc.app import Service
from ext_proc.config import Config, load, located, parse
from ext_proc.ops.foreign_logs import heard


async def serve(path: Path, output: BinaryIO) -> None:
    """Run a kvpicker from its configuration file.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    await run(load(path), path, output)


async def run(config: Config, path: Path | None, output: BinaryIO, read: Callable[[str, str], Config] = parse) -> None:
    """Run a kvpicker; arguments as for `Service`.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    with located(path):
        service = Service(config, path, output, read)
    service.stop_on_signals()
    with heard(service.log.say):
        async with service:
            await service.run()
