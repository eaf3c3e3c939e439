"""What a page of metrics says of an engine's sleep."""

from __future__ import annotations

import pytest

from ext_proc.core.sleepers import SleepLevel
from tests.unit.sources.pages import VLLM_PAGE, signals


def page(*samples: str) -> str:
    """Write a page of vLLM."""
    return "\n".join(["vllm:num_requests_running 0", *(f"vllm:engine_sleep_state{line}" for line in samples), ""])


def rank(number: int, awake: object, offloaded: object = 0, discarded: object = 0) -> tuple[str, ...]:
    """Write what one data-parallel rank says."""
    states = {"awake": awake, "weights_offloaded": offloaded, "discard_all": discarded}
    return tuple(
        f'{{engine="{number}",model_name="m",sleep_state="{state}"}} {value}' for state, value in states.items()
    )


@pytest.mark.parametrize(
    ("samples", "asleep", "level"),
    [
        ((), None, SleepLevel.UNKNOWN),
        (('{sleep_state="awake"} 0',), True, SleepLevel.UNKNOWN),
        (('{sleep_state="awake"} 1',), False, SleepLevel.UNKNOWN),
        (rank(0, 1), False, SleepLevel.UNKNOWN),
        (rank(0, 0), True, SleepLevel.PAUSED),
        (rank(0, 0, 1), True, SleepLevel.WEIGHTS_OFFLOADED),
        (rank(0, 0, 0, 1), True, SleepLevel.DISCARD_ALL),
        (rank(0, 0, 1) + rank(1, 0, 1), True, SleepLevel.WEIGHTS_OFFLOADED),
        (rank(0, 0, 1) + rank(1, 0, 0, 1), True, SleepLevel.DISCARD_ALL),
        (rank(0, 0, 1) + rank(1, 1), None, SleepLevel.WEIGHTS_OFFLOADED),
        (rank(0, "NaN", "NaN", "NaN"), None, SleepLevel.UNKNOWN),
        (('{sleep_state="dreaming"} 1',), None, SleepLevel.UNKNOWN),
    ],
)
def test_e17_all_ranks_must_sleep(samples: tuple[str, ...], asleep: bool | None, level: SleepLevel) -> None:
    """Where they do not agree the page says nothing, and the engine has to be asked; so it is with nonsense."""
    read = signals(page(*samples))
    assert (read.asleep, read.sleep_level if asleep else SleepLevel.UNKNOWN) == (
        asleep,
        level if asleep else SleepLevel.UNKNOWN,
    )


def test_e17_a_real_vllm_says_that_it_is_awake() -> None:
    """As it stood on the page of a vLLM 0.32 that had just started."""
    assert signals(VLLM_PAGE).asleep is False


def test_engines_without_sleep_mode_say_nothing() -> None:
    """That is neither awake nor asleep."""
    assert signals("sglang:num_running_reqs 1\n").asleep is None
