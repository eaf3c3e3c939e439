"""The options of the commands for operators, and how they end."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from ext_proc.core import durations
from ext_proc.core.errors import ConfigError

DESCRIPTIONS: Final = {
    "endpoints": "Lists what a running kvpicker knows of its endpoints and of who may be chosen.",
    "drain": """\
Lets an endpoint take no new request, while running ones go on. With --wait it returns once the
last of them has ended, or the deadline has passed: for a preStop hook, or before a restart.

  kvpicker drain 10.0.0.11:8000 --deadline 10m --wait
  kvpicker drain engine-0.engines:8000 --wait --admin http://10.0.0.5:9090 --admin http://10.0.0.6:9090

Exit status: 0 if nothing runs there any more (without --wait: if the drain has begun), 3 if
the deadline passed while requests still ran, 4 if somebody called the drain off, 2 for what
you can mend.
""",
    "undrain": "Lets an endpoint take requests again that was drained or cordoned.",
    "cordon": "Lets an endpoint take no new request until `kvpicker undrain`, while running ones go on.",
}
"""What each command does."""

HELPS: Final = {
    "endpoints": "list endpoints",
    "drain": "take an endpoint out gracefully",
    "undrain": "take it back",
    "cordon": "keep new requests away",
}

TOKEN_ENV: Final = "KVPICKER_ADMIN_TOKEN"  # noqa: S105  the variable's name


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the options of one of the commands."""
    parser.description = DESCRIPTIONS[name]
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    if name != "endpoints":
        add("endpoint", metavar="ENDPOINT", help="ip:port, or name:port as listed, which means all its addresses")
    if name == "drain":
        add("--deadline", type=_duration, default=600.0, metavar="TIME", help="end the drain after it (10m)")
        add("--wait", action="store_true", help="return once the drain is over")
    add("--admin", action="append", metavar="URL", help="admin server; repeat for each kvpicker (127.0.0.1:9090)")
    add("--config", type=Path, metavar="FILE", help="take admin address and token from kvpicker's configuration")
    if name == "endpoints":
        add("--json", action="store_true", help="print one JSON object instead of a table")
    else:
        add("--token-file", type=Path, metavar="FILE", help=f"file with the token; else ${TOKEN_ENV} or --config")
        add("--missing-ok", action="store_true", help="an endpoint that nobody lists is no error")


def run(arguments: argparse.Namespace, name: str) -> int:
    """Carry a command out and return its exit status.

    Raises:
        ConfigError: the user can mend what is wrong.
    """
    from ext_proc.operate import orders  # noqa: PLC0415  its HTTP client takes a moment to import
    from ext_proc.ops.admin_client import admin_of  # noqa: PLC0415  as above

    admins = arguments.admin or [admin_of(arguments.config)]
    if name == "endpoints":
        listings = asyncio.run(orders.listed(admins))
        if arguments.json:
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(listings), indent=2).decode() + "\n")
            return 0
        from ext_proc.operate.table import show  # noqa: PLC0415  as above

        show(listings, sys.stdout)
        return 0
    order = orders.Order(
        verb=name,
        endpoint=arguments.endpoint,
        token=_token(arguments.token_file, arguments.config),
        deadline=getattr(arguments, "deadline", 0.0),
        wait=getattr(arguments, "wait", False),
        missing_ok=arguments.missing_ok,
        say=_say,
    )
    return asyncio.run(orders.give(order, admins))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _token(path: Path | None, config: Path | None) -> str:
    """Find the token: in the named file, in the environment, or where the configuration says."""
    from ext_proc.config import load, located  # noqa: PLC0415  as above
    from ext_proc.ops.admin_token import read_token, token_of  # noqa: PLC0415  as above

    if path is not None:
        return token_of(path, "--token-file")
    token = os.environ.get(TOKEN_ENV, "").strip()
    if token:
        return token
    if config is not None:
        with located(config):
            token = read_token(load(config).admin) or ""
    if not token:
        raise ConfigError(
            f"this needs the admin token: name a file with --token-file, or set ${TOKEN_ENV}; the token is what"
            " `admin.token_file` or `admin.token_env` of kvpicker's configuration names",
            path="--token-file",
        )
    return token


def _duration(text: str) -> float:
    try:
        return durations.seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"`{text}` is {error}") from None
