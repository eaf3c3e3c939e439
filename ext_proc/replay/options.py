"""What the user of `kvpicker replay` chose, checked."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ext_proc.core.errors import ConfigError
from ext_proc.replay.contestants import Contestant, contestants
from ext_proc.replay.workloads import RECIPES, Recipe
from ext_proc.sim.fleet.conditions import Conditions
from ext_proc.sim.fleet.presets import PRESETS, REFERENCE, EnginePreset
from ext_proc.sim.fleet.results import Slo

MOST_ENGINES: Final = 1000


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed, on what, and by whom.

    Attributes:
        traces: files to read.
        format: format of the files; empty finds it out.
        recipe: the named workload; None replays the trace as it is.
        engines: the preset of every engine.
        load: share of full load for a named workload, factor on the speed of a trace.
        rate: requests a second in its place; None takes the load.
        requests: how many to replay; None takes all, or the workload's default.
        contestants: who is compared.
        seeds: each gives one run of every contestant.
        warm_up: share of the time of arrivals whose requests do not count in the results.
        slo: when a request counts as served well.
        conditions: what kvpickers get to know, apart from the view.
        jobs: processes.
        json: True prints one JSON object.
        html: where the page goes; None makes none.
    """

    traces: tuple[Path, ...]
    format: str
    recipe: Recipe | None
    engines: tuple[EnginePreset, ...]
    load: float
    rate: float | None
    requests: int | None
    contestants: tuple[Contestant, ...]
    seeds: tuple[int, ...]
    warm_up: float
    slo: Slo
    conditions: Conditions
    jobs: int
    json: bool
    html: Path | None

    @property
    def reference_engines(self) -> float:
        """How many engines of the reference preset prefill as much."""
        return sum(engine.prefill_rate for engine in self.engines) / REFERENCE.prefill_rate


def read_options(arguments: argparse.Namespace) -> Options:
    """Check what was chosen.

    Raises:
        ConfigError: it names the option, and says how to mend it.
    """
    recipe = None if arguments.workload is None else _recipe(arguments.workload)
    traces = tuple(arguments.trace)
    _check_traces(recipe, traces, arguments.format)
    engines = _engines(arguments.engines)
    if arguments.kv_tokens is not None:
        engines = _with_memory(engines, arguments.kv_tokens)
    elif recipe is not None and recipe.kv_factor > 1:
        engines = tuple(
            msgspec.structs.replace(engine, kv_tokens=engine.kv_tokens * recipe.kv_factor) for engine in engines
        )
    default_load = 1.0 if recipe is None else 0.8
    return Options(
        traces=traces,
        format=arguments.format or "",
        recipe=recipe,
        engines=engines,
        load=default_load if arguments.load is None else arguments.load,
        rate=arguments.rate,
        requests=arguments.requests,
        contestants=contestants(arguments.strategies, arguments.view),
        seeds=_seeds(arguments.seeds),
        warm_up=arguments.warm_up,
        slo=Slo(ttft_s=arguments.slo_ttft, prefill_rate=arguments.slo_prefill_rate, tpot_s=arguments.slo_tpot),
        conditions=Conditions(scrape_interval=arguments.scrape, first_token=not arguments.no_first_token),
        jobs=arguments.jobs or os.cpu_count() or 1,
        json=arguments.json,
        html=arguments.html,
    )


def _check_traces(recipe: Recipe | None, traces: Sequence[Path], format_: str | None) -> None:
    """Refuse traces that nobody would read, and a format without a trace."""
    if recipe is None and not traces:
        raise ConfigError(f"name a trace, or a workload with --workload ({', '.join(RECIPES)})", path="TRACE")
    if recipe is not None and traces and not recipe.takes_trace:
        raise ConfigError(f"`{recipe.name}` is made without a trace; leave out TRACE or --workload", path="TRACE")
    if len(traces) > 1 and (recipe is None or recipe.name != "uniq"):
        raise ConfigError("several traces go with --workload uniq only, which takes lengths from them", path="TRACE")
    if format_ and not traces:
        raise ConfigError("there is no trace to read in a format; leave it out, or name one", path="--format")


def _recipe(name: str) -> Recipe:
    if name in RECIPES:
        return RECIPES[name]
    raise ConfigError(f"no workload is called `{name}`; {_hint(name, RECIPES)}", path="--workload")


def _engines(text: str) -> tuple[EnginePreset, ...]:
    """Read `N[:preset]`, several by comma."""
    engines: list[EnginePreset] = []
    for part in text.split(","):
        count, _, name = (piece.strip() for piece in part.partition(":"))
        if not (count.isascii() and count.isdigit() and 0 < int(count[:9]) <= MOST_ENGINES):
            raise ConfigError(f"`{part}`: write N:preset, with N from 1 to {MOST_ENGINES}", path="--engines")
        preset = PRESETS.get(name or REFERENCE.name)
        if preset is None:
            raise ConfigError(f"no preset is called `{name}`; {_hint(name, PRESETS)}", path="--engines")
        engines += [preset] * int(count)
    if len(engines) > MOST_ENGINES:
        raise ConfigError(f"{len(engines)} engines are too many; at most {MOST_ENGINES}", path="--engines")
    return tuple(engines)


def _with_memory(engines: tuple[EnginePreset, ...], kv_tokens: int) -> tuple[EnginePreset, ...]:
    return tuple(msgspec.structs.replace(engine, kv_tokens=kv_tokens) for engine in engines)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"`{text}`: write whole numbers by comma, such as 1,2,3", path="--seeds") from None
    if len(set(seeds)) < len(seeds):
        raise ConfigError("a seed stands twice; that would count one run double", path="--seeds")
    return seeds


def _hint(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
