"""Prints the objects of a profile as YAML, each under a comment that says what it does."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Final

import yaml

from ext_proc.manifests.envoy_gateway import envoy_gateway
from ext_proc.manifests.inference_gateways import envoy_ai_gateway, kgateway
from ext_proc.manifests.istio import istio
from ext_proc.manifests.objects import Manifest
from ext_proc.manifests.options import ManifestOptions, Profile

WIDTH = 118

_MAKERS: Final[dict[Profile, Callable[[ManifestOptions], list[Manifest]]]] = {
    "istio": istio,
    "envoy-gateway": envoy_gateway,
    "envoy-ai-gateway": envoy_ai_gateway,
    "kgateway": kgateway,
}


def manifests(profile: Profile, options: ManifestOptions) -> list[Manifest]:
    """All objects of a profile; raises ConfigError, with the name of the option, for what it cannot do."""
    return _MAKERS[profile](options)


def to_yaml(profile: Profile, options: ManifestOptions, *, command: str = "kvpicker envoy-config") -> str:
    """The same as YAML, headed by a comment that says which `command` rendered it."""
    parts = [f"# Rendered by: {command}\n"]
    for why, body in manifests(profile, options):
        comment = textwrap.fill(why, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
        parts.append(f"---\n{comment}\n{yaml.safe_dump(body, sort_keys=False, width=WIDTH)}")
    return "".join(parts)
