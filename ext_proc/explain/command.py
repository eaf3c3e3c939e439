"""The options of the command `kvpicker explain`, and where its answer comes from."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from ext_proc.core.errors import ConfigError
from ext_proc.core.prompts.guessing import likely_path
from ext_proc.core.rehearsal import Asked

HELP: Final = "explain where a request would go, and why"

DESCRIPTION: Final = """\
Asks a running kvpicker, or a state that one has shown, what it would do with a request.
Nothing is sent to an engine, and nothing is booked or learnt.

  kvpicker explain --request body.json                      the kvpicker on this machine
  kvpicker explain --request body.json --admin http://10.0.0.5:9090
  curl -s 127.0.0.1:9090/debug/state > state.json           keep a state ...
  kvpicker explain --request body.json --state state.json   ... and explain by it later,
      with --config other.yaml: as if that had been in force

Times are in milliseconds. The cost of least-wait is the sum of its parts: work in front
(queue), the request's own prefill, interference with running requests, the backlog of the
fleet, the wait for KV memory, and copying: what it costs the others that this endpoint would
compute what another one holds, below 0 where many requests in flight will use the copy. The
lowest cost wins.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the `explain` command."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--request", metavar="FILE", help="the body, `-` for standard input; none for a request without a body")
    add("--path", help="path of the request (that of the API which the body looks like, else /v1/chat/completions)")
    add("--method", default="POST", help="HTTP method (%(default)s)")
    add("--header", action="append", default=[], metavar="NAME:VALUE", help="a header of the request, repeatable")
    add("--config", type=Path, metavar="FILE", help="take the admin address from it; with --state, decide by it")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--admin", metavar="URL", help="admin server of a running kvpicker (http://127.0.0.1:9090)")
    source.add_argument("--state", type=Path, metavar="FILE", help="what /debug/state of a kvpicker showed")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation and return 0, whatever would become of the request.

    Raises:
        ConfigError: a file cannot be used, or no kvpicker answers.
    """
    body = _body(arguments.request)
    path = likely_path(body) if arguments.path is None else arguments.path
    asked = Asked(path, body, _headers(arguments.header), arguments.method.upper())
    told = _explanation(arguments, asked)
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
        return 0
    from ext_proc.explain.table import show  # noqa: PLC0415  slow to import; not needed for JSON

    show(told, sys.stdout)
    return 0


def _explanation(arguments: argparse.Namespace, asked: Asked) -> dict[str, Any]:
    if arguments.state is not None:
        from ext_proc.explain.offline import explain_by_state  # noqa: PLC0415  as above

        return explain_by_state(arguments.state, arguments.config, asked)
    if arguments.admin is not None and arguments.config is not None:
        raise ConfigError("it names an admin server, and so does --admin; choose one", path="--config")
    from ext_proc.explain.ask import ask  # noqa: PLC0415  as above
    from ext_proc.ops.admin_client import admin_of  # noqa: PLC0415  as above

    return asyncio.run(ask(arguments.admin or admin_of(arguments.config), asked))


def _body(name: str | None) -> bytes:
    if name is None:
        return b""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}", path="--request") from None


def _headers(lines: list[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ConfigError(f"`{line}` is no header; write NAME:VALUE, as in x-session-id:abc", path="--header")
        headers[name.strip().lower()] = value.strip()
    return headers
