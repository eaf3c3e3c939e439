"""The engine's /metrics page, with the names and labels of vLLM 0.32."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ext_proc.sim.scheduler import Scheduler, SimSequence
from ext_proc.sim.slumber import Slumber

FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
INTER_TOKEN_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
FINISHED_REASONS: Final = ("stop", "length", "abort", "error", "repetition")

_LABELS: Final = ["engine", "model_name"]


class Histogram:
    """Counts per bucket; many equal observations cost as much as one."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self._bounds = buckets
        self._counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` seconds, `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """Upper bounds as Prometheus writes them, with the number of observations up to each."""
        total, rows = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return rows


class MetricsPage(Collector):
    """Observes sequences and renders vLLM's metrics from what it saw and from the scheduler's state."""

    def __init__(self, scheduler: Scheduler, model_name: str, slumber: Slumber | None = None) -> None:
        self.slumber = slumber
        self._scheduler = scheduler
        self._labels = ["0", model_name]
        self._started = time.time()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._ended = dict.fromkeys(FINISHED_REASONS, 0)
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0
        self._first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self._inter_token = Histogram(INTER_TOKEN_BUCKETS)
        self._end_to_end = Histogram(REQUEST_BUCKETS)
        self._queue = Histogram(REQUEST_BUCKETS)

    def tokens(self, sequence: SimSequence, count: int, now: float, previous: float | None) -> None:
        """Account for tokens that came at `now`, after those of `previous`."""
        self._generation_tokens += count
        if previous is not None:
            self._inter_token.observe((now - previous) / count, count)
            return
        self._prompt_tokens += sequence.prompt_tokens
        self._cached_tokens += sequence.cached_tokens
        self._first_token.observe(now - sequence.arrived)
        if count > 1:
            self._inter_token.observe(0.0, count - 1)

    def ended(self, sequence: SimSequence, reason: str, now: float) -> None:
        """Account for the end of a sequence."""
        self._ended[reason] += 1
        if reason != "abort" and sequence.admitted is not None:
            self._end_to_end.observe(now - sequence.arrived)
            self._queue.observe(sequence.admitted - sequence.arrived)

    def render(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics of the page."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry is this page's own and needs no check for duplicates."""
        return []

    def _gauge(self, name: str, help_text: str, value: float, extra: Mapping[str, str] | None = None) -> Metric:
        extra = extra or {}
        family = GaugeMetricFamily(name, help_text, labels=[*_LABELS, *extra])
        family.add_metric([*self._labels, *extra.values()], value)
        return family

    def _gauges(self) -> Iterator[Metric]:
        cache, limits = self._scheduler.cache, self._scheduler.limits
        running, waiting = len(self._scheduler.running), len(self._scheduler.waiting)
        yield self._gauge("vllm:num_requests_running", "Requests in the batch.", running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in the queue.", waiting)
        if self.slumber is not None:
            yield self._sleep_state(self.slumber)
        usage = cache.used / cache.capacity
        yield self._gauge("vllm:kv_cache_usage_perc", "KV memory in use; 1 is all of it.", usage)
        config = {
            "block_size": str(limits.block_size),
            "enable_prefix_caching": "True",
            "kv_cache_size_tokens": str(cache.capacity * limits.block_size),
            "num_gpu_blocks": str(cache.capacity),
        }
        yield self._gauge("vllm:cache_config_info", "How the KV cache is configured.", 1, config)
        yield GaugeMetricFamily("process_start_time_seconds", "Unix time of the start.", self._started)

    def _sleep_state(self, slumber: Slumber) -> Metric:
        help_text = "Whether the engine sleeps: 1 for the state that it is in, 0 for the others."
        family = GaugeMetricFamily("vllm:engine_sleep_state", help_text, labels=[*_LABELS, "sleep_state"])
        for state, value in slumber.states().items():
            family.add_metric([*self._labels, state], value)
        return family

    def _counters(self) -> Iterator[Metric]:
        statistics = self._scheduler.statistics
        for name, help_text, value in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", statistics.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", statistics.prefix_hits),
            ("vllm:num_preemptions", "Sequences whose memory was taken.", statistics.preemptions),
            ("vllm:prompt_tokens", "Prompt tokens processed.", self._prompt_tokens),
            ("vllm:prompt_tokens_cached", "Prompt tokens taken from the cache.", self._cached_tokens),
            ("vllm:generation_tokens", "Tokens generated.", self._generation_tokens),
        ):
            family = CounterMetricFamily(name, help_text, labels=_LABELS)
            family.add_metric(self._labels, value, created=self._started)
            yield family
        rejected = CounterMetricFamily(
            "vllm:admission_rejections", "Requests refused by a queue limit.", labels=["model_name", "reason"]
        )
        rejected.add_metric([self._labels[1], "max_num_queued_reqs"], statistics.rejections, created=self._started)
        yield rejected
        ended = CounterMetricFamily(
            "vllm:request_success", "Requests that ended.", labels=["engine", "finished_reason", "model_name"]
        )
        for reason, count in self._ended.items():
            ended.add_metric([self._labels[0], reason, self._labels[1]], count, created=self._started)
        yield ended

    def _histograms(self) -> Iterator[Metric]:
        for name, help_text, histogram in (
            ("vllm:time_to_first_token_seconds", "Time to the first token.", self._first_token),
            ("vllm:inter_token_latency_seconds", "Time between tokens.", self._inter_token),
            ("vllm:e2e_request_latency_seconds", "Time from arrival to end.", self._end_to_end),
            ("vllm:request_queue_time_seconds", "Time in the queue.", self._queue),
        ):
            family = HistogramMetricFamily(name, help_text, labels=_LABELS)
            family.add_metric(self._labels, histogram.cumulative(), histogram.sum)
            yield family
