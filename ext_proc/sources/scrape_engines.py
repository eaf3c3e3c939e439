"""How a page of an engine's metrics becomes signals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from ext_proc.core.signals import EngineSignals, Times
from ext_proc.core.sleepers import SleepLevel
from ext_proc.sources.scrape_dialects import DIALECTS, STARTED, Dialect, Term
from ext_proc.sources.scrape_text import Layout, Page, Scanner, Series, labels

_FULL = 1.05
"""A share may exceed 1 by rounding; anything above this is no share of 1, and unknown."""

_MOST_TOKENS = 10_000_000_000
"""More than any engine holds, and the most that can be configured."""

_MOST_REQUESTS = 10_000_000
"""More than any engine has; what says more is no number of requests."""

_SHARED_RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})
"""Labels of processes that work on one batch together, each of which may report the whole of it."""

_BY_NAME = {dialect.engine: dialect for dialect in DIALECTS}
_SCANNERS = {dialect.engine: Scanner(dialect.names()) for dialect in DIALECTS}

_LOAD = ("waiting", "running", "kv_usage")

_FULL_SEARCH = 30
"""Every 30th page is searched in full, whatever the one before looked like."""


class Reading(msgspec.Struct, frozen=True):
    """What was understood of one page.

    Attributes:
        engine: the engine that wrote it; empty if no name on it is known.
        signals: what it says.
        missing: load signals that its engine is known to give and that are not there or no numbers.
        truncated: the page ends within a line.
    """

    engine: str
    signals: EngineSignals
    missing: tuple[str, ...] = ()
    truncated: bool = False


class PageReader:
    """Reads the pages of one endpoint, and remembers which engine wrote the last one and where its samples stood.

    Args:
        engine: the engine if it is known; None detects it by the names on the page.
    """

    def __init__(self, engine: str | None = None) -> None:
        self._configured = engine
        self._dialect: Dialect | None = None if engine is None else _BY_NAME.get(engine)
        self._layout: Layout | None = None
        self._reads = 0

    def read(self, page: bytes, at: float) -> Reading:
        """Read a page that was fetched at `at`, monotonic seconds; one of an unknown engine has no signals."""
        if self._dialect is None:
            self._dialect = None if self._configured else detect(page)
            self._layout = None
        if self._dialect is None:
            return Reading(self._configured or "", EngineSignals(at=at))
        self._reads += 1
        layout = self._layout if self._reads % _FULL_SEARCH else None
        found = _SCANNERS[self._dialect.engine].scan(_with_colons(page, self._dialect), layout)
        self._layout = found.layout
        reading = _reading(self._dialect, found, at)
        if self._configured is None and all(getattr(reading.signals, name) is None for name in _LOAD):
            self._dialect = None  # the address may have another engine by now
        return reading


def detect(page: bytes) -> Dialect | None:
    """Tell by the names on a page which engine wrote it; None if none of them is known."""
    for dialect in DIALECTS:
        if any(page.startswith(mark) or b"\n" + mark in page for mark in dialect.marks):
            return dialect
    spelt = b"\n" + page
    return next((dialect for dialect in DIALECTS if any(name in spelt for name in _spelt_otherwise(dialect))), None)


def _spelt_otherwise(dialect: Dialect) -> list[bytes]:
    """How lines with the load begin where a collector, or a version of SGLang, has written `_` for `:`."""
    names = [term.name for term in (*dialect.waiting, *dialect.running) if b":" in term.name]
    return [b"\n" + name.replace(b":", b"_") for name in names]


def _with_colons(page: bytes, dialect: Dialect) -> bytes:
    """Spell names as they are known here."""
    for mark in dialect.marks:
        if mark.endswith(b":") and mark not in page:
            page = (b"\n" + page).replace(b"\n" + mark[:-1] + b"_", b"\n" + mark)[1:]
    return page


def _reading(dialect: Dialect, page: Page, at: float) -> Reading:
    signals = _signals(dialect, page, at)
    missing = tuple(name for name in _LOAD if getattr(dialect, name) and getattr(signals, name) is None)
    return Reading(dialect.engine, signals, missing, page.truncated)


def _signals(dialect: Dialect, page: Page, at: float) -> EngineSignals:
    series = page.series
    usage = _first(series, dialect.kv_usage)
    capacity = next((size for terms in dialect.capacity if (size := _product(series, terms))), None)
    block = _first(series, dialect.block)
    asleep, sleep_level = _sleep(series, dialect.sleep)
    return EngineSignals(
        at=at,
        ranks=_ranks(series, dialect.running),
        started=_number(series, STARTED),
        waiting=_requests(series, dialect.waiting),
        running=_requests(series, dialect.running),
        kv_usage=None if usage is None or usage > _FULL else min(usage, 1.0),
        kv_tokens=None if capacity is None or capacity > _MOST_TOKENS else int(capacity),
        block_tokens=int(block) if block and block < _MOST_TOKENS else None,
        prompt_tokens=_first(series, dialect.prompt_tokens),
        queried_tokens=_first(series, dialect.queried_tokens),
        cached_tokens=_first(series, dialect.cached_tokens),
        ttft=_times(series, dialect.ttft),
        itl=_times(series, dialect.itl),
        queue=_times(series, dialect.queue),
        asleep=asleep,
        sleep_level=sleep_level,
    )


def _sleep(series: Mapping[bytes, Series], terms: Sequence[Term]) -> tuple[bool | None, SleepLevel]:
    """Tell whether an engine sleeps, and how deep; not known if one of its ranks sleeps and another does not."""
    ranks: dict[tuple[str, str], dict[str, float]] = {}
    for text, value in (sample for term in terms for sample in series.get(term.name, {}).items()):
        ranks.setdefault(_rank(text), {})[labels(text).get("sleep_state", "")] = value
    said = {_state_of(states) for states in ranks.values()}
    if not said:
        return None, SleepLevel.UNKNOWN
    asleep = {is_asleep for is_asleep, _ in said}
    return (asleep.pop() if len(asleep) == 1 else None), max((level for _, level in said), key=list(SleepLevel).index)


def _state_of(states: Mapping[str, float]) -> tuple[bool | None, SleepLevel]:
    """Understand what one rank says: 1 for the state that it is in, 0 for each of the others."""
    deep = (SleepLevel.DISCARD_ALL, SleepLevel.WEIGHTS_OFFLOADED)
    level = next((level for level in deep if states.get(level) == 1.0), None)
    if level is not None:
        return True, level
    awake = states.get("awake")
    if awake not in (0.0, 1.0):
        return None, SleepLevel.UNKNOWN
    # Level 0 only pauses: awake is 0, and so is each of the others.
    is_paused = awake == 0.0 and all(states.get(level) == 0.0 for level in deep)
    return awake == 0.0, SleepLevel.PAUSED if is_paused else SleepLevel.UNKNOWN


def _first(series: Mapping[bytes, Series], terms: Sequence[Term]) -> float | None:
    return next((number for term in terms if (number := _number(series, term)) is not None), None)


def _requests(series: Mapping[bytes, Series], terms: Sequence[Term]) -> float | None:
    number = _first(series, terms)
    return None if number is None or number > _MOST_REQUESTS else number


def _ranks(series: Mapping[bytes, Series], terms: Sequence[Term]) -> int | None:
    """Count the data-parallel ranks that tell what they run; None if nobody does."""
    samples = next((found for term in terms if (found := series.get(term.name))), None)
    return len({_rank(text) for text in samples}) if samples else None


def _product(series: Mapping[bytes, Series], terms: Sequence[Term]) -> float | None:
    numbers = [_number(series, term) for term in terms]
    return None if None in numbers else math.prod(number for number in numbers if number is not None)


def _times(series: Mapping[bytes, Series], histograms: Sequence[tuple[Term, Term]]) -> Times | None:
    for sums, counts in histograms:
        total, count = _number(series, sums), _number(series, counts)
        if total is not None and count is not None:
            return Times(total, count)
    return None


def _number(series: Mapping[bytes, Series], term: Term) -> float | None:
    """Add up a term over ranks; None if it is not there, or if one rank's part is not a number of zero or more."""
    samples = series.get(term.name)
    if not samples:
        return None
    if len(samples) == 1 and term.label is None and term.where is None:
        (value,) = samples.values()
        return value if 0.0 <= value < math.inf else None
    values = _values(samples, term)
    if not values or not all(0.0 <= value < math.inf for value in values):
        return None
    total = math.fsum(values)
    return total / len(values) if term.mean else total


