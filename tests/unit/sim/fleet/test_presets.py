"""The timing of simulated engines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.sim import scheduler
from ext_proc.sim.fleet import presets
from ext_proc.sim.fleet.presets import PRESETS


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_the_documented_table_is_what_the_code_holds(preset: presets.EnginePreset) -> None:
    """The row of the module's docstring has the numbers of the preset."""
    values = (
        preset.step_s * 1e3,
        preset.prefill_s * 1e6,
        preset.attention_s * 1e9,
        preset.decode_s * 1e6,
        preset.context_s * 1e9,
        preset.kv_tokens,
        preset.step_tokens,
    )
    row = next(line for line in (presets.__doc__ or "").splitlines() if line.startswith(f"| {preset.name} |"))
    assert [float(cell.replace(",", "")) for cell in row.split("|")[2:-1]] == pytest.approx(values)


def test_engines_over_http_have_the_same_presets() -> None:
    """One set of names: what `sim-engine` plays is what `replay` simulates."""
    assert list(scheduler.PRESETS) == list(PRESETS)
    assert [made.b for made in scheduler.PRESETS.values()] == [preset.prefill_s for preset in PRESETS.values()]


@given(st.sampled_from(list(PRESETS.values())), st.integers(1, 2000), st.integers(1, 256), st.integers(0, 400_000))
def test_rounds_are_the_inverse_of_seconds(
    preset: presets.EnginePreset, rounds: int, decoding: int, context: int
) -> None:
    """How many rounds fit in the time that rounds take is their number."""
    seconds = preset.decode_seconds(rounds, decoding, context)
    assert preset.rounds_in(seconds, decoding, context) == pytest.approx(rounds)
