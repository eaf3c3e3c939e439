"""Writes what is known of profiles and versions of Envoy as tables."""

from __future__ import annotations

from typing import Any

from ext_proc.bootstrap.document import render
from ext_proc.bootstrap.options import PROFILES, EnvoyOptions, Profile
from ext_proc.bootstrap.versions import BUILDS, GAPS, OLDEST, gaps, without

_COLUMNS = ("version", "tested build", *(f"`{profile}`" for profile in PROFILES))


def profiles() -> str:
    """Return a line per profile."""
    rows = [f"| `{profile}` | {meaning} |" for profile, meaning in PROFILES.items()]
    return "\n".join(["| profile | what it means |", "|---|---|", *rows])


def versions() -> str:
    """Return a line per version, of what each profile has to do without, and what is lost."""
    configs = {profile: render(EnvoyOptions(profile=profile)) for profile in PROFILES}
    rows = [
        f"| {version} | {build} | {' | '.join(_missed(version, profile, configs[profile]) for profile in PROFILES)} |"
        for version, build in BUILDS.items()
    ]
    losses = [f"| `{gap.setting}` | {gap.since} | {gap.loss} |" for gap in GAPS]
    losses += [
        f"| `retry_policy` of the routes of {harmed.profile} | {_healed(harmed)} | {harmed.harm_of_retries} |"
        for harmed in (EnvoyOptions(envoy_version=OLDEST), EnvoyOptions(profile="duplex"))
    ]
    return "\n".join(
        [
            f"| {' | '.join(_COLUMNS)} |",
            "|---" * len(_COLUMNS) + "|",
            *rows,
            "",
            "| left out | rendered from | why, or what is lost |",
            "|---|---|---|",
            *losses,
        ]
    )


def _healed(harmed: EnvoyOptions) -> str:
    """Return the first version in which retries do the profile no harm."""
    profile = harmed.profile
    later = (name for name in BUILDS if not EnvoyOptions(profile=profile, envoy_version=name).harm_of_retries)
    return next(later, "not yet")


def _missed(version: str, profile: Profile, config: dict[str, Any]) -> str:
    _, missed = without(config, gaps(version))
    words = [f"`{gap.setting}`" for gap in missed]
    if EnvoyOptions(profile=profile, envoy_version=version).harm_of_retries:
        words.append("`retry_policy`")
    return f"without {', '.join(words)}" if words else "whole"
