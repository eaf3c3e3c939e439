"""The small model's folder is one that our own tokenizer can be given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.engines.tiny_model import Shape, make_adapter, make_model
from ext_proc.core.prompts.token_question import TokenQuestion
from ext_proc.sources.local_tokenizer import LocalTokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the model once."""
    return make_model(tmp_path_factory.mktemp("model"), Shape(hidden=64, layers=2, head=32))


def test_conversations_have_tokens(model: Path) -> None:
    """Of a conversation that goes on, the tokens begin with those of what was said before."""
    tokenizer = LocalTokenizer(model, 100_000)
    first = b'"messages":[{"role":"user","content":"one two"}],"add_generation_prompt":false'
    more = first.replace(b"}]", b'},{"role":"assistant","content":"three"}]')
    before, after = (list(tokenizer.tokenize(TokenQuestion(members, chat=True))) for members in (first, more))
    tokenizer.close()
    assert 5 < len(before) < len(after)
    assert after[: len(before)] == before


def test_an_adapter_holds_what_its_header_says(tmp_path: Path) -> None:
    """The numbers fill the file to its last byte, two per layer and module."""
    shape = Shape(hidden=64, layers=2, head=32)
    data = (make_adapter(tmp_path, shape) / "adapter_model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert len(header) == 2 * shape.layers
    assert max(one["data_offsets"][1] for one in header.values()) == len(data) - 8 - size
