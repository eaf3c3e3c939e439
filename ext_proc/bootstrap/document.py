"""Assembles a whole Envoy bootstrap and prints it as YAML."""

from __future__ import annotations

import textwrap
from typing import Any

import betterproto2
import yaml
from envoy_data_plane.envoy.config.bootstrap import v3 as bootstrap
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.google.protobuf import Struct

from ext_proc.bootstrap.clusters import clusters
from ext_proc.bootstrap.encryption import secrets
from ext_proc.bootstrap.listener import entry
from ext_proc.bootstrap.options import EnvoyOptions
from ext_proc.bootstrap.typed import address
from ext_proc.bootstrap.versions import Gap, gaps, without

# With it, ext_proc streams end by EOF instead of, at random, by a reset.
RUNTIME = {"envoy.reloadable_features.ext_proc_graceful_grpc_close": True}

WIDTH = 120


def render(options: EnvoyOptions) -> dict[str, Any]:
    """The bootstrap of a profile as plain data: enum names, durations like `0.2s`.

    Raises ConfigError, with the name of the option, for an address that cannot be used.
    """
    return _render(options)[0]


def to_yaml(options: EnvoyOptions, *, command: str = "kvpicker envoy-config") -> str:
    """The same as YAML, headed by a comment: which `command` rendered it, and what an older Envoy has to do without."""
    config, missed = _render(options)
    notes = [
        f"Left out, as Envoy {options.envoy_version} has no {gap.setting} (new in {gap.since}): {gap.loss}."
        for gap in missed
    ]
    if options.harm_of_retries and not options.attempts_after:
        notes.append(f"Left out, the routes' retry_policy: {options.harm_of_retries}.")
    lines = [f"# Rendered by: {command}", "# README.md beside the goldens explains each setting."]
    lines += [textwrap.fill(note, width=WIDTH, initial_indent="# ", subsequent_indent="#   ") for note in notes]
    return "\n".join([*lines, _dumped(config)])


def secrets_yaml(options: EnvoyOptions, *, command: str = "kvpicker envoy-config") -> dict[str, str]:
    """The files of `tls_secrets` as YAML, by their names; raises ConfigError if there are to be none."""
    head = f"# Rendered by: {command}\n"
    return {name: head + _dumped({"resources": found}) for name, found in secrets(options).items()}


def _dumped(plain: dict[str, Any]) -> str:
    return yaml.dump(plain, Dumper=_PlainDumper, sort_keys=False, width=WIDTH)


def _render(options: EnvoyOptions) -> tuple[dict[str, Any], list[Gap]]:
    """Return the configuration, and what had to be left out."""
    runtime = bootstrap.RuntimeLayer(name="kvpicker", static_layer=Struct.from_dict(RUNTIME))
    message = bootstrap.Bootstrap(
        node=core.Node(id="kvpicker-envoy", cluster="kvpicker"),
        static_resources=bootstrap.BootstrapStaticResources(listeners=[entry(options)], clusters=clusters(options)),
        layered_runtime=bootstrap.LayeredRuntime(layers=[runtime]),
    )
    if options.admin is not None:
        message.admin = bootstrap.Admin(address=address(options.admin, path="admin"))
    return without(message.to_dict(casing=betterproto2.Casing.SNAKE), gaps(options.envoy_version))


class _PlainDumper(yaml.SafeDumper):
    """Repeats equal parts instead of naming them by anchors, which readers would have to resolve."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 the signature is PyYAML's
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        """Print a script as it is written."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_PlainDumper.add_representer(str, _PlainDumper.represent_text)
