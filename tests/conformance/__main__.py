"""`make conformance`: kvpicker as gateways configure it, over TCP and Unix sockets, tried by `kvpicker conformance`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.conformance.kvpickers import ENDPOINTS, MODEL, SETTINGS, serving


async def _try(name: str, address: str, junit: Path | None) -> int:
    """Run the command against one address; returns its exit status."""
    known = [f"--endpoint={endpoint}" for endpoint in ENDPOINTS]
    modes = [f"--mode={mode}" for mode in SETTINGS[name].modes]
    way = "unix" if address.startswith("unix:") else "tcp"
    trust = ["--tls", "--insecure"] if way == "tcp" and SETTINGS[name].tls else []
    single = ["--single"] if SETTINGS[name].single else []
    report = [] if junit is None else [f"--junit={junit / f'{name}-{way}.xml'}"]
    sys.stdout.write(f"\n== {name}, {way}\n")
    sys.stdout.flush()
    command = [sys.executable, "-m", "ext_proc.cli", "conformance", address, "--strict", f"--model={MODEL}"]
    process = await asyncio.create_subprocess_exec(*command, *known, *modes, *trust, *single, *report)
    return await process.wait()


async def main(junit: Path | None) -> int:
    """Try every setting; returns the worst exit status."""
    statuses = []
    for name in SETTINGS:
        with tempfile.TemporaryDirectory(prefix="kvpicker-") as folder:
            async with serving(name, Path(folder)) as addresses:
                statuses += [await _try(name, address, junit) for address in addresses]
    return max(statuses)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--junit", type=Path, metavar="FOLDER", help="write JUnit XML files there")
    sys.exit(asyncio.run(main(parser.parse_args().junit)))
