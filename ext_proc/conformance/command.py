"""The options of the command `kvpicker conformance`, and the run that they describe."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import ipaddress
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ext_proc.conformance.modes import ALL, Mode

if TYPE_CHECKING:
    from ext_proc.conformance.check import Settings
    from ext_proc.conformance.suite import Result
    from ext_proc.conformance.target import Address

HELP: Final = "try any endpoint picker"

DESCRIPTION: Final = """\
Plays Envoy's part over gRPC: order of messages, every body mode, bodies cut at every
byte, trailers, subset hints, refusals, hostile requests, broken streams, health. It needs
no Envoy and no engines, sends some thousand requests, and tells the picker of answers
that never were: try a picker that serves nobody.

The exit status is 0 if all that binds (MUST) is met, 1 if something is not, 2 if the
target cannot be reached or an option cannot be used.
"""

UNUSABLE: Final = 2
FEWEST_S: Final = 0.05
_NO_PICK: Final = "a plain request gets no pick, so most will fail; does it take --model, --path or another --mode?"


class Unusable(Exception):
    """An option cannot be used; the message says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the `conformance` command."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("target", nargs="?", metavar="TARGET", help="host:port or unix:/path of the picker's gRPC server")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--plaintext", action="store_true", help="speak plaintext (the default)")
    way.add_argument("--tls", action="store_true", help="speak TLS")
    add("--ca", type=Path, metavar="FILE", help="with --tls: trust certificates signed by these (PEM)")
    add("--insecure", action="store_true", help="with --tls: trust whatever certificate the target offers")
    add("--client", type=Path, metavar="FOLDER", help="with --tls: prove yourself by tls.crt and tls.key in it")
    add("--server-name", default="", metavar="NAME", help="with --tls: name that the certificate must have")
    add("--health", metavar="TARGET", help="where health checks are served, if elsewhere")
    add("--health-plaintext", action="store_true", help="with --tls and --health: speak plaintext there")
    add("--endpoint", action="append", default=[], metavar="IP:PORT", help="an endpoint of the pool; give all of them, "
        "or none to learn some from picks")  # fmt: skip
    add("--single", action="store_true", help="the data plane takes one address (ORIGINAL_DST, subsets), not a list")
    add("--model", default="", help="a model that the pool serves; without it requests name none")
    add("--path", default="/v1/chat/completions", help="path of requests with a chat as their body (%(default)s)")
    add("--mode", action="append", choices=[*map(str, ALL), "all"], help="body mode to try, repeatable (all)")
    add("--only", action="append", default=[], metavar="PATTERN", help="only checks whose id matches, as `subset.*`")
    add("--strict", action="store_true", help="what SHOULD be met must")
    add("--timeout", type=float, default=5.0, metavar="SECONDS", help="for an answer (%(default)g)")
    add("--limit", type=float, default=20.0, metavar="SECONDS", help="for a huge or hostile request (%(default)g)")
    add("--streams", type=int, default=200, metavar="COUNT", help="streams that are open at once (%(default)d)")
    add("--junit", type=Path, metavar="FILE", help="write the results as JUnit XML")
    add("--json", action="store_true", help="print one JSON object instead of a table")
    add("--list", action="store_true", help="print the checks and try none")


def run(arguments: argparse.Namespace) -> int:
    """Try the checks and print what came of them; return the exit status."""
    from ext_proc.conformance import report  # noqa: PLC0415  the messages of Envoy take a second to import
    from ext_proc.conformance.junit import document  # noqa: PLC0415
    from ext_proc.conformance.suite import CHECKS, chosen  # noqa: PLC0415
    from ext_proc.conformance.target import Unreachable  # noqa: PLC0415

    if arguments.list:
        report.list_checks(dict.fromkeys(check for check, _ in chosen(arguments.only)) or CHECKS, sys.stdout)
        return 0
    try:
        results = asyncio.run(_results(arguments))
        if arguments.junit is not None:
            arguments.junit.write_bytes(document(arguments.target, results, strict=arguments.strict))
    except (Unusable, Unreachable, OSError) as error:
        sys.stderr.write(f"kvpicker conformance: {error}\n")
        return UNUSABLE
    show = report.show_json if arguments.json else report.show
    show(arguments.target, results, sys.stdout)
    return int(any(result.breaks(strict=arguments.strict) for result in results))


