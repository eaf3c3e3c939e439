"""The table, the page and the plots of a replay."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ext_proc.replay import page, plots, table
from ext_proc.replay.results import Report, Series
from tests.unit.replay.conftest import HOSTILE


def parsed(text: str) -> ET.Element:
    """Parse a page, which is XML too."""
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>"))  # noqa: S314  our own page


def test_the_table_has_a_row_for_each_strategy(report: Report) -> None:
    """With several seeds, the means come with their range."""
    output = io.StringIO()
    table.show(Console(file=output, width=140), report)
    (row,) = [line.split() for line in output.getvalue().splitlines() if line.startswith("  a ")]
    assert row == ["a", "10", "0.15", "[0.1-0.2]", "0.075", "0.75", "20.0", "0.500", "0.900", "0.10", "1.00", "1.00"]


@pytest.mark.parametrize("width", [40, 80, 140])
def test_heads_are_whole_words(report: Report, width: int) -> None:
    """On a terminal of any width no word of a head or of a figure is broken or cut."""
    output = io.StringIO()
    table.show(Console(file=output, width=width), report)
    words = output.getvalue().split()
    for word in ["strategy", "requests", "counted", "TTFT", "TPOT", "goodput", "imbalance", "[0.1-0.2]", "0.900"]:
        assert word in words


def test_one_is_not_written_in_the_plural(report: Report) -> None:
    """And a single request has no rate."""
    one = msgspec.structs.replace(report.workload, requests=1, rate=0.0, name="t")
    text = table.heading(msgspec.structs.replace(report, workload=one, seeds=(1,)))
    assert text == "t: 1 request, on 2 h100-8b; 1 seed"


def test_failures_of_a_strategy_are_shown(report: Report, series: list[Series]) -> None:
    """In a column, and on the page with the reason; where none failed there is no column."""
    good, bad = report.strategies
    bad = msgspec.structs.replace(bad, strategy_failures=7.0, failure="TypeError: <no>")
    failed = msgspec.structs.replace(report, strategies=(good, bad))
    for shown, expected in ((failed, True), (report, False)):
        output = io.StringIO()
        table.show(Console(file=output, width=160), shown)
        assert ("failed" in output.getvalue()) is expected
        text = page.render(shown, series)
        assert ("failed on 7 requests a run" in text) is expected
        assert ("TypeError: &lt;no&gt;" in text) is expected
    assert table.cells(failed, good)[-1] == "0"
    assert table.cells(failed, bad)[-1] == "7"


def test_what_strangers_wrote_is_made_printable(report: Report) -> None:
    """A terminal shows no control characters of a trace."""
    output = io.StringIO()
    table.show(Console(file=output, width=200), report)
    assert "\u202e" not in output.getvalue().replace(report.workload.notes[0], "")


def test_the_page_is_whole_and_fetches_nothing(report: Report, series: list[Series]) -> None:
    """No address, no script, no image: it can be mailed, and a browser asks nobody."""
    text = page.render(report, series)
    tree = parsed(text)
    tags = {element.tag for element in tree.iter()}
    assert {"html", "style", "table", "svg", "path"} <= tags
    assert not tags & {"script", "link", "img", "iframe", "object", "embed"}
    names = {name for element in tree.iter() for name in element.attrib}
    assert not names & {"src", "href", "data", "srcset", "action", "onload"}
    assert not re.search(r"@import|url\(", text)
    assert not re.search(r"https?:|//", text.replace("https://x.example/", ""))


def test_the_page_escapes_what_strangers_wrote(report: Report, series: list[Series]) -> None:
    """Names of files and labels stay text."""
    text = page.render(report, series)
    assert HOSTILE not in text
    assert "<script" not in text
    assert "&lt;script src=" in text


def test_the_page_is_readable_in_the_dark(report: Report, series: list[Series]) -> None:
    """Every colour that is used is defined for both."""
    style = next(element for element in parsed(page.render(report, series)).iter("style")).text or ""
    light, dark = style.split("prefers-color-scheme: dark", 1)
    for name in set(re.findall(r"var\((--\w+)\)", style)):
        assert f"{name}:" in light
        assert f"{name}:" in dark


def test_every_strategy_has_its_plots(report: Report, series: list[Series]) -> None:
    """One of first tokens, one of hits, and one of loads for each strategy."""
    drawings = list(parsed(page.render(report, series)).iter("svg"))
    assert [len(list(drawing.iter("path"))) for drawing in drawings] == [2, 2, 2, 2]


def test_a_run_without_requests_can_be_drawn(report: Report) -> None:
    """Its axes are there, and no line."""
    nothing = Series((), 0.0, ((0.0,) * 60,), (None,) * 60)
    assert parsed(page.render(report, [nothing, nothing])) is not None


def test_a_gap_breaks_a_line() -> None:
    """Nothing is drawn where nothing is known."""
    axis = plots.linear("x", 10.0)
    text = plots.plot("t", axis, axis, [plots.Line("l", [(0, 1.0), (1, None), (2, 3.0), (3, 4.0)], 0)])
    assert re.findall(r"[ML]", re.findall(r' d="([^"]*)"', text)[0]) == ["M", "M", "L"]


@settings(deadline=None)
@given(st.floats(1e-6, 1e9))
def test_linear_axes_have_a_few_round_ticks(highest: float) -> None:
    """They begin at 0 and stay within the axis."""
    ticks = plots.linear("x", highest).ticks()
    assert 3 <= len(ticks) <= 7
    assert ticks[0] == 0.0
    assert ticks[-1] <= highest * (1 + 1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e5), max_size=20))
def test_logarithmic_axes_hold_their_values(values: list[float]) -> None:
    """Whatever the values, at least two powers of ten are written."""
    axis = plots.logarithmic("x", values)
    assert len(axis.ticks()) >= 2
    assert all(axis.low <= value <= axis.high for value in values if value >= 1e-6)
    assert all(0.0 <= axis.place(value) <= 1.0 for value in values)


def test_the_report_round_trips(report: Report) -> None:
    """Programs can read what `--json` prints with the types that document it."""
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


@pytest.mark.parametrize(("value", "text"), [(0.04567, "0.0457"), (1.234, "1.23"), (123.4, "123"), (0.0, "0")])
def test_seconds_have_three_digits(value: float, text: str) -> None:
    """Neither more than they are worth nor a power of ten."""
    assert table.seconds(value) == text
