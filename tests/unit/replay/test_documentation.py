"""deploy/replay.md documents what can be given and what comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ext_proc.replay.command import EPILOG
from ext_proc.replay.contestants import contestants
from ext_proc.replay.request_bodies import WrappedBody
from ext_proc.replay.results import Engines, Replayed, Report, Row, SeedNumbers
from ext_proc.replay.traces import FORMATS
from ext_proc.replay.workloads import RECIPES
from ext_proc.sim.fleet import presets
from ext_proc.sim.fleet.presets import PRESETS
from ext_proc.sim.fleet.results import Slo

DOCUMENT = (Path(__file__).parents[3] / "deploy" / "replay.md").read_text("utf-8")


@pytest.mark.parametrize("struct", [Report, Replayed, Engines, Slo, Row, SeedNumbers, WrappedBody])
def test_every_key_is_documented(struct: type) -> None:
    """Of the JSON output and of wrapped bodies."""
    missing = [
        name for name in struct.__struct_fields__ if f"`{name}`" not in DOCUMENT and f"`{name}[]`" not in DOCUMENT
    ]
    assert missing == []


@pytest.mark.parametrize("name", [*FORMATS, *RECIPES])
def test_every_name_is_documented(name: str) -> None:
    """Of formats and of workloads."""
    assert f"| `{name}` |" in DOCUMENT


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_documented_as_the_code_has_them(name: str) -> None:
    """With the same row as beside the code, where another test compares it, and in the help."""
    (line,) = [line for line in (presets.__doc__ or "").splitlines() if line.startswith(f"| {name} |")]
    assert line in DOCUMENT.splitlines()
    assert f"* `{name}`" in DOCUMENT
    assert name in EPILOG


@pytest.mark.parametrize("text", [EPILOG, DOCUMENT])
def test_examples_of_strategies_can_be_used(text: str) -> None:
    """Whoever copies one gets what it says."""
    examples = re.findall(r"--strategies '([^']+)'", text)
    assert any(":{" in example for example in examples)
    assert any("scorers={" in example for example in examples)
    for example in examples:
        assert contestants(example, "observed")


@pytest.mark.parametrize("name", RECIPES)
def test_full_load_is_documented(name: str) -> None:
    """The rates stand in the table."""
    (line,) = [line for line in DOCUMENT.splitlines() if line.startswith(f"| `{name}` |")]
    assert f"{RECIPES[name].rate:g}" in line.rpartition("|")[0].rpartition("|")[2]
