"""The scanner finds what a complete parser finds, on real pages and on made ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest as text_page
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_page
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Timestamp

from ext_proc.sim.metrics_page import MetricsPage
from ext_proc.sim.scheduler import PRESETS, Limits, Scheduler
from ext_proc.sources.scrape_dialects import DIALECTS
from ext_proc.sources.scrape_text import Page, Scanner, labels
from tests.unit.sources.pages import VLLM_PAGE

VLLM = Scanner(DIALECTS[0].names())
WANTED = ["ask_depth", "ask_depth_seconds", "ask_depth_total", "ask_x_sum", "ask_x_count"]
SCANNER = Scanner(name.encode() for name in WANTED)

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scanned(page: Page) -> Found:
    """Return the samples of a page by name and labels."""
    return {
        (name.decode(), frozenset(labels(text).items())): value
        for name, series in page.series.items()
        for text, value in series.items()
    }


def parsed(families: Iterable[Any], names: Iterable[bytes]) -> Found:
    """Return the samples with those names that another parser found."""
    wanted = {name.decode() for name in names}
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name in wanted
    }


def same(one: Found, other: Found) -> bool:
    """Compare numbers, of which NaN equals itself."""
    return one.keys() == other.keys() and all(
        one[key] == other[key] or (math.isnan(one[key]) and math.isnan(other[key])) for key in one
    )


def test_a_real_page_is_read_as_by_a_complete_parser() -> None:
    """Nothing that is wanted is overlooked on a page of vLLM, and nothing else is taken."""
    found = scanned(VLLM.scan(VLLM_PAGE))
    assert same(found, parsed(parse_text(VLLM_PAGE.decode()), DIALECTS[0].names()))
    assert len(found) == 16


def test_a_simulated_page_is_read_as_by_a_complete_parser() -> None:
    """The page of the simulated engine has the names of vLLM."""
    page = MetricsPage(Scheduler(PRESETS["h100-8b"], Limits(kv_tokens=1600)), "sim").render()
    found = scanned(VLLM.scan(page))
    assert same(found, parsed(parse_text(page.decode()), DIALECTS[0].names()))
    assert len(found) == 14


class Made(Collector):
    """Exposes ready-made families."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """Return them."""
        return self._families


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LABELS = st.dictionaries(st.sampled_from(["engine", "model_name", "reason"]), TEXT, max_size=3)
VALUES = st.floats() | st.integers(0, 10**9).map(float)
SAMPLES = st.dictionaries(LABELS.map(lambda made: tuple(made.items())), VALUES, max_size=4)


@st.composite
def registries(draw: st.DrawFn) -> CollectorRegistry:
    """Make families, some of them wanted, some with names that begin like wanted ones."""
    names = [*WANTED[:2], "ask_depth_by", "ask_dept", "other", "ask_depths"]
    families: list[Metric] = []
    for name in draw(st.lists(st.sampled_from(names), unique=True)):
        family = GaugeMetricFamily(name, draw(TEXT))
        for labels_, value in draw(SAMPLES).items():
            stamp = draw(st.none() | st.integers(0, 10**9).map(lambda second: Timestamp(second, 0)))
            family.add_sample(name, dict(labels_), value, stamp)
        families.append(family)
    counter = Metric("ask_depth", "x", "counter")
    exemplar = Exemplar({"trace": "a } b # c"}, 1.0, 2.0)
    if not any(family.name == "ask_depth" for family in families):
        counter.add_sample("ask_depth_total", {"engine": "0"}, 5.0, exemplar=exemplar)
        counter.add_sample("ask_depth_created", {"engine": "0"}, 1.76e9)
        families.append(counter)
    if draw(st.booleans()):
        histogram = HistogramMetricFamily("ask_x", "x", labels=["engine"])
        total = draw(st.floats(0, 1e6))
        histogram.add_metric(["0"], [("1.0", 2.0, exemplar), ("+Inf", 3.0, None)], total)
        families.append(histogram)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Made(draw(st.permutations(families))))
    return registry


@given(registries())
def test_any_text_page_is_read_as_by_a_complete_parser(registry: CollectorRegistry) -> None:
    """Odd labels, timestamps, NaN and infinities make no difference between the two parsers."""
    page = text_page(registry)
    assert same(scanned(SCANNER.scan(page)), parsed(parse_text(page.decode()), map(str.encode, WANTED)))


@given(registries())
def test_any_openmetrics_page_is_read_as_by_a_complete_parser(registry: CollectorRegistry) -> None:
    """Exemplars, creation times and the end mark make none either."""
    page = openmetrics_page(registry)
    families = parse_openmetrics(re.sub(r"(?m)^# (HELP|UNIT).*\n", "", page.decode()))
    assert same(scanned(SCANNER.scan(page)), parsed(families, map(str.encode, WANTED)))


@given(st.lists(st.sampled_from([0.0, 1.5, 1e9, math.nan, math.inf]), min_size=16, max_size=16))
def test_a_page_that_looks_like_the_last_is_read_as_if_it_were_the_first(values: list[float]) -> None:
    """Going by the layout of the page before gives what a search in full gives, whatever the values are."""
    layout = VLLM.scan(VLLM_PAGE).layout
    assert layout is not None
    lines = VLLM_PAGE.split(b"\n")
    for place, value in zip(layout.places, values, strict=True):
        lines[place.line] = place.prefix + str(value).encode()
    page = b"\n".join(lines)
    again = VLLM.scan(page, layout)
    assert again.layout is layout
    assert same(scanned(again), scanned(VLLM.scan(page)))


@pytest.mark.parametrize(
    "change",
    [
        (b'running{engine="0"', b'running{engine="1"'),
        (b"vllm:num_requests_running{", b'vllm:num_requests_running{engine="0"} 7.0\nvllm:num_requests_running{'),
        (b"vllm:num_requests_waiting{", b"vllm:num_requests_pending{"),
        (
            b'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0',
            b"vllm:num_requests_running 7.0 1764410000000",
        ),
        (b"vllm:num_preemptions_total{", b"vllm:num_requests_running 7.0\nvllm:num_preemptions_total{"),
        (b"# HELP http_requests_total", b"vllm:num_requests_running 7.0\n# HELP http_requests_total"),
        (b"# HELP vllm:num_requests_running", b"# EOF\n# HELP vllm:num_requests_running"),
    ],
    ids=["another rank", "one more rank", "renamed", "timestamp", "far away", "in the end", "end mark"],
)
def test_a_layout_is_not_believed_against_the_page(change: tuple[bytes, bytes]) -> None:
    """When samples came, went or look otherwise, the page is searched in full."""
    page = VLLM_PAGE.replace(*change)
    assert page != VLLM_PAGE
    again = VLLM.scan(page, VLLM.scan(VLLM_PAGE).layout)
    assert scanned(again) == scanned(VLLM.scan(page))


@given(st.integers(1, len(VLLM_PAGE) - 1))
def test_a_truncated_page_has_no_wrong_numbers(length: int) -> None:
    """Wherever a page is cut, what is read of it is what the whole page says."""
    page = VLLM.scan(VLLM_PAGE[:length])
    assert page.truncated == (VLLM_PAGE[length - 1 : length] != b"\n")
    assert scanned(page).items() <= scanned(VLLM.scan(VLLM_PAGE)).items()


@pytest.mark.parametrize(
    ("page", "left"),
    [
        (b'ask_depth_total 5\nask_depth{engine="0"} 1\nask_depth{engine="1"} 2\nask_dep', [b"ask_depth_total"]),
        (b"ask_depth 1\nask_x_count 2\nask_x_sum 3\nask_x_bucket{", [b"ask_depth"]),
        (b"ask_depth 1\nask_x_count 2\nask_x_sum 3\nask_x_bucket 2\nask_x_bu", [b"ask_depth"]),
        (b"ask_x_sum 3\nask_depth 1\nask_other 1", [b"ask_x_sum", b"ask_depth"]),
        (b"ask_x_sum 3\nask_depth 1\n# HELP ask_de", [b"ask_x_sum", b"ask_depth"]),
        (b"ask_x_sum 3\n# TYPE ask_depth gauge\nask_depth 1", [b"ask_x_sum"]),
    ],
    ids=["ranks", "sum before buckets", "buckets", "another family", "a comment", "its first line"],
)
def test_a_family_that_may_be_cut_is_left_out(page: bytes, left: list[bytes]) -> None:
    """If the cut may have taken further ranks of a family, the ranks that are left are no sum; others are whole."""
    found = SCANNER.scan(page)
    assert found.truncated
    assert list(found.series) == left


def test_no_cut_between_ranks_makes_a_counter_fall() -> None:
    """A histogram of which only the first rank is there is left out, or its engine would seem to have restarted."""
    ranks = b"".join(
        b'ask_x_bucket{r="%d"} 4\nask_x_count{r="%d"} 4\nask_x_sum{r="%d"} 9\n' % (r, r, r) for r in range(3)
    )
    page = b"ask_depth 1\n" + ranks + b"ask_depth_total 7\n"
    whole = SCANNER.scan(page).series
    for length in range(1, len(page)):
        found = SCANNER.scan(page[:length])
        if found.truncated:
            assert all(found.series[name] == whole[name] for name in found.series)


@pytest.mark.parametrize("end", [b"# EOF", b"# EOF\n", b"# EOF\r\n", b"# EOF\nask_depth 9\n", b"# EOF\nask_depth"])
def test_nothing_behind_the_end_mark_is_read(end: bytes) -> None:
    """The mark ends a page, with or without a line end, and what follows is neither read nor missed."""
    page = SCANNER.scan(b"ask_depth 1\n" + end)
    assert scanned(page) == {("ask_depth", frozenset()): 1.0}
    assert not page.truncated


@pytest.mark.parametrize(
    "line",
    [b"ask_depth", b"ask_depth{", b'ask_depth{a="} 1', b"ask_depth one", b"ask_depth 1 2 3", b"ask_depth 1_0"],
    ids=["no value", "open brace", "open quote", "a word", "too much", "underscore"],
)
def test_a_line_that_is_no_sample_is_counted_and_left_out(line: bytes) -> None:
    """One broken line does not spoil the others."""
    page = SCANNER.scan(line + b"\nask_x_sum 2\n")
    assert list(page.series) == [b"ask_x_sum"]
    assert page.broken == (b" " in line or b"{" in line or line == b"ask_depth")


def test_windows_line_ends_and_blank_lines_are_accepted() -> None:
    """Some exporters write them."""
    page = SCANNER.scan(b"\r\n\nask_depth 1\r\n  \n\task_x_sum{} 2\r\n")
    assert scanned(page) == {("ask_depth", frozenset()): 1.0, ("ask_x_sum", frozenset()): 2.0}


@given(
    st.binary(max_size=200)
    | st.lists(st.sampled_from([b"ask_depth", b"{", b'"', b"\\", b" ", b"\n", b"}", b"1"])).map(b"".join)
)
def test_any_bytes_are_survived(page: bytes) -> None:
    """Whatever comes, there is a result of numbers."""
    found = SCANNER.scan(page)
    assert all(isinstance(value, float) for series in found.series.values() for value in series.values())


def test_hostile_lines_take_no_longer_than_others() -> None:
    """Unclosed quotes and endless escapes are refused in one pass."""
    page = SCANNER.scan(b"ask_depth{" + b'a="\\' * 200_000 + b"\nask_depth{" + b'a="b",' * 200_000 + b"\n")
    assert page.broken == 2


def test_escapes_in_labels_are_undone() -> None:
    """Backslash, quote and line end come back as they were."""
    assert labels(rb'a="x\\y\"z\nw", b = "{1}",') == {"a": 'x\\y"z\nw', "b": "{1}"}


def test_an_empty_registry_gives_an_empty_page() -> None:
    """No samples are no error."""
    assert SCANNER.scan(generate_latest(CollectorRegistry())).series == {}
