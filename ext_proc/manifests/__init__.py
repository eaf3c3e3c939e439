"""Renders the Kubernetes objects by which a gateway sends to kvpicker, one profile per gateway."""

from ext_proc.manifests.command import add_arguments, run
from ext_proc.manifests.options import PROFILES, ManifestOptions
from ext_proc.manifests.render import to_yaml

__all__ = ["PROFILES", "ManifestOptions", "add_arguments", "run", "to_yaml"]
