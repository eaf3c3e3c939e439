"""What the page on endpoint pickers shows can be used as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ext_proc.core import errors
from ext_proc.core.errors import Refusal
from ext_proc.epp import reference
from ext_proc.epp.command import configured
from tests.unit.epp.test_command import flags

PAGE = (Path(__file__).parents[3] / "deploy" / "endpoint-picker.md").read_text("utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=["completion", "encryption"])
def test_examples_are_configurations(tmp_path: Path, text: str) -> None:
    """Each part of a file that is shown makes a configuration with what the command line says."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text(text)
    config, _, _ = configured(flags("--pool-name", "vllm", "--config", str(path)), "")
    pool = config.pools["vllm"]
    assert pool.kubernetes is not None
    assert config.tls is not None
    assert ("caps" in text) == (pool.caps.requests == 64) == (config.envoy.named == 3)
    assert ("client_ca" in text) == (config.tls.plaintext == ("0.0.0.0:9004",))


def test_every_refusal_is_listed_with_a_status_of_the_protocol() -> None:
    """None is forgotten; who is dropped gets 503 or 429 and a reason."""
    listed = reference.refusals()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Refusal)]
    for kind in kinds:
        if kind not in {Refusal, errors.Overload}:
            assert f"`{kind.reason}`" in listed
            assert kind.dropped is None or kind.status in {429, 503}


def test_tables_of_the_page_are_whole() -> None:
    """Every row of a table has as many cells as its head."""
    for table in reference.tables().values():
        cells = {line.count("|") for line in table.splitlines()}
        assert len(cells) == 1, table
