"""The command `kvpicker envoy-config`: prints an Envoy configuration, and lets a real Envoy check it."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path

import msgspec

from ext_proc.bootstrap.binary import find_envoy, validate, version
from ext_proc.bootstrap.names import ENDPOINTS
from ext_proc.bootstrap.options import PROFILES, EnvoyOptions
from ext_proc.bootstrap.versions import BUILDS, NEWEST, OLDEST
from ext_proc.core.errors import ConfigError

_DEFAULTS = EnvoyOptions()
_SPELT = (
    "envoy_version",
    "listen",
    "admin",
    "endpoints_file",
    "failure_mode",
    "message_timeout",
    "max_message_timeout",
    "body_limit",
    "retries",
    "session_header",
    "session_cookie",
    "tenant_header",
    "priority_header",
    "tls_ca",
    "tls_name",
    "tls_client",
    "tls_secrets",
)
"""Options of one value, as flags of the same name."""

EMPTY_POOL = {
    "resources": [
        {
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": ENDPOINTS,
        }
    ]
}


def _add_exchanges(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--failure-mode",
        choices=("open", "closed"),
        default=_DEFAULTS.failure_mode,
        help="without a picker, let requests through or refuse them [%(default)s]",
    )
    parser.add_argument(
        "--first-token",
        action=argparse.BooleanOptionalAction,
        default=_DEFAULTS.first_token,
        help="measure the time to the first token of each streamed answer",
    )
    parser.add_argument(
        "--message-timeout", type=float, default=_DEFAULTS.message_timeout, help="seconds [%(default)s]"
    )
    parser.add_argument(
        "--max-message-timeout",
        type=float,
        default=_DEFAULTS.max_message_timeout,
        help="seconds, where requests wait for their turn; 0 lets none wait longer than the above [%(default)s]",
    )
    parser.add_argument("--body-limit", type=int, default=_DEFAULTS.body_limit, help="bytes [%(default)s]")
    parser.add_argument("--retries", type=int, help="attempts after the first [2, none with the profile duplex]")
    parser.add_argument(
        "--repeatable",
        action="append",
        metavar="PATH",
        help="a path whose requests may run twice; repeat it for more, or `none` [embeddings and the like]",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--profile", choices=PROFILES, default=_DEFAULTS.profile, help="how Envoy and kvpicker talk [%(default)s]"
    )
    parser.add_argument(
        "--envoy-version", choices=BUILDS, default=_DEFAULTS.envoy_version, help="what to render for [%(default)s]"
    )
    parser.add_argument("--listen", default=_DEFAULTS.listen, help="where clients connect [%(default)s]")
    parser.add_argument("--admin", default=_DEFAULTS.admin, help="Envoy's admin, or `none` [%(default)s]")
    parser.add_argument(
        "--processor",
        action="append",
        metavar="ADDRESS",
        help="a kvpicker process; repeat it for more [127.0.0.1:9002]",
    )
    parser.add_argument(
        "--endpoints-file", default=_DEFAULTS.endpoints_file, help="EDS file that kvpicker writes [%(default)s]"
    )
    parser.add_argument(
        "--endpoint",
        action="append",
        metavar="ADDRESS",
        help="an engine, or a name of engines, in place of the EDS file; repeat it",
    )
    _add_exchanges(parser)
    parser.add_argument("--session-header", metavar="NAME", help="a client's header that names its conversation")
    parser.add_argument("--session-cookie", metavar="NAME", help="the same as a cookie; no other cookie is read")
    parser.add_argument("--tenant-header", metavar="NAME", help="a header of the gateway that names the tenant")
    parser.add_argument("--priority-header", metavar="NAME", help="a header of the gateway that holds the priority")
    parser.add_argument(
        "--gateway-headers",
        action="store_true",
        help="pass on what the Endpoint Picker protocol says in headers: tenant, objective, model, wanted times",
    )
    parser.add_argument(
        "--engine-orders",
        action="store_true",
        help="let headers through that steer engines, such as SGLang's x-override-*, in place of removing them",
    )
    _add_tls(parser)
    parser.add_argument("--check", action="store_true", help="let Envoy check the result")
    parser.add_argument("--envoy", metavar="BINARY", help="the Envoy that checks")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write here instead of to stdout")


def _add_tls(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "TLS to kvpicker", "of Envoy configurations and, where it says so, of gateways"
    ).add_argument
    add(
        "--tls-ca",
        metavar="FILE",
        help="verify kvpicker's certificate by these authorities; for gateways the name of the object that holds them"
        " as ca.crt: with envoy-gateway a ConfigMap, with istio a Secret",
    )
    add("--tls-name", metavar="NAME", help="the name that kvpicker's certificate is for; for gateways too")
    add(
        "--tls-client",
        metavar="FOLDER",
        help="mutual TLS: prove yourself by tls.crt and tls.key in it; for gateways by those of a Secret of that name",
    )
    add("--tls-unverified", action="store_true", help="encrypt, but verify nothing: kvpicker's `tls: {}`")
    add("--tls-secrets", metavar="FOLDER", help="let Envoy read certificates that change, by files in it")
    add("--write-secrets", type=Path, metavar="FOLDER", help="write those files here")


def run(arguments: argparse.Namespace) -> int:
    """Print or write the configuration and return 0; raises ConfigError, with nothing written, if it cannot be used."""
    # The typed messages take half a second to import.
    from ext_proc.bootstrap.document import secrets_yaml, to_yaml  # noqa: PLC0415

    options = _options(arguments)
    command = _command(options)
    text = to_yaml(options, command=command)
    files = {} if arguments.write_secrets is None else secrets_yaml(options, command=command)
    if arguments.check:
        check(options, find_envoy(arguments.envoy))
    for name, content in files.items():
        deliver(content, arguments.write_secrets / name, "--write-secrets")
    deliver(text, arguments.output)
    return 0


def deliver(text: str, output: Path | None, option: str = "--output") -> None:
    """Write what was rendered to the file of an option, or to stdout if none is named.

    Raises:
        ConfigError: the file cannot be written.
    """
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}", path=option) from None


def check(options: EnvoyOptions, binary: Path) -> None:
    """Let Envoy check a rendered configuration; raises ConfigError with its complaint.

    Envoy insists on files that need not exist on the machine that renders: a missing EDS file is stood in for, and
    without the files of certificates everything else is checked.
    """
    from ext_proc.bootstrap.document import to_yaml  # noqa: PLC0415  as above

    minor = ".".join(version(binary).split(".")[:2])
    named = (options.tls_ca, options.tls_client, options.tls_secrets)
    if not all(path is None or Path(path).exists() for path in named):
        options = msgspec.structs.replace(options, tls_ca=None, tls_client=None, tls_secrets=None, tls_unverified=True)
    with tempfile.TemporaryDirectory(prefix="kvpicker-") as folder:
        if not options.endpoints and not Path(options.endpoints_file).exists():
            stand_in = Path(folder, "eds.json")
            stand_in.write_text(json.dumps(EMPTY_POOL), encoding="utf-8")
            options = msgspec.structs.replace(options, endpoints_file=str(stand_in))
        try:
            validate(to_yaml(options), binary)
        except ConfigError as error:
            if minor == options.envoy_version:
                raise
            known = (
                f"render for it with --envoy-version {minor}" if minor in BUILDS else f"{OLDEST} to {NEWEST} are known"
            )
            raise ConfigError(f"{error}; this Envoy is {minor}: {known}") from error


def _options(arguments: argparse.Namespace) -> EnvoyOptions:
    return EnvoyOptions(
        profile=arguments.profile,
        envoy_version=arguments.envoy_version,
        listen=arguments.listen,
        admin=None if arguments.admin in {None, "none"} else arguments.admin,
        processors=tuple(arguments.processor or _DEFAULTS.processors),
        endpoints_file=arguments.endpoints_file,
        endpoints=tuple(arguments.endpoint or ()),
        failure_mode=arguments.failure_mode,
        first_token=arguments.first_token,
        message_timeout=arguments.message_timeout,
        max_message_timeout=arguments.max_message_timeout,
        body_limit=arguments.body_limit,
        retries=arguments.retries,
        repeatable=_repeatable(arguments.repeatable),
        session_header=arguments.session_header,
        session_cookie=arguments.session_cookie,
        tenant_header=arguments.tenant_header,
        priority_header=arguments.priority_header,
        gateway_headers=arguments.gateway_headers,
        engine_orders=arguments.engine_orders,
        tls_ca=arguments.tls_ca,
        tls_name=arguments.tls_name,
        tls_client=arguments.tls_client,
        tls_unverified=arguments.tls_unverified,
        tls_secrets=arguments.tls_secrets,
    )


def _repeatable(paths: list[str] | None) -> tuple[str, ...]:
    if paths is None:
        return _DEFAULTS.repeatable
    return () if paths == ["none"] else tuple(paths)


def _command(options: EnvoyOptions) -> str:
    """Spell the command that renders the same again."""
    words = ["kvpicker", "envoy-config", "--profile", options.profile]
    for field, flag in (("processors", "--processor"), ("endpoints", "--endpoint"), ("repeatable", "--repeatable")):
        if getattr(options, field) != getattr(_DEFAULTS, field):
            words += [word for each in getattr(options, field) or ("none",) for word in (flag, each)]
    for field in _SPELT:
        value = getattr(options, field)
        if value != getattr(_DEFAULTS, field):
            words += [f"--{field.replace('_', '-')}", "none" if value is None else str(value)]
    for field in ("first_token", "gateway_headers", "engine_orders", "tls_unverified"):
        words += [f"--{field.replace('_', '-')}"] * getattr(options, field)
    return shlex.join(words)