def _values(samples: Series, term: Term) -> list[float]:
    if term.label is not None:
        by_rank = {_rank(text): _to_number(labels(text).get(term.label)) for text in samples}
        return [value for value in by_rank.values() if value is not None]
    chosen = samples
    if term.where is not None:
        name, wanted = term.where
        chosen = {text: value for text, value in samples.items() if labels(text).get(name) == wanted}
    if term.parts is not None:
        chosen = {text: value for text, value in chosen.items() if not labels(text).get(term.parts)} or chosen
    if any(b"_rank" in text for text in chosen):
        return _of_leaders(chosen)
    if len(chosen) > 1:  # the same labels in another order are the same series
        return list({frozenset(labels(text).items()): value for text, value in chosen.items()}.values())
    return list(chosen.values())


def _of_leaders(samples: Series) -> list[float]:
    """Of the processes that share one batch take the one with the lowest rank."""
    leaders: dict[frozenset[tuple[str, str]], tuple[list[str], float]] = {}
    for text, value in samples.items():
        parsed = labels(text)
        key = frozenset(item for item in parsed.items() if item[0] not in _SHARED_RANKS)
        rank = [parsed.get(name, "").rjust(8) for name in sorted(_SHARED_RANKS)]
        if key not in leaders or rank < leaders[key][0]:
            leaders[key] = (rank, value)
    return [value for _, value in leaders.values()]


def _rank(text: bytes) -> tuple[str, str]:
    """Name the data-parallel rank of a sample, whose other labels may differ for other reasons."""
    parsed = labels(text)
    return parsed.get("engine", ""), parsed.get("dp_rank", "")


def _to_number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
