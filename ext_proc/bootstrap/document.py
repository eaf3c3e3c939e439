"""Assembles a whole Envoy bootstrap and prints it as YAML."""

from __future__ import annotations

from typing import Any

import betterproto2
import yaml
from envoy_data_plane.envoy.config.bootstrap import v3 as bootstrap
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.google.protobuf import Struct

from ext_proc.bootstrap.clusters import clusters
from ext_proc.bootstrap.listener import entry
from ext_proc.bootstrap.options import EnvoyOptions
from ext_proc.bootstrap.typed import address

# With it, ext_proc streams end by EOF instead of, at random, by a reset.
RUNTIME = {"envoy.reloadable_features.ext_proc_graceful_grpc_close": True}


def render(options: EnvoyOptions) -> dict[str, Any]:
    """The bootstrap of the lean profile as plain data: enum names, durations like `0.2s`.

    Raises ConfigError, with the name of the option, for an address that cannot be used.
    """
    runtime = bootstrap.RuntimeLayer(name="kvpicker", static_layer=Struct.from_dict(RUNTIME))
    message = bootstrap.Bootstrap(
        node=core.Node(id="kvpicker-envoy", cluster="kvpicker"),
        static_resources=bootstrap.BootstrapStaticResources(listeners=[entry(options)], clusters=clusters(options)),
        layered_runtime=bootstrap.LayeredRuntime(layers=[runtime]),
    )
    if options.admin is not None:
        message.admin = bootstrap.Admin(address=address(options.admin, path="admin"))
    rendered: dict[str, Any] = message.to_dict(casing=betterproto2.Casing.SNAKE)
    return rendered


def to_yaml(options: EnvoyOptions, *, command: str = "kvpicker envoy-config") -> str:
    """The same as YAML, headed by a comment that says which `command` rendered it."""
    body = yaml.dump(render(options), Dumper=_PlainDumper, sort_keys=False, width=120)
    return f"# Rendered by: {command}\n# README.md beside the goldens explains each setting.\n{body}"


class _PlainDumper(yaml.SafeDumper):
    """Repeats equal parts instead of naming them by anchors, which readers would have to resolve."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 the signature is PyYAML's
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        """Print a script as it is written."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_PlainDumper.add_representer(str, _PlainDumper.represent_text)
