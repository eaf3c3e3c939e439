"""What an analysis finds; `kvpicker analyze --json` prints exactly these fields."""

from __future__ import annotations

from typing import Final

import msgspec

from ext_proc.analyze.breakers import Breaker
from ext_proc.analyze.engines import PolicyResult
from ext_proc.analyze.families import Family
from ext_proc.analyze.lengths import Spread
from ext_proc.analyze.sessions import Sessions

WHOLE_BLOCKS: Final = "counted in whole blocks and so a little low"
"""How exact the reuse ratio is, wherever it is shown."""


class Source(msgspec.Struct, frozen=True):
    """What was read.

    Attributes:
        files: Names of the files.
        lines: Lines that were not blank.
        requests: Requests analysed.
        other_models: Requests left out because `--model` asks for other models.
        unusable: Lines left out, by reason.
        examples: Places of the first lines left out.
    """

    files: tuple[str, ...]
    lines: int
    requests: int
    other_models: int
    unusable: dict[str, int]
    examples: tuple[str, ...]


class CachePoint(msgspec.Struct, frozen=True):
    """One point of the curve of hit ratio against cache size.

    Attributes:
        tokens: Size of an LRU cache in tokens.
        gib: The same in GiB; null without `--kv-bytes-per-token`.
        hit_ratio: Share of prompt tokens that one such cache, shared by all requests, would have had.
    """

    tokens: int
    gib: float | None
    hit_ratio: float


class ModelShare(msgspec.Struct, frozen=True):
    """The traffic of one model.

    Attributes:
        model: Its name; empty where requests name none.
        requests: Its requests.
        prompt_tokens: Their prompt tokens.
        reuse_ratio: Share of these that earlier prompts began with.
    """

    model: str
    requests: int
    prompt_tokens: int
    reuse_ratio: float


class LengthBand(msgspec.Struct, frozen=True):
    """Requests with prompts of similar length.

    Attributes:
        up_to_tokens: Longest prompt of the band; null for the last band.
        requests: How many requests are in it.
    """

    up_to_tokens: int | None
    requests: int


class Fleet(msgspec.Struct, frozen=True):
    """Engines that the comparison assumes.

    Attributes:
        engines: How many.
        kv_tokens: Tokens that the KV cache of each holds.
        prefill_saved: Share of the tokens that round robin leaves to prefill that prefix-aware routing avoids; from
            0.05 on the advice is that it pays.
        policies: What each way of routing comes to.
    """

    engines: int
    kv_tokens: int
    prefill_saved: float
    policies: tuple[PolicyResult, ...]


class Sampling(msgspec.Struct, frozen=True):
    """How exact the figures are; all ones and zeroes where nothing had to be sampled.

    Attributes:
        curve_rate: Share of blocks that the reuse ratio and the curve rest on at the end; 1 is exact.
        fleet_rate: Share of blocks that the comparison of policies rests on; 1 is exact.
        family_undercount: Requests by which the count of a prefix may be too low.
        compared_requests: Requests that were compared to find what breaks prefixes.
    """

    curve_rate: float
    fleet_rate: float
    family_undercount: int
    compared_requests: int


class Report(msgspec.Struct, frozen=True):
    """All that an analysis finds.

    Attributes:
        source: What was read.
        advice: What follows from it, in words.
        prompt_tokens: Prompt tokens of all requests, estimated at four bytes of text each.
        reuse_ratio: Share of prompt tokens that earlier prompts began with: what an endless cache would have had.
            Counted in whole blocks of the picker, so a little low: engines with smaller blocks find up to a block more
            of each prompt.
        unique_tokens: Tokens of all different blocks, an estimate of the memory that such a cache would take.
        curve: Hit ratio against cache size.
        tokens_for_most: Smallest size of the curve that has nine tenths of the possible hits; null if none has.
        fleet: What routing would gain.
        families: Prefixes that many prompts begin with, the weightiest first.
        breakers: What keeps prefixes from being shared, the worst first.
        prompts: Lengths of prompts in tokens.
        outputs: Lengths of answers in tokens, where the traffic says.
        bands: How prompt lengths are spread.
        sessions: Conversations that grow.
        models: Traffic by model, the most used first.
        sampling: How exact the figures are.
    """

    source: Source
    advice: tuple[str, ...]
    prompt_tokens: int
    reuse_ratio: float
    unique_tokens: float
    curve: tuple[CachePoint, ...]
    tokens_for_most: int | None
    fleet: Fleet
    families: tuple[Family, ...]
    breakers: tuple[Breaker, ...]
    prompts: Spread
    outputs: Spread
    bands: tuple[LengthBand, ...]
    sessions: Sessions
    models: tuple[ModelShare, ...]
    sampling: Sampling
