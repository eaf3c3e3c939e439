"""The command `kvpicker`: one sub-command per job."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec

from ext_proc.core.errors import ConfigError

USAGE_ERROR = 2
INTERRUPTED = 130
"""What shells say of a command that Ctrl-C ended: 128 and the number of SIGINT."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 for a fault, 2 for something the user can mend, 130 for Ctrl-C."""
    # gRPC's C library reads this when it is loaded. By default it writes to standard error, past every limit, a line
    # for each stranger who speaks no TLS or names another server.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        parsed = parser().parse_args(arguments)
        status: int = parsed.run(parsed)
    except ConfigError as error:
        sys.stderr.write(f"kvpicker: {error}\n")
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    made = argparse.ArgumentParser(prog="kvpicker", description="An endpoint picker for LLM inference behind Envoy.")
    made.add_argument("--version", action="version", version=f"kvpicker {version('kvpicker')}")
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    _add_up(commands)
    _add_serve(commands)
    _add_epp(commands)
    _add_check(commands)
    _add_doctor(commands)
    _add_conformance(commands)
    _add_schema(commands)
    _add_envoy_config(commands)
    _add_explain(commands)
    _add_operating(commands)
    _add_sim_engine(commands)
    _add_analyze(commands)
    _add_replay(commands)
    return made


def _add_up(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ext_proc.local import command as up  # noqa: PLC0415

    command = commands.add_parser("up", help=up.HELP)
    up.add_arguments(command)
    command.set_defaults(run=up.run)


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("serve", help="run the picker")
    command.add_argument("config", type=Path, help="configuration file; it is watched for changes")
    command.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from ext_proc.serving import serve  # noqa: PLC0415  gRPC takes a moment to import; other commands do without

    asyncio.run(serve(arguments.config, sys.stdout.buffer))
    return 0


def _add_epp(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ext_proc.epp import command as epp  # noqa: PLC0415

    command = commands.add_parser("epp", help=epp.HELP)
    epp.add_arguments(command)
    command.set_defaults(run=epp.run)


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("check", help="check a configuration file")
    command.add_argument("config", type=Path)
    command.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    from ext_proc.assembly import check, notes  # noqa: PLC0415  as above

    config = check(arguments.config)
    sys.stdout.write(f"{arguments.config}: good\n")
    sys.stdout.writelines(f"note: {note}\n" for note in notes(config))
    return 0


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ext_proc.doctor import command as doctor  # noqa: PLC0415

    command = commands.add_parser("doctor", help=doctor.HELP)
    doctor.add_arguments(command)
    command.set_defaults(run=doctor.run)


def _add_conformance(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ext_proc.conformance import command as conformance  # noqa: PLC0415

    command = commands.add_parser("conformance", help=conformance.HELP)
    conformance.add_arguments(command)
    command.set_defaults(run=conformance.run)


def _add_schema(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("schema", help="print the JSON schema of the configuration file")
    command.set_defaults(run=_schema)


def _schema(_arguments: argparse.Namespace) -> int:
    from ext_proc.config import schema  # noqa: PLC0415  as above

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode() + "\n")
    return 0


def _add_envoy_config(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ext_proc import manifests  # noqa: PLC0415

    command = commands.add_parser("envoy-config", help="render configurations of Envoys and gateways")
    manifests.add_arguments(command)
    command.set_defaults(run=manifests.run)


def _add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ext_proc.explain import command as explain  # noqa: PLC0415

    command = commands.add_parser("explain", help=explain.HELP)
    explain.add_arguments(command)
    command.set_defaults(run=explain.run)


def _add_operating(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ext_proc.operate import command as operate  # noqa: PLC0415

    for name, help_ in operate.HELPS.items():
        command = commands.add_parser(name, help=help_)
        operate.add_arguments(command, name)
        command.set_defaults(run=partial(operate.run, name=name))


def _add_sim_engine(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ext_proc.sim import engine  # noqa: PLC0415

    command = commands.add_parser("sim-engine", help="run a simulated engine")
    engine.add_arguments(command)
    command.set_defaults(run=engine.run)


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ext_proc.replay import command as replay  # noqa: PLC0415

    command = commands.add_parser("replay", help=replay.HELP)
    replay.add_arguments(command)
    command.set_defaults(run=replay.run)


def _add_analyze(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ext_proc.analyze import command as analyze  # noqa: PLC0415

    command = commands.add_parser("analyze", help=analyze.HELP)
    analyze.add_arguments(command)
    command.set_defaults(run=analyze.run)


if __name__ == "__main__":
    sys.exit(main())
