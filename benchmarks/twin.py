"""The simulated twin of a live fleet: the same engines, requests and news, in the seconds of the wall clock.

A live engine with `--speed s` is an engine whose every step takes 1/s times as long, and that is how kvpicker sees it.
So the twin runs in wall seconds too: its constants are the live engine's divided by the speed, and only reports
multiply times by it. Both engines have the same terms (step, prefill, attention, decode, context), block size, token
budget and order of admission. What differs: the live engine gives a request the memory of its prompt only, the twin
that of one more token; the twin counts the token that is generated to its own context; and the time of Envoy, kvpicker,
HTTP and the event loops exists only live.
"""

from __future__ import annotations

from itertools import count
from typing import Final, NamedTuple

import msgspec

from ext_proc.bootstrap import EnvoyOptions
from ext_proc.config.settings import ScrapeConfig
from ext_proc.replay import shaping
from ext_proc.sim.fleet.conditions import Conditions
from ext_proc.sim.fleet.presets import EnginePreset
from ext_proc.sim.options import EngineOptions
from ext_proc.sim.scheduler import PRESETS
from ext_proc.sim.workload import SimRequest, Workload

_FIRST_NEW_ID: Final = 1 << 56
"""Above the ids of traces and of generated workloads."""


class Contestant(NamedTuple):
    """A strategy and what kvpicker hears of the engines.

    Attributes:
        strategy: its name.
        first_token: whether Envoy shows the first piece of each stream (`--first-token`).
        scrape: whether the engines' metrics are read.
    """

    strategy: str
    first_token: bool = False
    scrape: bool = False

    @property
    def label(self) -> str:
        """What tables call it."""
        sources = [name for name, used in (("first token", self.first_token), ("scrape", self.scrape)) if used]
        return f"{self.strategy} ({' + '.join(sources)})" if sources else self.strategy


def preset(options: EngineOptions) -> EnginePreset:
    """Return the timing and size of a live engine, in wall seconds."""
    own, limits, speed = PRESETS[options.preset], options.limits, options.speed
    return EnginePreset(
        name=f"{options.preset} at speed {speed:g}",
        step_s=own.a / speed,
        prefill_s=own.b / speed,
        attention_s=own.e / speed,
        decode_s=own.c / speed,
        context_s=own.d / speed,
        kv_tokens=limits.kv_tokens,
        step_tokens=limits.token_budget,
        max_running=limits.max_num_seqs,
    )


def conditions(contestant: Contestant) -> Conditions:
    """Return what kvpicker hears behind Envoy, and how late: an access log entry waits half a flush on the average.

    Live clients name their conversations.
    """
    return Conditions(
        end_lag=EnvoyOptions().log_flush / 2,
        first_token=contestant.first_token,
        scrape_interval=ScrapeConfig().interval_s if contestant.scrape else None,
        sessions=True,
    )


def paced(workload: Workload, speed: float) -> Workload:
    """Turn engine seconds, of arrivals and of thinking, into wall seconds."""
    requests = tuple(shaping.faster(workload.requests, speed))
    return msgspec.structs.replace(workload, requests=requests)


def shortened(workload: Workload, factor: float) -> Workload:
    """Make answers shorter, and with them the later turns of conversations; what users say keeps its length."""
    ids, size = count(_FIRST_NEW_ID), workload.block_tokens
    made: list[SimRequest] = []
    for request in workload.requests:
        output = max(round(request.output_tokens * factor), 1)
        prompt, blocks = request.prompt_tokens, request.blocks
        if request.after is not None:
            before, old = made[request.after], workload.requests[request.after]
            prompt += before.prompt_tokens + before.output_tokens - old.prompt_tokens - old.output_tokens
            blocks = _filled(before.blocks + before.output_blocks, prompt // size, ids)
        answer = _filled(blocks, (prompt + output) // size, ids)[len(blocks) :]
        made.append(
            msgspec.structs.replace(
                request, prompt_tokens=prompt, output_tokens=output, blocks=blocks, output_blocks=answer
            )
        )
    return msgspec.structs.replace(workload, requests=tuple(made))


def _filled(blocks: tuple[int, ...], length: int, ids: count[int]) -> tuple[int, ...]:
    """Return blocks with new ones up to a length."""
    return blocks + tuple(next(ids) for _ in range(length - len(blocks)))
