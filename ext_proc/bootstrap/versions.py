"""What older Envoys lack of the settings that are rendered here, and what is lost without them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ext_proc.core.errors import ConfigError

BUILDS: Final[dict[str, str]] = {
    "1.36": "1.36.4",
    "1.37": "1.37.0",
    "1.38": "1.38.3",
    "1.39": "1.39.3",
    "1.40": "1.40.0",
}
"""Versions that configurations are rendered for, oldest first, and the build of each that the tests run."""

OLDEST: Final = next(iter(BUILDS))
NEWEST: Final = next(reversed(BUILDS))


BODY_TWICE: Final = frozenset({"1.36"})
"""Versions that send a body twice that is longer than the limit of BUFFERED_PARTIAL, where a route has retries."""

LIMIT_OF_BODIES: Final = "request_body_buffer_limit"


class Gap(NamedTuple):
    """A setting that not every version has, or heeds."""

    setting: str
    since: str
    loss: str


GAPS: Final = (
    Gap(
        "allow_content_length_header",
        "1.38",
        "bodies reach the engines chunked, without content-length; those of the profile buffered keep it",
    ),
    Gap(
        "selected_host_key",
        "1.38",
        "the engine that served is read from the access log alone, by the address of its connection",
    ),
    Gap(
        LIMIT_OF_BODIES,
        "1.37",
        "the listener's per_connection_buffer_limit_bytes bounds bodies in its place, and every connection may fill it",
    ),
)


def rendered_as(version: str) -> str:
    """Name the version to render for, for an Envoy that calls itself `version` (`1.37.0`).

    One that is newer than all that are known here is taken for the newest.

    Raises:
        ConfigError: it is older than the oldest, or no version.
    """
    try:
        number = _number(version)
    except ValueError:
        raise ConfigError(f"{version!r} is no version of Envoy", path="envoy_version") from None
    if number < _number(OLDEST):
        raise ConfigError(f"Envoy {version} is too old: {OLDEST} or later is needed", path="envoy_version")
    return next(name for name in reversed(BUILDS) if _number(name) <= number)


def gaps(version: str) -> list[Gap]:
    """Return what a version lacks."""
    return [gap for gap in GAPS if _number(version) < _number(gap.since)]


def lacks(version: str, setting: str) -> bool:
    """Tell whether a version lacks a setting."""
    return any(gap.setting == setting for gap in gaps(version))


def without(config: dict[str, Any], lacking: list[Gap]) -> tuple[dict[str, Any], list[Gap]]:
    """Leave settings out wherever they stand; returns the rest, and which of them it had."""
    names = {gap.setting for gap in lacking}
    found: set[str] = set()
    rest: dict[str, Any] = _kept(config, names, found)
    return rest, [gap for gap in lacking if gap.setting in found]


def _kept(part: Any, names: set[str], found: set[str]) -> Any:
    if isinstance(part, list):
        return [_kept(entry, names, found) for entry in part]
    if not isinstance(part, dict):
        return part
    found |= names & part.keys()
    return {name: _kept(value, names, found) for name, value in part.items() if name not in names}


def _number(version: str) -> tuple[int, ...]:
    """Read `1.37.0` as (1, 37); raises ValueError."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
