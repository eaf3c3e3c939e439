"""The engine's metrics page."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ext_proc.sim.metrics_page import Histogram, MetricsPage
from ext_proc.sim.scheduler import PRESETS, Limits, Scheduler, SimSequence


def samples(page: MetricsPage) -> Mapping[str, float]:
    """All samples by name and labels, without engine and model."""
    found = {}
    for family in text_string_to_metric_families(page.render().decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in {"engine", "model_name"}}
            found[sample.name + "".join(f"|{k}={v}" for k, v in sorted(labels.items()))] = sample.value
    return found


@pytest.fixture
def page() -> MetricsPage:
    """The page of an idle engine."""
    return MetricsPage(Scheduler(PRESETS["h100-8b"], Limits(kv_tokens=1600)), "m")


@pytest.mark.parametrize(
    "name",
    [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_sum",
        "vllm:e2e_request_latency_seconds_bucket|le=0.3",
        "vllm:request_queue_time_seconds_bucket|le=+Inf",
        "vllm:request_success_total|finished_reason=stop",
        "vllm:request_success_total|finished_reason=length",
        "vllm:request_success_total|finished_reason=abort",
    ],
)
def test_an_idle_engine_shows_zeros(page: MetricsPage, name: str) -> None:
    """Each metric is there from the start, at zero."""
    assert samples(page)[name] == 0


def test_the_cache_configuration_is_in_labels(page: MetricsPage) -> None:
    """Block size and number of blocks are labels of a metric that is always 1."""
    name = next(name for name in samples(page) if name.startswith("vllm:cache_config_info"))
    assert "|block_size=16|" in name
    assert "|num_gpu_blocks=100" in name


def test_labels_are_those_of_vllm(page: MetricsPage) -> None:
    """The engine's rank is a string and the model is the first one served."""
    assert b'vllm:num_requests_running{engine="0",model_name="m"} 0.0' in page.render()


def test_a_request_is_counted_with_its_times(page: MetricsPage) -> None:
    """Tokens, times and the reason of the end come from what the sequence went through."""
    sequence = SimSequence(100, 3, arrived=1.0, admitted=1.5, cached_tokens=32)
    page.tokens(sequence, 1, 2.0, None)
    page.tokens(sequence, 1, 2.2, 2.0)
    page.ended(sequence, "length", 2.2)
    found = samples(page)
    assert found["vllm:prompt_tokens_total"] == 100
    assert found["vllm:prompt_tokens_cached_total"] == 32
    assert found["vllm:generation_tokens_total"] == 2
    assert found["vllm:time_to_first_token_seconds_sum"] == 1.0
    assert found["vllm:inter_token_latency_seconds_sum"] == pytest.approx(0.2)
    assert found["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(1.2)
    assert found["vllm:request_queue_time_seconds_sum"] == 0.5
    assert found["vllm:request_success_total|finished_reason=length"] == 1


def test_an_aborted_request_has_no_latency(page: MetricsPage) -> None:
    """A client that leaves is counted, but says nothing of the engine's speed."""
    page.ended(SimSequence(100, 3, arrived=1.0, admitted=1.5), "abort", 9.0)
    found = samples(page)
    assert found["vllm:request_success_total|finished_reason=abort"] == 1
    assert found["vllm:e2e_request_latency_seconds_count"] == 0


def test_buckets_are_cumulative_and_include_their_bound() -> None:
    """A value on a bound belongs to that bucket, and one above all bounds only to the last."""
    histogram = Histogram((1.0, 2.0))
    for value, times in ((1.0, 2), (1.5, 1), (9.0, 3)):
        histogram.observe(value, times)
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 3), ("+Inf", 6)]
    assert histogram.sum == 30.5
