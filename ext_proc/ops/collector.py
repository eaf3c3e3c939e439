"""Exposes the counts and a snapshot of the endpoints to Prometheus, at the moment of the scrape."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from ext_proc.core.caps import NO_CAPS, Caps
from ext_proc.core.health_states import HealthStatus
from ext_proc.core.kv_state import PublisherState
from ext_proc.core.model import Endpoint
from ext_proc.core.signals import EngineSignals, Interval
from ext_proc.core.sleepers import Sleep
from ext_proc.core.waiting_room import Fill
from ext_proc.ops import families
from ext_proc.ops.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.core import Metric

    from ext_proc.ops.families import Family
    from ext_proc.ops.metrics import Metrics
    from ext_proc.ops.tallies import Histogram

Samples: TypeAlias = "Iterable[tuple[tuple[str, ...], float]]"


class EndpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an endpoint at one moment.

    Attributes:
        endpoint: the endpoint.
        lifecycle: where it stands by an operator's word.
        sleep: how its engine sleeps; None if it is awake.
        asleep_for: seconds since that is known; None if it is awake.
        drain_deadline: seconds until its drain ends at the latest; None while it is not draining.
        health: its health.
        health_age: seconds since its state changed; None if it never did.
        health_left: seconds until its ejection, or its trial, ends; None where there is none.
        in_flight: requests in flight.
        tokens_in_flight: prompt and expected output tokens in flight.
        caps: what of both it may hold at most.
        queue: estimated wait for the work in front, seconds.
        index_blocks: blocks the prefix index believes it holds.
        index_tokens: tokens the prefix index believes to fit.
        prefill_rate: prefill tokens per second that were learnt of it; None before anything was.
        rate_source: where that was learnt from; empty before.
        reputation: its score among the endpoints of its pool, in [0, 1].
        engine: the engine that its metrics are of; empty while unknown.
        metrics_problem: why its metrics cannot be read; empty if they can.
        signals: what it says of itself; None while unknown.
        signals_age: seconds since it was last read; None if it never was.
        interval: what it did between the latest two readings; None before the second.
        kv_silence: seconds since it sent KV events, or since they are listened to; None if they are not.
        kv_blocks: blocks that it reports to hold.
        publishers: how listening to each publisher of its KV events goes; none if it is not listened to.
    """

    endpoint: Endpoint
    lifecycle: str = "active"
    sleep: Sleep | None = None
    asleep_for: float | None = None
    drain_deadline: float | None = None
    health: HealthStatus = HealthStatus()
    health_age: float | None = None
    health_left: float | None = None
    in_flight: int = 0
    tokens_in_flight: float = 0
    caps: Caps = NO_CAPS
    queue: float = 0.0
    index_blocks: int = 0
    index_tokens: int = 0
    prefill_rate: float | None = None
    rate_source: str = ""
    reputation: float = 1.0
    engine: str = ""
    metrics_problem: str = ""
    signals: EngineSignals | None = None
    signals_age: float | None = None
    interval: Interval | None = None
    kv_silence: float | None = None
    kv_blocks: int = 0
    publishers: Sequence[PublisherState] = ()


class Fills(msgspec.Struct, frozen=True):
    """How full bounded structures are: the waiting room of each pool, and by name the share of their bound."""

    queues: Mapping[str, Fill]
    ratios: Mapping[str, float]


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """Where the collector reads what is not counted.

    Attributes:
        endpoints: every endpoint with its status.
        leases: how many requests are believed to be in flight.
        degraded: reasons for deciding with less than kvpicker should know, and whether each holds.
        panics: of each pool, whether ill endpoints are used because there would be too few without them.
        reuse: share of recent prompt tokens that earlier prompts held; None while there were none.
        version: version of kvpicker.
        tasks: how many coroutines run in the process.
        fills: how full what has bounds is.
    """

    endpoints: Callable[[], Sequence[EndpointStatus]]
    leases: Callable[[], int]
    degraded: Callable[[], Mapping[str, bool]]
    panics: Callable[[], Mapping[str, bool]]
    reuse: Callable[[], float | None]
    version: str
    tasks: Callable[[], int] = int
    fills: Callable[[], Fills] = lambda: Fills({}, {})


