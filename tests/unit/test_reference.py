"""The documentation says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ext_proc
from ext_proc.reference import documents, filled

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("document", documents(ROOT), ids=lambda path: path.name)
def test_generated_tables_are_current(document: Path) -> None:
    """Nobody changed a command, a strategy, a setting or a metric without `make reference`."""
    text = document.read_text("utf-8")
    assert filled(text) == text


def test_readme_can_be_read_in_a_few_minutes() -> None:
    """It stays within 800 words, drawings and code aside."""
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)
    assert len(re.findall(r"[\w'-]+", text)) <= 800


def test_public_names_are_what_the_package_says() -> None:
    """Authors of strategies find exactly the names that are listed."""
    assert sorted(ext_proc.__all__) == ["Context", "Endpoint", "InferenceRequest", "Ranking", "Strategy"]
    assert all(hasattr(ext_proc, name) for name in ext_proc.__all__)