async def _results(arguments: argparse.Namespace) -> list[Result]:
    """Reach the target, and try the chosen checks.

    Raises:
        Unusable: an option cannot be used.
        Unreachable: there is nobody at the target.
    """
    from ext_proc.conformance import report  # noqa: PLC0415  as above
    from ext_proc.conformance.suite import chosen, learn, run_all  # noqa: PLC0415
    from ext_proc.conformance.target import Target  # noqa: PLC0415

    if not arguments.target:
        raise Unusable("no TARGET is given: host:port or unix:/path of a picker's gRPC server")
    if not _is_target(arguments.target) or not _is_target(arguments.health or arguments.target):
        raise Unusable("a TARGET is host:port or unix:/path, as in 127.0.0.1:9002")
    if arguments.junit is not None and not arguments.junit.parent.is_dir():
        raise Unusable(f"--junit {arguments.junit}: there is no such folder")
    modes = [Mode(mode) for mode in arguments.mode or ()] if "all" not in (arguments.mode or ()) else []
    checks = chosen(arguments.only, modes or ALL)
    if not checks:
        raise Unusable(f"no check matches {' '.join(arguments.only)}; --list shows them all")
    settings = _settings(arguments)
    address = _address(arguments, arguments.target)
    health = _health_address(arguments, address)
    async with Target(address, health, settings.patience_s) as target:
        await target.reach()
        found = await learn(target, settings, modes or ALL)
        if not found:
            sys.stderr.write(f"kvpicker conformance: {_NO_PICK}\n")
        if not settings.complete:
            settings = dataclasses.replace(settings, endpoints=found)
        with report.progress(sys.stderr) as begins:
            return await run_all(target, settings, checks, begins)


def _is_target(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return text.startswith("unix:/") or bool(host and "/" not in host and port.isdecimal())


def _settings(arguments: argparse.Namespace) -> Settings:
    from ext_proc.conformance.check import Settings  # noqa: PLC0415  as above

    for endpoint in arguments.endpoint:
        host, colon, port = endpoint.rpartition(":")
        try:
            ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            colon = ""
        if not colon or not port.isdecimal():
            raise Unusable(f"--endpoint {endpoint}: not an ip:port, IPv6 in brackets")
    if min(arguments.timeout, arguments.limit) < FEWEST_S or arguments.streams < 1:
        raise Unusable(f"--timeout and --limit are {FEWEST_S:g} s at least, --streams is 1")
    return Settings(
        model=arguments.model,
        path=arguments.path,
        endpoints=tuple(arguments.endpoint),
        complete=bool(arguments.endpoint),
        single=arguments.single,
        patience_s=arguments.timeout,
        limit_s=arguments.limit,
        streams=arguments.streams,
    )


def _health_address(arguments: argparse.Namespace, address: Address) -> Address:
    from ext_proc.conformance.target import Address  # noqa: PLC0415  as above

    if not arguments.health_plaintext:
        return _address(arguments, arguments.health) if arguments.health else address
    if not arguments.tls or not arguments.health:
        raise Unusable("--health-plaintext goes with --tls and --health")
    return Address(where=arguments.health)


def _address(arguments: argparse.Namespace, where: str) -> Address:
    from ext_proc.conformance.target import Address  # noqa: PLC0415  as above

    if not arguments.tls and (arguments.ca or arguments.insecure or arguments.client or arguments.server_name):
        raise Unusable("--ca, --insecure, --client and --server-name go with --tls")
    if arguments.insecure and where.startswith("unix:"):
        raise Unusable("--insecure cannot be used with a Unix socket; give its certificate by --ca")
    folder = arguments.client
    return Address(
        where=where,
        tls=arguments.tls,
        authority=_read(arguments.ca, "--ca") if arguments.ca else None,
        own=None if folder is None else (_read(folder / "tls.key", "--client"), _read(folder / "tls.crt", "--client")),
        insecure=arguments.insecure,
        server_name=arguments.server_name,
    )


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unusable(f"{option} {path}: {error.strerror}") from None
