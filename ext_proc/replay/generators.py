"""Makes requests that no trace has: chat sessions, hot prefixes and prompts that share nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from random import Random

from ext_proc.replay.lines import COARSE_BLOCK, Unshared
from ext_proc.replay.shaping import poisson
from ext_proc.sim.workload import SimRequest

FINE_BLOCK = 64
"""Tokens of a block in chat and hot: prompts differ in their last few hundred tokens."""

SYSTEM_PROMPTS = 4
SYSTEM_TOKENS = 2048
MEAN_TURNS = 5.0
THINK_SECONDS = 8.0
# With these lengths a picker that knows everything finds, at load 0.8 and 0.95 on eight H100s, TTFT 0.048 and 0.075 s.
USER_TOKENS = 270
ANSWER_TOKENS = 330

HOT_PREFIXES = 8
HOT_TOKENS = 6144
HOT_ZIPF = 1.2
HOT_UNIQUE = 200
HOT_OUTPUT = 150

_SECONDS_PER_TOKEN = 0.025

_TOLERATED_SECONDS = 0.01
_LONGEST_MESSAGE = 8192

_FRACTIONS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_CLASSES = (
    (
        0.687,
        (2, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2735, 4083, 4142, 14050),
        (7, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 1000),
    ),
    (
        0.313,
        (3, 75, 147, 385, 770, 1075, 1469, 1909, 2433, 3193, 5194, 7315, 7436, 7437),
        (6, 6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 252, 1899),
    ),
)
"""Share, prompt and output tokens at _FRACTIONS of Azure's LLM inference traces of 2023: conversation and code.

Within a class prompt and output are next to independent (correlation -0.11 and 0.00).
"""


def chat(rate: float, count: int, generator: Random) -> list[SimRequest]:
    """Make chat sessions whose turns follow each other: a turn comes when its user has read the answer and thought.

    Sessions begin as a Poisson process of rate/5, have 5 turns on the average (geometric), 8 s of thinking
    (exponential), one of four system prompts of 2,048 tokens, messages of about 270 and answers of about 330 tokens
    (log-normal).
    Turns that would come after the last session began are left out, so that load does not fade at the end.
    """
    ids = Unshared()
    systems = [ids.blocks(SYSTEM_TOKENS, FINE_BLOCK) for _ in range(SYSTEM_PROMPTS)]
    horizon = _seconds_until(count / rate)
    result: list[SimRequest] = []
    at = 0.0
    while at <= horizon or not result:
        _session(result, at, horizon, generator.choice(systems), ids, generator)
        at += generator.expovariate(rate / MEAN_TURNS)
    return result


def _seconds_until(full: float) -> float:
    """Return after how many seconds as many requests have come as at full load in `full` seconds.

    Load grows while the first sessions have their later turns: of a session of age a, 1 + 4 (1 - exp(-a/T)) turns have
    come, T being five times the mean time from turn to turn. Integrated and solved by bisection.
    """
    scale = MEAN_TURNS * (THINK_SECONDS + ANSWER_TOKENS * _SECONDS_PER_TOKEN)
    late = 1 - 1 / MEAN_TURNS
    low, high = full, full + late * scale
    while high - low > _TOLERATED_SECONDS:
        middle = (low + high) / 2
        if middle - late * scale * (1 - exp(-middle / scale)) < full:
            low = middle
        else:
            high = middle
    return high


def _session(
    result: list[SimRequest],
    at: float,
    horizon: float,
    history: tuple[int, ...],
    ids: Unshared,
    generator: Random,
) -> None:
    """Add the turns of one session; `history` are the blocks of its system prompt."""
    name = f"session-{len(result)}"
    held = SYSTEM_TOKENS
    think = at
    after: int | None = None
    while True:
        prompt = held + min(_lognormal(USER_TOKENS, 1.0, generator), _LONGEST_MESSAGE)
        output = min(_lognormal(ANSWER_TOKENS, 0.8, generator), _LONGEST_MESSAGE)
        held = prompt + output
        blocks = history + ids.blocks((prompt // FINE_BLOCK - len(history)) * FINE_BLOCK, FINE_BLOCK)
        answer = ids.blocks((held // FINE_BLOCK - len(blocks)) * FINE_BLOCK, FINE_BLOCK)
        history = blocks + answer
        result.append(SimRequest(think, prompt, output, blocks, answer, name, after))
        after = len(result) - 1
        think = generator.expovariate(1 / THINK_SECONDS)
        at += output * _SECONDS_PER_TOKEN + think
        if generator.random() < 1 / MEAN_TURNS or at > horizon:
            return


def hot(rate: float, count: int, generator: Random) -> list[SimRequest]:
    """Make requests that begin with one of eight long prefixes, chosen by Zipf's law; only about 200 tokens are new."""
    ids = Unshared()
    prefixes = [ids.blocks(HOT_TOKENS, FINE_BLOCK) for _ in range(HOT_PREFIXES)]
    weights = [(rank + 1) ** -HOT_ZIPF for rank in range(HOT_PREFIXES)]
    made = []
    for prefix in generator.choices(prefixes, weights, k=count):
        unique = _lognormal(HOT_UNIQUE, 0.4, generator)
        output = _lognormal(HOT_OUTPUT, 0.4, generator)
        made.append(SimRequest(0.0, HOT_TOKENS + unique, output, prefix + ids.blocks(unique, FINE_BLOCK)))
    return poisson(made, rate, generator)


def unique(rate: float, count: int, generator: Random, lengths: Sequence[SimRequest] = ()) -> list[SimRequest]:
    """Make requests that share nothing, with the lengths of a trace, or of Azure's traces of 2023 if none is given."""
    ids = Unshared()
    made = []
    for _ in range(count):
        prompt, output = _lengths_of(lengths, generator) if lengths else _azure_lengths(generator)
        made.append(SimRequest(0.0, prompt, output, ids.blocks(prompt, COARSE_BLOCK)))
    return poisson(made, rate, generator)


def _lengths_of(lengths: Sequence[SimRequest], generator: Random) -> tuple[int, int]:
    like = generator.choice(lengths)
    return like.prompt_tokens, like.output_tokens


def _azure_lengths(generator: Random) -> tuple[int, int]:
    kind = _CLASSES[0] if generator.random() < _CLASSES[0][0] else _CLASSES[1]
    return _quantile(kind[1], generator.random()), _quantile(kind[2], generator.random())


def _quantile(values: Sequence[int], fraction: float) -> int:
    place = next(place for place in range(len(_FRACTIONS) - 1) if fraction <= _FRACTIONS[place + 1])
    low, high = _FRACTIONS[place], _FRACTIONS[place + 1]
    return round(values[place] + (values[place + 1] - values[place]) * (fraction - low) / (high - low))


def _lognormal(mean: float, sigma: float, generator: Random) -> int:
    """Return a length with that mean, at least 1."""
    return max(round(exp(generator.gauss(log(mean) - sigma * sigma / 2, sigma))), 1)
