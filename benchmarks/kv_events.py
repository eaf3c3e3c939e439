"""What KV events cost: decoding and indexing them, looking a prompt up on many endpoints, and memory."""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time

import msgspec

from benchmarks import proc
from ext_proc.core.kv_feed import KvFeed
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher
from ext_proc.sources.kv_decode import decode

BLOCK_TOKENS = 16
ENDPOINTS = 100
PROMPT_BLOCKS = 512
MILLION = 1_000_000
CASES = (("maps", 512, True), ("arrays", 512, False), ("small", 32, True), ("single", 1, True))
"""Name, blocks per batch, whether events are maps."""

ROUNDS = 5


def payloads(count: int, blocks: int, generator: random.Random, *, as_maps: bool = True) -> list[bytes]:
    """Make batches that each store a prompt and remove the one before, as an engine with a full cache does."""
    made, last = [], list[int]()
    for _ in range(count):
        hashes = [generator.getrandbits(64) for _ in range(blocks)]
        tokens = [generator.randrange(128_000) for _ in range(blocks * BLOCK_TOKENS)]
        events: list[object] = []
        if last:
            events = [_removed(block, as_maps=as_maps) for block in reversed(last)]
        events.append(_stored(hashes, tokens, as_maps=as_maps))
        made.append(msgspec.msgpack.encode([time.time(), events, 0]))
        last = hashes
    return made


def _stored(hashes: list[int], tokens: list[int], *, as_maps: bool) -> object:
    if not as_maps:
        return ["BlockStored", hashes, None, tokens, BLOCK_TOKENS, None, "GPU", None]
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": tokens,
        "block_size": BLOCK_TOKENS, "lora_id": None, "medium": "GPU", "lora_name": None, "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }  # fmt: skip


def _removed(block: int, *, as_maps: bool) -> object:
    if not as_maps:
        return ["BlockRemoved", [block], "GPU"]
    return {"type": "BlockRemoved", "block_hashes": [block], "medium": "GPU", "group_idx": 0}


def blocks_per_second(blocks: int, total: int, *, as_maps: bool = True) -> float:
    """Measure decoding and indexing of blocks that are stored and, one by one, removed, per second of CPU time."""
    batches = payloads(total // blocks, blocks, random.Random(1), as_maps=as_maps)  # noqa: S311  reproducible
    least = math.inf
    for _ in range(ROUNDS):
        feed = ResidentIndex().feed(0)
        began = time.process_time()
        _ingest(feed, batches)
        least = min(least, time.process_time() - began)
    return len(batches) * blocks / least


def _ingest(feed: KvFeed, batches: list[bytes]) -> None:
    for number, payload in enumerate(batches):
        if feed.missing(number) is None:
            feed.receive(number, decode(payload))


def lookup_ms(rounds: int = 300) -> tuple[float, float]:
    """Measure a prompt that every endpoint holds to another depth, between many others; median and p99 of CPU time."""
    index, generator, hasher = ResidentIndex(), random.Random(2), TokenHasher(BLOCK_TOKENS)  # noqa: S311  reproducible
    feeds = [index.feed(slot) for slot in range(ENDPOINTS)]
    prompts = [[generator.randrange(128_000) for _ in range(PROMPT_BLOCKS * BLOCK_TOKENS)] for _ in range(20)]
    for number, prompt in enumerate(prompts):
        for slot, feed in enumerate(feeds):
            depth = PROMPT_BLOCKS if slot % 3 == 0 else generator.randint(1, PROMPT_BLOCKS)
            hashes = [generator.getrandbits(64) for _ in range(depth)]
            event = _stored(hashes, prompt[: depth * BLOCK_TOKENS], as_maps=True)
            feed.receive(number, decode(msgspec.msgpack.encode([0.0, [event], 0])))
    chains, slots, times = [hasher.chain(prompt) for prompt in prompts], list(range(ENDPOINTS)), []
    for number in range(rounds):
        began = time.thread_time_ns()
        index.tokens_held(chains[number % len(chains)], slots)
        times.append((time.thread_time_ns() - began) / 1e6)
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)]


def megabytes_per_million() -> float:
    """Measure a million blocks, all different, over many endpoints."""
    generator = random.Random(3)  # noqa: S311  reproducible
    index = ResidentIndex()
    feeds = [index.feed(slot) for slot in range(ENDPOINTS)]
    before = proc.resident_bytes()
    number = 0
    while len(index) < MILLION:
        hashes = [generator.getrandbits(64) for _ in range(200)]
        tokens = [generator.randrange(128_000) for _ in range(200 * BLOCK_TOKENS)]
        payload = msgspec.msgpack.encode([0.0, [_stored(hashes, tokens, as_maps=True)], 0])
        feeds[number % ENDPOINTS].receive(number // ENDPOINTS, decode(payload))
        number += 1
    return (proc.resident_bytes() - before) / len(index) * MILLION / 1e6


def main() -> None:
    """Run the command; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=200_000, help="blocks per measurement of speed")
    arguments = parser.parse_args()
    megabytes = megabytes_per_million()
    print(f"a million blocks on {ENDPOINTS} endpoints: {megabytes:.0f} MB")
    result: dict[str, float] = {"mb_per_million_blocks": round(megabytes, 1)}
    for name, blocks, as_maps in CASES:
        speed = blocks_per_second(blocks, arguments.blocks, as_maps=as_maps)
        print(f"{name}, {blocks} blocks stored and removed per batch: {speed:,.0f} blocks/s")
        result[f"blocks_per_second_{name}"] = round(speed)
    median, p99 = lookup_ms()
    print(f"look-up of {PROMPT_BLOCKS} blocks on {ENDPOINTS} endpoints: median {median:.4f} ms, p99 {p99:.4f} ms")
    result["lookup_ms"] = round(median, 4)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
