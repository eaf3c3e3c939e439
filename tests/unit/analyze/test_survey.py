"""All measurements together: what follows from them, and that they stay small."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec
import pytest

from ext_proc.analyze import curve, engines, families
from ext_proc.analyze.advice import advise
from ext_proc.analyze.options import Options
from ext_proc.analyze.record import Record
from ext_proc.analyze.report import Report, Source
from ext_proc.analyze.survey import Survey
from tests.unit.analyze.bodies import hashed


def surveyed(records: Iterable[Record], **options: int) -> Report:
    """Measure records."""
    survey = Survey(Options(**options))
    for record in records:
        survey.add(record)
    source = Source(("made",), survey.requests, survey.requests, survey.other_models, {}, ())
    return survey.report(source)


def test_figures_worked_out_by_hand() -> None:
    """Four requests of 250 tokens: the second and fourth find 200 and 100 tokens of earlier ones."""
    chains = ([1, 2], [1, 2], [3, 4], [3, 5])
    report = surveyed(hashed(chain, rest=50) for chain in chains)
    assert report.prompt_tokens == 1000
    assert report.reuse_ratio == pytest.approx(0.3)
    assert report.unique_tokens == 500
    assert report.curve[-1].hit_ratio == pytest.approx(0.3)
    assert report.tokens_for_most == 1024
    assert report.prompts.count == 4
    assert [band.requests for band in report.bands] == [4, 0, 0, 0, 0, 0, 0]
    assert report.advice[0] == "Only 4 requests: take the figures as a hint."


def test_the_curve_reaches_the_whole_fleet() -> None:
    """Its points rise, end when nothing more can be won, and hold the cache of one engine and of all."""
    generator = random.Random(1)
    chains = [[generator.randrange(400), generator.getrandbits(64)] for _ in range(2000)]
    report = surveyed((hashed(chain) for chain in chains), engines=3, kv_tokens=5000)
    sizes = [point.tokens for point in report.curve]
    ratios = [point.hit_ratio for point in report.curve]
    assert {5000, 15_000} <= set(sizes)
    assert sizes == sorted(sizes)
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(report.reuse_ratio)


def test_a_hot_prefix_is_warned_of() -> None:
    """What most requests begin with would gather all of them on one engine."""
    generator = random.Random(2)
    report = surveyed(hashed([1, 2, 3, 4, generator.getrandbits(64)]) for _ in range(300))
    assert any("100% of requests begin with the same 400 tokens" in sentence for sentence in report.advice)
    assert any("hardly matters where a request goes" in sentence for sentence in report.advice)


@pytest.mark.parametrize(("saved", "pays"), [(0.3, True), (0.05, True), (0.04, False), (-0.1, False)])
def test_routing_pays_by_the_prefill_it_saves(saved: float, pays: bool) -> None:
    """From 95 to 96.5 % of hits is a third less work, though it is 1.5 hundredths of all tokens."""
    report = surveyed(hashed([number % 20, 7]) for number in range(300))
    fleet = msgspec.structs.replace(report.fleet, prefill_saved=saved)
    advice = advise(msgspec.structs.replace(report, fleet=fleet)).advice
    assert ("Prefix-aware routing pays" in advice[0]) is pays
    assert ("hardly matters where a request goes" in advice[0]) is not pays


def test_one_engine_has_nothing_to_route() -> None:
    """The advice then is about its cache."""
    report = surveyed((hashed([number % 5, 7]) for number in range(300)), engines=1)
    assert any("With one engine there is nothing to route" in sentence for sentence in report.advice)


def test_memory_stays_bounded_on_a_long_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand different blocks through small bounds: every structure keeps within its own."""
    monkeypatch.setattr(curve.ReuseCurve.__init__, "__defaults__", (1000,))
    monkeypatch.setattr(families.FamilyCounter.__init__, "__defaults__", (2000,))
    monkeypatch.setattr(engines, "_MOST_BLOCKS", 4000)
    survey, generator = Survey(Options(engines=4, kv_tokens=1_000_000)), random.Random(3)
    for number in range(10_000):
        chain = [number % 50, *(generator.getrandbits(64) for _ in range(10))]
        survey.add(hashed(chain, at=float(number)))
    held = [cache for fleet in survey._comparison._fleets.values() for cache in fleet.caches]
    assert len(survey._curve) <= 1000
    assert len(survey._families) <= 2000
    assert sum(map(len, held)) <= 4000
    assert len(survey._prompts) < 10
    report = survey.report(Source(("made",), 10_000, 10_000, 0, {}, ()))
    assert report.sampling.curve_rate < 0.02
    assert report.sampling.fleet_rate < 0.02
    assert report.sampling.family_undercount > 0
    assert report.reuse_ratio == pytest.approx(1 / 11, abs=0.05)


def test_many_models_share_one_line() -> None:
    """Names of strangers cannot fill memory."""
    survey = Survey(Options())
    for number in range(500):
        survey.add(Record(model=f"m{number}", chain=[], sizes=[], prompt_tokens=10))
    assert len(survey._models) == 101
    assert survey.report(Source((), 500, 500, 0, {}, ())).models[0].model == "(others)"
