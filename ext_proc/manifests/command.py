"""The command `kvpicker envoy-config`, for its profiles that are Kubernetes objects and not an Envoy configuration."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import Any, Final

from ext_proc import bootstrap
from ext_proc.core.errors import ConfigError
from ext_proc.manifests.options import PROFILES, ManifestOptions, Profile
from ext_proc.manifests.render import to_yaml

_DEFAULTS: Final = ManifestOptions()

_OWN: Final = (
    "namespace",
    "gateway",
    "gateway_class",
    "pool",
    "selector",
    "target_port",
    "picker",
    "picker_port",
    "model",
    "replicas",
)
"""Options of these profiles alone."""

_POOL: Final = frozenset({"namespace", "gateway", "gateway_class", "pool", "selector", "target_port", "picker"})
_TLS: Final = frozenset({"tls_ca", "tls_name", "tls_client"})
_USED: Final[dict[Profile, frozenset[str]]] = {
    "istio": _POOL | _TLS | {"picker_port", "failure_mode"},
    "envoy-gateway": (_POOL - {"selector"})
    | _TLS
    | {"picker_port", "failure_mode", "replicas", "message_timeout", "body_limit", "retries"},
    "envoy-ai-gateway": _POOL | {"picker_port", "model"},
    "kgateway": _POOL | {"picker_port"},
}
"""Options that each profile heeds, beside those of the command itself."""

_GENERAL: Final = frozenset({"profile", "output", "help"})
_PLURALS: Final = {"processors": "--processor", "endpoints": "--endpoint"}
"""Flags that are repeated, by what their values are called together."""

_MANY: Final = {"target_port": "target_ports", "model": "models"}
"""Options that are repeated, and what they are called where they are many."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options, those of Envoy configurations too."""
    bootstrap.add_arguments(parser)
    profile = next(action for action in parser._actions if action.dest == "profile")  # noqa: SLF001  argparse tells them nowhere else
    profile.choices = (*(profile.choices or ()), *PROFILES)
    group = parser.add_argument_group("Kubernetes objects", f"for the profiles {', '.join(PROFILES)}")
    group.add_argument("--namespace", default=_DEFAULTS.namespace, help="of all objects [%(default)s]")
    group.add_argument("--gateway", default=_DEFAULTS.gateway, metavar="NAME", help="the Gateway [%(default)s]")
    group.add_argument("--gateway-class", metavar="NAME", help="its class [that of the gateway's own instructions]")
    group.add_argument(
        "--pool",
        default=_DEFAULTS.pool,
        metavar="NAME",
        help="the InferencePool, or the engines' Service [%(default)s]",
    )
    group.add_argument(
        "--selector", action="append", metavar="KEY=VALUE", help="a label of the engines' pods; repeat it [app=vllm]"
    )
    group.add_argument(
        "--target-port", action="append", type=int, metavar="PORT", help="a port of the engines; repeat it [8000]"
    )
    group.add_argument(
        "--picker", default=_DEFAULTS.picker, metavar="NAME", help="kvpicker's Service and StatefulSet [%(default)s]"
    )
    group.add_argument("--picker-port", type=int, default=_DEFAULTS.picker_port, help="of that Service [%(default)s]")
    group.add_argument("--model", action="append", metavar="NAME", help="a model that the pool serves; repeat it")
    group.add_argument(
        "--replicas", type=int, default=_DEFAULTS.replicas, help="kvpicker processes that get the log [%(default)s]"
    )
    parser.set_defaults(options=parser, unsaid=_unset(parser))


def _unset(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Take the defaults of all options away, so that what is there was given, and return them."""
    unsaid: dict[str, Any] = {}
    for action in parser._actions:  # noqa: SLF001  as above
        if action.dest != "help":
            action.help = (action.help or "").replace("%(default)s", str(action.default))
            unsaid[action.dest], action.default = action.default, argparse.SUPPRESS
    return unsaid


def run(arguments: argparse.Namespace) -> int:
    """Print or write what the profile wants and return 0; raises ConfigError, with nothing written, if it cannot be."""
    try:
        return _run(arguments)
    except ConfigError as error:
        raise _spelt(error, arguments.options) from error


def _spelt(error: ConfigError, parser: argparse.ArgumentParser) -> ConfigError:
    """Name options in an error as they are given on the command line."""
    flags = {action.dest: action.option_strings[0] for action in parser._actions if action.option_strings}  # noqa: SLF001  as above
    flags |= _PLURALS
    message = re.sub(r"`(\w+)`", lambda found: f"`{flags.get(found[1], found[1])}`", error.message)
    return ConfigError(message, path=flags.get(error.path, error.path), where=error.where)


def _run(arguments: argparse.Namespace) -> int:
    given = frozenset(vars(arguments)) & frozenset(arguments.unsaid)
    arguments = argparse.Namespace(**{**arguments.unsaid, **vars(arguments)})
    profile = next((each for each in PROFILES if each == arguments.profile), None)
    if profile is None:
        _refuse(given & set(_OWN), arguments.profile)
        _refuse_idle(given, arguments)
        return bootstrap.run(arguments)
    _refuse(given - _USED[profile] - _GENERAL, profile)
    options = _options(arguments)
    text = to_yaml(profile, options, command=_command(profile, options))
    bootstrap.deliver(text, arguments.output)
    return 0


def _refuse(foreign: frozenset[str], profile: str) -> None:
    for name in sorted(foreign):
        raise ConfigError(f"the profile {profile} has no use for it; leave it out", path=f"--{name.replace('_', '-')}")


def _refuse_idle(given: frozenset[str], arguments: argparse.Namespace) -> None:
    """Refuse options of Envoy configurations that others leave nothing to do."""
    if {"endpoint", "endpoints_file"} <= given:
        raise ConfigError("`endpoint` takes its place; leave one out", path="endpoints_file")
    if "envoy" in given and not arguments.check:
        raise ConfigError("it checks nothing without `check`; add that", path="envoy")
    again = bootstrap.EnvoyOptions(
        profile=arguments.profile, envoy_version=arguments.envoy_version, retries=arguments.retries
    ).attempts_after
    if arguments.repeatable and arguments.repeatable != ["none"] and not again:
        raise ConfigError("nothing is sent again without `retries`; give at least 1", path="repeatable")


def _options(arguments: argparse.Namespace) -> ManifestOptions:
    return ManifestOptions(
        namespace=arguments.namespace,
        gateway=arguments.gateway,
        gateway_class=arguments.gateway_class,
        pool=arguments.pool,
        selector=tuple(arguments.selector or _DEFAULTS.selector),
        target_ports=tuple(arguments.target_port or _DEFAULTS.target_ports),
        picker=arguments.picker,
        picker_port=arguments.picker_port,
        failure_mode=arguments.failure_mode,
        models=tuple(arguments.model or ()),
        replicas=arguments.replicas,
        message_timeout=arguments.message_timeout,
        body_limit=arguments.body_limit,
        retries=_DEFAULTS.retries if arguments.retries is None else arguments.retries,
        tls_ca=arguments.tls_ca,
        tls_name=arguments.tls_name,
        tls_client=arguments.tls_client,
    )


def _command(profile: Profile, options: ManifestOptions) -> str:
    """Spell the command that renders the same again."""
    words = ["kvpicker", "envoy-config", "--profile", profile]
    for name in sorted(_USED[profile]):
        field = _MANY.get(name, name)
        value = getattr(options, field)
        if value != getattr(_DEFAULTS, field):
            values = value if isinstance(value, tuple) else (value,)
            words += [word for each in values for word in (f"--{name.replace('_', '-')}", str(each))]
    return shlex.join(words)
