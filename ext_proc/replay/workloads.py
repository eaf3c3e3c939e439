"""The named workloads, and what load 1.0 means for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from random import Random
from typing import Final

import msgspec

from ext_proc.core.errors import ConfigError
from ext_proc.replay import generators, shaping
from ext_proc.replay.lines import COARSE_BLOCK
from ext_proc.replay.token_traces import Mooncake
from ext_proc.replay.traces import Trace
from ext_proc.sim.workload import SimRequest, Workload

WINDOWS = 2
"""Windows of a trace laid over each other: that is about the rate eight engines bear, at the trace's own speed."""


class Order(msgspec.Struct, frozen=True):
    """What a workload is to be.

    Attributes:
        rate: requests a second over all engines, on the average.
        count: about how many requests.
        seed: equal seeds give equal workloads.
        traces: what to make it from; may be empty where the recipe needs none.
    """

    rate: float
    count: int
    seed: int
    traces: tuple[Trace, ...] = ()


class Recipe(msgspec.Struct, frozen=True):
    """How a named workload is made.

    Attributes:
        name: what `--workload` calls it.
        about: what it is, in a few words.
        rate: requests a second and engine at load 1.0, for the preset `h100-8b`: the highest rate at which a picker
            that knows everything keeps 85 % of the requests within the service level.
        count: how many requests by default.
        make: makes its requests; gives them with the tokens of a block.
        needs: which trace, with ids of blocks, it is made from; empty if it needs none.
        takes_trace: True if it can be made from a trace.
        kv_factor: engines have that many times their KV memory.
        trace_rate: the same as `rate`, where it is made from a trace though it need not be; 0 if there is no other.
    """

    name: str
    about: str
    rate: float
    count: int
    make: Callable[[Order, Random], tuple[int, Sequence[SimRequest]]]
    needs: str = ""
    takes_trace: bool = True
    kv_factor: int = 1
    trace_rate: float = 0.0

    def full_rate(self, traces: Sequence[Trace]) -> float:
        """Return the requests a second and engine at load 1.0."""
        return self.trace_rate if traces and self.trace_rate else self.rate


def make(recipe: Recipe, order: Order) -> Workload:
    """Make a named workload.

    Raises:
        ConfigError: it is made from a trace, and there is none or the wrong kind.
    """
    if recipe.needs and not any(trace.format == Mooncake.name for trace in order.traces):
        found = f", and {order.traces[0].name} is of the format {order.traces[0].format}" if order.traces else ""
        raise ConfigError(
            f"`{recipe.name}` is made from {recipe.needs}, or another with ids of blocks{found}: "
            f"kvpicker replay FILE --workload {recipe.name}",
            path="--workload",
        )
    block_tokens, requests = recipe.make(order, Random(f"{recipe.name} {order.seed}"))  # noqa: S311  reproducible
    return Workload(recipe.name, block_tokens, tuple(requests))


def from_trace(trace: Trace, *, load: float, rate: float | None, seed: int) -> Workload:
    """Make a workload of a trace as it is.

    Args:
        trace: what was read.
        load: how many times as fast as it was recorded; ignored where `rate` is given.
        rate: requests a second, on the average.
        seed: for what the trace does not say: times within ticks of a coarse clock, or all times if it has none.

    Raises:
        ConfigError: the trace has no times and no rate is given.
    """
    generator = Random(f"trace {seed}")  # noqa: S311  reproducible
    if not trace.is_timed:
        if rate is None:
            raise ConfigError("the trace has no times; say how many requests come in a second", path="--rate")
        return Workload(trace.name, trace.block_tokens, tuple(shaping.poisson(trace.requests, rate, generator)))
    requests = shaping.spread(trace.requests, generator)
    requests = shaping.faster(requests, load) if rate is None else shaping.at_rate(requests, rate)
    return Workload(trace.name, trace.block_tokens, tuple(requests))


def fitting(workload: Workload, room: int) -> tuple[Workload, int]:
    """Leave out what an engine could not serve even if it had nothing else to do, and what follows upon that.

    Args:
        workload: what is asked.
        room: KV memory of the smallest engine, tokens.

    Returns:
        The rest, and how many requests were left out.
    """
    size = workload.block_tokens
    kept: list[SimRequest] = []
    places: dict[int, int] = {}
    for place, request in enumerate(workload.requests):
        is_small = -(-(request.prompt_tokens + request.output_tokens) // size) <= room // size
        if is_small and (request.after is None or request.after in places):
            places[place] = len(kept)
            after = None if request.after is None else places[request.after]
            kept.append(request if after == request.after else msgspec.structs.replace(request, after=after))
    return msgspec.structs.replace(workload, requests=tuple(kept)), len(workload.requests) - len(kept)


def _chat(order: Order, generator: Random) -> tuple[int, Sequence[SimRequest]]:
    return generators.FINE_BLOCK, generators.chat(order.rate, order.count, generator)


def _hot(order: Order, generator: Random) -> tuple[int, Sequence[SimRequest]]:
    return generators.FINE_BLOCK, generators.hot(order.rate, order.count, generator)


def _uniq(order: Order, generator: Random) -> tuple[int, Sequence[SimRequest]]:
    lengths = tuple(chain.from_iterable(trace.requests for trace in order.traces))
    return COARSE_BLOCK, generators.unique(order.rate, order.count, generator, lengths)


def _windows(order: Order, generator: Random) -> tuple[int, Sequence[SimRequest]]:
    trace = order.traces[0]
    if not trace.is_timed:
        raise ConfigError("the trace has no times, so no windows of it can be laid over each other", path="--workload")
    requests = shaping.spread(trace.requests, generator)
    requests = shaping.overlaid(requests, WINDOWS, order.count, generator)
    return trace.block_tokens, shaping.at_rate(requests, order.rate)


def _bursty(order: Order, generator: Random) -> tuple[int, Sequence[SimRequest]]:
    block_tokens, requests = (_windows if order.traces else _uniq)(order, generator)
    return block_tokens, shaping.bursty(requests, generator)


_CONVERSATION: Final = "Mooncake's trace of conversations (conversation_trace.jsonl)"
_SYNTHETIC: Final = "Mooncake's synthetic trace (synthetic_trace.jsonl)"

RECIPES: Final[Mapping[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        Recipe("chat", "sessions of 5 turns, 4 shared system prompts", 9.8, 24_000, _chat, takes_trace=False),
        Recipe("hot", "8 hot prefixes of 6,144 tokens, 200 tokens of its own", 16.0, 8_000, _hot, takes_trace=False),
        Recipe("uniq", "prompts that share nothing", 17.0, 8_000, _uniq),
        Recipe("bursty", "8 s at 2.6 times the rate, 22 s at 0.42 times", 12.75, 4_000, _bursty, trace_rate=0.75),
        Recipe("conv", "long conversations", 1.0, 4_000, _windows, _CONVERSATION),
        Recipe("convL", "long conversations, 4 times the KV memory", 1.25, 4_000, _windows, _CONVERSATION, kv_factor=4),
        Recipe("synth", "long conversations that share more", 1.0, 3_000, _windows, _SYNTHETIC),
    )
}
