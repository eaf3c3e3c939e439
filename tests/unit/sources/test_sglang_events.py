"""Batches that SGLang 0.5.23 made itself, by its recorder and encoder, and what they must come to.

Of pages of 16 tokens in its radix tree: three of a prompt without salt or adapter, one under the salt `t`, two of the
adapter `legal`. The file is tests/cases/sglang_events.jsonl.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from ext_proc.core.kv_events import Tier
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher
from ext_proc.sources.kv_decode import decode

_FILE = Path(__file__).parents[2] / "cases" / "sglang_events.jsonl"
WEIGHTS = {Tier.GPU: 1.0, Tier.CPU: 0.5, Tier.DISK: 0.25, Tier.EXTERNAL: 0.25}
TOKENS = list(range(100, 148))


def test_what_sglang_tells_is_understood() -> None:
    """Salt and adapter keep apart what has the same tokens; a copy in CPU memory outlives the page on the GPU."""
    index = ResidentIndex()
    feed = index.feed(0, weights=WEIGHTS)
    held = []
    for number, line in enumerate(_FILE.read_text(encoding="ascii").splitlines()):
        batch = decode(base64.b64decode(json.loads(line)["payload"]))
        assert (batch.rank, batch.skipped, feed.receive(number, batch)) == (0, [], [])
        asked = [("", ""), ("", "t"), ("legal", "")]
        chains = [TokenHasher(16).chain(TOKENS, adapter, salt) for adapter, salt in asked]
        held.append([index.tokens_held(chain, [0])[0] for chain in chains])
    assert held == [[48, 16, 32], [16, 16, 32], [16, 16, 0], [0, 0, 0]]
