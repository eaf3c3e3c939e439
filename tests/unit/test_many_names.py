"""Floods of names and prompts that clients make up: neither series nor memory grow with them."""

from __future__ import annotations

import gc
import io
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ext_proc.app import Service
from ext_proc.config import load, parse
from ext_proc.core.errors import ConfigError
from ext_proc.core.hashing import PromptHasher
from ext_proc.core.model import Ending, Outcome
from ext_proc.core.prefix_index import ObservedIndex
from ext_proc.ops.tallies import MAX_MODELS
from ext_proc.wire.codec import Encoder
from ext_proc.wire.ext_proc import ExtProcSession
from ext_proc.wire.passing import Passing
from tests.unit.core.builders import request
from tests.unit.wire.picking import body_message, headers_message

CONFIG = """
listen: ["127.0.0.1:0"]
admin: {{listen: "127.0.0.1:0"}}
drain_s: 0
scrape: {{enabled: false}}
health: {{probes: {{enabled: false}}}}
index: {{max_blocks: 1000}}
log: {{level: warning}}
pools:
  main: {{endpoints: ["127.0.0.1:1"], models: {models}}}
"""
KNOWN = "acme/chat-8b"


def grown(work: Callable[[], None]) -> int:
    """Return the bytes that are held after a work and were not before."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def ask(service: Service, model: str) -> None:
    """Have a request for a model decided, and let it end well if it was."""
    session = ExtProcSession(service._open_exchange(), Encoder(3), service._observer, Passing())
    session.receive(headers_message())
    body = {"model": model, "messages": [{"role": "user", "content": "List three rivers."}]}
    session.receive(body_message(json.dumps(body).encode()))
    session.close(delivered=True)
    if len(service._core.ledger):
        (lease,) = service._core.ledger._leases.values()
        outcome = Outcome(decision_id=lease.decision.id, ending=Ending.OK, served="127.0.0.1:1")
        service._core.feedback.settle(outcome, 0.0)


async def series(service: Service) -> set[tuple[str, ...]]:
    """Return the series of the metrics page, each by its name and the values of its labels."""
    async with aiohttp.ClientSession() as client, client.get(f"http://{service.admin_address}/metrics") as answer:
        found = list(text_string_to_metric_families(await answer.text()))
    return {(sample.name, *sample.labels.values()) for family in found for sample in family.samples}


@pytest.mark.parametrize("models", [f"[{KNOWN}]", "[]"], ids=["declared", "not declared"])
async def test_names_of_models_grow_neither_series_nor_memory(tmp_path: Path, models: str) -> None:
    """A flood of names is one label, known models keep theirs meanwhile, and nothing remembers the names (H06).

    The case's 50,000 names are 600 to fill what is bounded and 1,000 to see it grow no more; its 50 MB are 1.
    """
    path = tmp_path / "kvpicker.yaml"
    path.write_text(CONFIG.format(models=models))
    async with Service(load(path), None, io.BytesIO()) as service:
        for number in range(600):
            ask(service, f"m-{number}")
        ask(service, KNOWN)
        before = await series(service)

        def flood() -> None:
            for number in range(1_000):
                ask(service, f"n-{number}")

        held = grown(flood)
        assert held < 1_000_000
        ask(service, KNOWN)
        after = await series(service)
    assert len(after) <= len(before) + MAX_MODELS + 1
    assert not any(label.startswith(("m-", "n-")) for _, *labels in after for label in labels)
    if KNOWN in models:
        assert any(KNOWN in labels for _, *labels in after)


def test_unique_prompts_fill_no_more_than_the_bound() -> None:
    """The index of 200,000 prompts of 8 KB stays as it is once it is full (I05).

    The case's 64 MB are a sixteenth here, its 200,000 prompts 4,000, which fill the index twice; the 100 MB beside the
    bound are 4.
    """
    generator, hasher = random.Random(5), PromptHasher()
    bound_bytes = 4_000_000
    blocks = bound_bytes // 110
    index = ObservedIndex(hasher.tokens, max_blocks=blocks)
    for slot in range(3):
        index.add(slot)
    most = 0

    def soak() -> None:
        nonlocal most
        for number in range(4_000):
            index.learn(number % 3, hasher.chain(request(generator.randbytes(8_192))))
            if number % 500 == 0:
                most = max(most, tracemalloc.get_traced_memory()[0])

    held = grown(soak)
    assert len(index) <= blocks
    assert max(held, most) < bound_bytes + 4_000_000


@pytest.mark.parametrize("size", [1, 16, 63])
def test_blocks_that_would_fill_the_memory_with_entries_are_refused(size: int) -> None:
    """A block size of 1 is a mistake that is named, in both fields (I05)."""
    for field in ("first_block_bytes", "last_block_bytes"):
        with pytest.raises(ConfigError, match=rf"index\.{field}: .*64"):
            parse(f"pools: {{main: {{endpoints: ['10.0.0.11:8000']}}}}\nindex: {{{field}: {size}}}\n")
