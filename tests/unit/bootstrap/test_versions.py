"""What is left out for older Envoys, and what is said of it."""

from __future__ import annotations

import pytest
import yaml

from ext_proc.bootstrap import EnvoyOptions, render, to_yaml
from ext_proc.bootstrap.options import PROFILES, Profile
from ext_proc.bootstrap.versions import BUILDS, GAPS, NEWEST, OLDEST, gaps, lacks, rendered_as, without
from ext_proc.core.errors import ConfigError


@pytest.mark.parametrize(
    ("version", "name"),
    [("1.36.0", "1.36"), ("1.37.0", "1.37"), ("1.40.0-dev", "1.40"), ("1.41.2", "1.40"), ("2.0", "1.40")],
)
def test_an_envoy_is_known_by_its_version(version: str, name: str) -> None:
    """Whatever its patch; one that is newer than all takes what the newest takes."""
    assert rendered_as(version) == name


@pytest.mark.parametrize(
    ("version", "message"),
    [("1.35.9", "Envoy 1.35.9 is too old: 1.36 or later is needed"), ("x", "'x' is no version of Envoy")],
)
def test_an_envoy_that_is_too_old_is_refused(version: str, message: str) -> None:
    """By its version."""
    with pytest.raises(ConfigError, match=message):
        rendered_as(version)


def test_the_newest_lacks_nothing() -> None:
    """And each build belongs to its version."""
    assert gaps(NEWEST) == []
    assert all(rendered_as(build) == name for name, build in BUILDS.items())
    assert lacks(OLDEST, "selected_host_key")
    assert not lacks("1.38", "selected_host_key")


@pytest.mark.parametrize("version", BUILDS)
@pytest.mark.parametrize("profile", PROFILES)
def test_what_a_version_lacks_is_nowhere_and_is_said(profile: Profile, version: str) -> None:
    """The comment names exactly what the newest would have."""
    text = to_yaml(EnvoyOptions(profile=profile, envoy_version=version))
    comment, _, config = text.partition("node:\n")
    assert all(line.startswith("# ") for line in comment.splitlines())
    whole = to_yaml(EnvoyOptions(profile=profile))
    for gap in GAPS:
        lacking = lacks(version, gap.setting)
        assert f"{gap.setting}:" not in config or not lacking
        assert (f"has no {gap.setting} (new in" in " ".join(comment.split())) == (lacking and gap.setting in whole)
    assert yaml.safe_load(text) == render(EnvoyOptions(profile=profile, envoy_version=version))


def test_settings_are_left_out_wherever_they_stand() -> None:
    """In lists and objects of any depth; what is absent is not reported."""
    gap = GAPS[0]
    config = {"a": [{gap.setting: True, "b": 1}], gap.setting: {}}
    assert without(config, list(GAPS)) == ({"a": [{"b": 1}]}, [gap])
    assert without({"a": 1}, list(GAPS)) == ({"a": 1}, [])


@pytest.mark.parametrize(
    ("profile", "version", "attempts"),
    [("lean", NEWEST, 2), ("lean", "1.36", 0), ("buffered", "1.36", 2), ("duplex", NEWEST, 0)],
)
def test_retries_where_they_do_no_harm(profile: Profile, version: str, attempts: int) -> None:
    """Where they do, none are rendered unless they are asked for, and the comment says why."""
    options = EnvoyOptions(profile=profile, envoy_version=version)
    routes = str(render(options)["static_resources"]["listeners"])
    assert (options.attempts_after, routes.count("'num_retries'") > 2) == (attempts, attempts > 0)
    assert ("# Left out, the routes' retry_policy: " in to_yaml(options)) == (attempts == 0)
    asked = EnvoyOptions(profile=profile, envoy_version=version, retries=3)
    assert asked.attempts_after == 3
    assert "'num_retries': 3" in str(render(asked))
    assert "retry_policy: " not in to_yaml(asked).partition("node:")[0]


def test_bodies_are_bounded_by_the_listener_where_nothing_else_does() -> None:
    """Envoy 1.36 does not heed the limit of a virtual host."""
    limits = [
        render(EnvoyOptions(envoy_version=version))["static_resources"]["listeners"][0][
            "per_connection_buffer_limit_bytes"
        ]
        for version in ("1.36", "1.37")
    ]
    assert limits == [4 * 1024 * 1024, 1024 * 1024]