class KvpickerCollector(Collector):
    """Makes metric families of plain numbers; keeps nothing itself, so no gauge can drift."""

    def __init__(self, metrics: Metrics, gauges: Gauges) -> None:
        self._metrics = metrics
        self._gauges = gauges

    def describe(self) -> Iterable[Metric]:
        """Name the families without reading anything."""
        return [_family(family) for family in families.FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Read everything."""
        statuses = self._gauges.endpoints()
        self._metrics.forget_endpoints({status.endpoint.address for status in statuses})
        yield from self._counters()
        yield from self._histograms()
        yield from self._service_gauges()
        yield from _endpoint_gauges(statuses)

    def _counters(self) -> Iterator[Metric]:
        for family, tally in self._metrics.tallies.items():
            samples = tally.samples()
            # A counter without labels exists from the start, so that rate() sees its first step.
            yield _filled(family, samples if samples or family.labels else [((), 0)])

    def _histograms(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield _histogram(families.DECISION_SECONDS, {(): metrics.decision_seconds})
        for family, by_model in (
            (families.DURATION_SECONDS, metrics.durations),
            (families.FIRST_BYTE_SECONDS, metrics.first_bytes),
            (families.FIRST_TOKEN_SECONDS, metrics.first_tokens),
            (families.QUEUE_WAIT_SECONDS, metrics.waits),
        ):
            yield _histogram(family, {(model,): histogram for model, histogram in by_model.items()})

    def _service_gauges(self) -> Iterator[Metric]:
        gauges = self._gauges
        yield _filled(families.LEASES, [((), gauges.leases())])
        yield _filled(families.TASKS, [((), gauges.tasks())])
        yield _filled(families.RELOAD_SUCCESS, [((), self._metrics.reload_success)])
        yield _filled(families.DEGRADED, [((reason,), on) for reason, on in gauges.degraded().items()])
        fills = gauges.fills()
        yield _filled(families.FILL_RATIO, [((name,), ratio) for name, ratio in fills.ratios.items()])
        queues = [((printable(pool),), fill) for pool, fill in fills.queues.items()]
        yield _filled(families.QUEUE_REQUESTS, [(at, fill.requests) for at, fill in queues])
        yield _filled(families.QUEUE_BYTES, [(at, fill.bytes) for at, fill in queues])
        yield _filled(families.PROMISES, [(at, fill.promises) for at, fill in queues])
        panics = gauges.panics().items()
        yield _filled(families.HEALTH_PANIC, [((printable(pool),), on) for pool, on in panics])
        reuse = gauges.reuse()
        yield _filled(families.PREFIX_REUSE, [] if reuse is None else [((), reuse)])
        errors = [(key, share.value) for key, share in self._metrics.prediction_errors.items()]
        yield _filled(families.PREDICTION_ERROR, errors)
        yield _filled(families.BUILD_INFO, [((gauges.version, platform.python_version()), 1)])


def registry(metrics: Metrics, gauges: Gauges) -> CollectorRegistry:
    """Make a registry of kvpicker's families and those of its process."""
    result = CollectorRegistry()
    result.register(KvpickerCollector(metrics, gauges))
    ProcessCollector(registry=result)
    return result


def _endpoint_gauges(statuses: Sequence[EndpointStatus]) -> Iterator[Metric]:
    labels = [(status.endpoint.address, printable(status.endpoint.pool)) for status in statuses]
    for family, values in (
        (families.IN_FLIGHT, [status.in_flight for status in statuses]),
        (families.TOKENS_IN_FLIGHT, [status.tokens_in_flight for status in statuses]),
        (families.QUEUE_SECONDS, [status.queue for status in statuses]),
        (families.INDEX_BLOCKS, [status.index_blocks for status in statuses]),
    ):
        yield _filled(family, zip(labels, values, strict=True))
    rates = [(at, status.prefill_rate) for at, status in zip(labels, statuses, strict=True)]
    yield _filled(families.PREFILL_RATE, [(at, rate) for at, rate in rates if rate is not None])
    ages = [(at, status.signals_age) for at, status in zip(labels, statuses, strict=True)]
    yield _filled(families.SCRAPE_AGE, [(at, age) for at, age in ages if age is not None])
    heard = [(at, status) for at, status in zip(labels, statuses, strict=True) if status.kv_silence is not None]
    yield _filled(families.KV_SILENCE, [(at, status.kv_silence or 0.0) for at, status in heard])
    yield _filled(families.KV_BLOCKS, [(at, status.kv_blocks) for at, status in heard])
    states = [status.health.state for status in statuses]
    yield _filled(families.STATE, [((*at, state), 1) for at, state in zip(labels, states, strict=True)])
    stages = [status.lifecycle for status in statuses]
    yield _filled(families.LIFECYCLE, [((*at, stage), 1) for at, stage in zip(labels, stages, strict=True)])


def _family(family: Family) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    if family.kind == "counter":
        return CounterMetricFamily(family.name, family.meaning, labels=family.labels)
    if family.kind == "gauge":
        return GaugeMetricFamily(family.name, family.meaning, labels=family.labels)
    return HistogramMetricFamily(family.name, family.meaning, labels=family.labels)


def _filled(family: Family, samples: Samples) -> Metric:
    made = _family(family)
    for labels, value in samples:
        made.add_metric(labels, value)  # type: ignore[call-arg, arg-type]
    return made


def _histogram(family: Family, histograms: Mapping[tuple[str, ...], Histogram]) -> Metric:
    made = HistogramMetricFamily(family.name, family.meaning, labels=family.labels)
    for labels, histogram in histograms.items():
        made.add_metric(labels, buckets=histogram.cumulative(), sum_value=histogram.total)
    return made
