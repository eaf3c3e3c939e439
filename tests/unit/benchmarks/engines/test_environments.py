"""What an environment is made of is written down beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.engines import environments


def test_a_wheel_is_asked_for_what_it_needs() -> None:
    """Torch and its kin are left out, and what only an extra needs."""
    told = environments.asked_for(
        "Name: x\nRequires-Dist: torch==2.13.0+cpu\nRequires-Dist: torchvision\nRequires-Dist: numpy\n"
        'Requires-Dist: torchmetrics ; extra == "more"\nRequires-Dist: torch-like>=1\n'
    )
    assert told == ["numpy", "torch-like>=1"]


def test_what_is_there_is_used_again_and_another_version_is_not(tmp_path: Path) -> None:
    """An environment of the same recipe is not made anew; one of another version is."""
    environment = environments.Environment(tmp_path / "some")
    environment.folder.mkdir()
    assert not environments.is_made(environment, ["some==1"])
    environments.stamp(environment, ["some==1"])
    assert environments.is_made(environment, ["some==1"])
    assert not environments.is_made(environment, ["some==2"])
    assert environments.peer(tmp_path, "some==1").folder == environment.folder


def test_a_step_that_fails_is_told() -> None:
    """The end of what an installer said is the error's text."""
    with pytest.raises(environments.InstallError, match="no such package"):
        environments._run(sys.executable, "-c", "raise SystemExit('no such package')")
