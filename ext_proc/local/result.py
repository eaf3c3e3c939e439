"""What the demonstration came to, as numbers."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import msgspec

from ext_proc.bootstrap import binary as envoy


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a demonstration; `--json` prints it.

    Attributes:
        requests: requests of the demonstration.
        failures: those that were not answered.
        cached_ratio: share of prompt tokens that came from the engines' caches; None if the engines do not say.
        round_robin_cached_ratio: what round robin would have got; None if that cannot be known.
        added_ms_p50: milliseconds that kvpicker adds to the median tiny request; None if not measured.
        versions: of the programs and libraries that took part.
        error: why the demonstration failed; empty if it did not.
    """

    requests: int
    failures: int
    cached_ratio: float | None
    round_robin_cached_ratio: float | None
    added_ms_p50: float | None
    versions: dict[str, str]
    error: str = ""


def versions(binary: Path | None) -> dict[str, str]:
    """Name the versions that matter; without an Envoy binary its version is left out.

    Raises:
        ConfigError: the binary is no Envoy.
    """
    found = {name: version(name) for name in ("kvpicker", "grpcio", "protobuf")}
    found["python"] = platform.python_version()
    if binary is not None:
        found["envoy"] = envoy.version(binary)
    return {name: found[name] for name in ("kvpicker", "envoy", "python", "grpcio", "protobuf") if name in found}


def unknown(error: str) -> Result:
    """Make the result of a demonstration that could not be held."""
    return Result(
        requests=0,
        failures=0,
        cached_ratio=None,
        round_robin_cached_ratio=None,
        added_ms_p50=None,
        versions=versions(None),
        error=error,
    )
