"""Settings of Envoy's that keep kvpicker from its part are found by what comes, and by what does not."""

from __future__ import annotations

import pytest

from ext_proc.core.misfits import MENDS, WINDOW_S, Counts, Misfit, MisfitWatch

WELL = Counts(decided=20, joined=22, unjoined=3, finished=20, attempts=22, elsewhere=2)


def plus(one: Counts, two: Counts) -> Counts:
    """Add counts."""
    return Counts(*map(sum, zip(one, two, strict=True)))


def judged(*windows: Counts, log_silent: bool = False) -> tuple[list[list[Misfit]], frozenset[Misfit]]:
    """Let a watch see what came in some windows; returns what was new in each, and what is present at last."""
    watch, total, told = MisfitWatch(Counts(), 0.0), Counts(), []
    for number, window in enumerate(windows, 1):
        total = plus(total, window)
        told.append(watch.look(total, number * WINDOW_S, log_silent=log_silent))
    return told, watch.present


@pytest.mark.parametrize(
    ("window", "times", "misfit"),
    [
        (Counts(headless=9), 1, Misfit.HEADERS_NOT_SENT),
        (Counts(decided=9, unread=9, joined=9), 1, Misfit.BODY_NOT_SENT),
        (Counts(unread=9), 1, Misfit.BODY_NOT_SENT),
        (Counts(decided=20, joined=20, finished=20, attempts=20, elsewhere=9), 1, Misfit.PICK_NOT_OBEYED),
        (Counts(decided=9, unjoined=9), 3, Misfit.DECISION_NOT_LOGGED),
    ],
)
def test_each_misfit_is_told_once(window: Counts, times: int, misfit: Misfit) -> None:
    """For as long as it lasts, and again when it comes back."""
    told, present = judged(*[window] * times, window, WELL, *[window] * times)
    assert [new for new in told if new] == [[misfit], [misfit]]
    assert told[times - 1] == [misfit]
    assert present == {misfit}


def test_an_envoy_that_is_set_well_is_not_complained_of() -> None:
    """Neither for retries, nor for requests that it placed by itself."""
    assert judged(WELL, WELL, WELL) == ([[], [], []], frozenset())


@pytest.mark.parametrize(
    "window",
    [
        Counts(headless=4),
        Counts(decided=90, headless=9),
        Counts(decided=90, unread=9),
        Counts(decided=9, unread=4),
        Counts(finished=9, attempts=9, elsewhere=9),
        Counts(finished=20, attempts=29, elsewhere=9),
        Counts(finished=900, attempts=900, elsewhere=20),
        Counts(unjoined=900),
        Counts(decided=9, joined=1, unjoined=900),
    ],
)
def test_a_few_are_no_setting(window: Counts) -> None:
    """An odd client, a retry, an engine that just came: none of these is told."""
    assert judged(*[window] * 5) == ([[]] * 5, frozenset())


def test_a_quiet_window_changes_nothing() -> None:
    """What it cannot tell stays as it was."""
    told, present = judged(Counts(decided=9, unread=9, joined=9), Counts())
    assert (told, present) == ([[Misfit.BODY_NOT_SENT], []], {Misfit.BODY_NOT_SENT})


def test_it_is_judged_once_a_window() -> None:
    """A look in between says nothing, and takes nothing from the window."""
    watch = MisfitWatch(Counts(), 0.0)
    assert watch.look(Counts(headless=3), WINDOW_S / 2, log_silent=False) == []
    assert watch.look(Counts(headless=6), WINDOW_S, log_silent=False) == [Misfit.HEADERS_NOT_SENT]


def test_a_silent_access_log_is_told() -> None:
    """As long as it is silent."""
    told, present = judged(Counts(decided=9), Counts(decided=9), log_silent=True)
    assert (told, present) == ([[Misfit.NO_ACCESS_LOG], []], {Misfit.NO_ACCESS_LOG})


def test_every_misfit_has_a_mend() -> None:
    """Who is told of one is told what to do."""
    assert set(MENDS) == set(Misfit)
