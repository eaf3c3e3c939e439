"""What is counted, and how it is exposed."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.parser import text_string_to_metric_families

from ext_proc.core.errors import ModelNotFound
from ext_proc.core.health_states import HealthState, HealthStatus
from ext_proc.core.model import Decision, Ending, Outcome, Unhashed
from ext_proc.core.waiting_room import Fill, Limits
from ext_proc.ops import families
from ext_proc.ops.collector import EndpointStatus, Fills, Gauges, registry
from ext_proc.ops.metrics import MOST_REASONS, Metrics

OutcomeOf = Callable[..., Outcome]
E1, E2 = "10.0.0.11:8000", "[fd00::12]:8000"


class Exposed:
    """Metrics and the registry that exposes them."""

    def __init__(self, decision: Decision) -> None:
        self.metrics = Metrics(lambda: frozenset({"acme/chat-8b"}))
        self.degraded = {"access_log_silent": False}
        self.statuses = [
            EndpointStatus(
                endpoint=endpoint,
                in_flight=3,
                tokens_in_flight=900,
                queue=0.5,
                index_blocks=7,
                prefill_rate=9000.0,
                signals_age=0.75,
                kv_silence=2.5,
                kv_blocks=11,
            )
            for endpoint in decision.endpoints
        ]
        self.reuse: float | None = 0.25
        gauges = Gauges(
            endpoints=lambda: self.statuses,
            leases=lambda: 6,
            degraded=lambda: self.degraded,
            panics=lambda: {"main": False},
            reuse=lambda: self.reuse,
            version="0.1.0",
            tasks=lambda: 9,
            fills=lambda: Fills({"chat": Fill(3, 5000, 7, Limits())}, {"leases": 0.25}),
        )
        self.registry: CollectorRegistry = registry(self.metrics, gauges)

    def value(self, name: str, **labels: str) -> float | None:
        """Read a sample, None if there is none."""
        return self.registry.get_sample_value(f"kvpicker_{name}", labels)


@pytest.fixture
def exposed(decision: Decision) -> Exposed:
    """Nothing is counted yet."""
    return Exposed(decision)


@pytest.fixture
def busy(exposed: Exposed, decision: Decision, outcome_of: OutcomeOf) -> Exposed:
    """Everything was counted at least once."""
    metrics = exposed.metrics
    request = msgspec.structs.replace(decision.request, unhashed=Unhashed.NO_PROMPT, model=None, truncated=True)
    metrics.decided(msgspec.structs.replace(decision, request=request), 30e-6)
    metrics.first_token(decision, 0.75)
    metrics.finished(decision, outcome_of())
    metrics.finished(decision, outcome_of(ending=Ending.LOST))
    metrics.refused(request, ModelNotFound("x"), ())
    metrics.waited("chat", "served", 0.5)
    metrics.passed("unknown_path")
    metrics.failed("internal")
    metrics.strategy_failed("least-wait", ValueError())
    metrics.health_changed(decision.chosen, "ejected", "x", "reset")
    metrics.probed("good")
    metrics.wake_called("ok")
    metrics.config_reloaded("kvpicker.yaml", applied=True)
    metrics.access_log_entry("joined")
    metrics.line_held_back("request_finished")
    metrics.scraped("ok", "vllm", ("kv_usage",))
    metrics.token_lookup("chat", "late")
    metrics.kv_messages("ok", ["unknown_parent"])
    metrics.kv_recovery("replayed")
    return exposed


def _exposed_families(busy: Exposed) -> Iterator[Any]:
    for family in text_string_to_metric_families(generate_latest(busy.registry).decode()):
        if family.name.startswith("kvpicker_"):
            yield family


def test_a_finished_request_is_counted_by_model_operation_and_ending(busy: Exposed) -> None:
    """Rates and error ratios per model can be made of one counter."""
    labels = {"model": "acme/chat-8b", "operation": "chat"}
    assert busy.value("requests_total", **labels, ending="ok") == 1
    assert busy.value("requests_total", **labels, ending="lost") == 1


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("decisions_total", {"strategy": "least-wait", "reason": "prefix"}),
        ("refusals_total", {"reason": "model_not_found"}),
        ("queued_total", {"pool": "chat", "result": "served"}),
        ("passed_total", {"reason": "unknown_path"}),
        ("unhashed_total", {"reason": "no_prompt"}),
        ("models_unseen_total", {}),
        ("log_lines_suppressed_total", {"event": "request_finished"}),
        ("exchange_failures_total", {"reason": "internal"}),
        ("strategy_failures_total", {"strategy": "least-wait"}),
        ("health_changes_total", {"state": "ejected"}),
        ("config_reloads_total", {"result": "applied"}),
        ("access_log_entries_total", {"result": "joined"}),
        ("kv_event_messages_total", {"result": "ok"}),
        ("kv_events_skipped_total", {"reason": "unknown_parent"}),
        ("kv_event_recoveries_total", {"result": "replayed"}),
        ("leases_expired_total", {}),
        ("token_lookups_total", {"pool": "chat", "result": "late"}),
        ("attempts_total", {}),
        ("decision_seconds_count", {}),
        ("request_duration_seconds_count", {"model": "acme/chat-8b"}),
        ("first_byte_seconds_count", {"model": "acme/chat-8b"}),
        ("time_to_first_token_seconds_count", {"model": "acme/chat-8b"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_happening_is_counted_once(busy: Exposed, name: str, labels: dict[str, str]) -> None:
    """What happened once counts one, under its reason; a lost request has neither duration nor attempts."""
    assert busy.value(name, **labels) == 1


def test_times_are_in_seconds(busy: Exposed) -> None:
    """Sums of histograms are seconds, and a value lies in the bucket above it."""
    assert busy.value("request_duration_seconds_sum", model="acme/chat-8b") == pytest.approx(1.5)
    assert busy.value("request_duration_seconds_bucket", model="acme/chat-8b", le="2.5") == 1
    assert busy.value("request_duration_seconds_bucket", model="acme/chat-8b", le="1.0") == 0


def test_prediction_and_truth_are_counted_over_the_same_requests(
    exposed: Exposed, decision: Decision, outcome_of: OutcomeOf
) -> None:
    """A request whose engine reports no cached tokens counts in neither total."""
    exposed.metrics.finished(decision, outcome_of())
    exposed.metrics.finished(decision, outcome_of(usage=Outcome(decision_id="", ending=Ending.OK).usage))
    at = {"endpoint": E1, "mode": "text"}
    assert exposed.value("cached_tokens_predicted_total", **at) == 512
    assert exposed.value("cached_tokens_actual_total", **at) == 480
    assert exposed.value("prefix_prediction_error_ratio", **at) == pytest.approx(32 / 990)
    assert (exposed.value("cached_tokens_compared_total", **at), exposed.value("cached_tokens_exact_total", **at)) == (
        1,
        0,
    )


def test_predictions_by_tokens_are_counted_apart(exposed: Exposed, decision: Decision, outcome_of: OutcomeOf) -> None:
    """How right reports of engines are is not blurred by how right our own history is."""
    by_token = msgspec.structs.replace(decision, exact=(True, False), hit_tokens=480)
    exposed.metrics.finished(by_token, outcome_of())
    exposed.metrics.finished(by_token, outcome_of(served=E2, attempts=2))
    assert exposed.value("cached_tokens_exact_total", endpoint=E1, mode="token") == 1
    assert exposed.value("prefix_prediction_error_ratio", endpoint=E1, mode="token") == 0
    assert exposed.value("cached_tokens_predicted_total", endpoint=E1, mode="text") is None
    assert exposed.value("cached_tokens_predicted_total", endpoint=E2, mode="text") == 64


def test_a_fallback_is_held_to_the_prediction_for_itself(
    exposed: Exposed, decision: Decision, outcome_of: OutcomeOf
) -> None:
    """When another endpoint than the chosen one answers, its own prediction is compared."""
    exposed.metrics.finished(decision, outcome_of(served=E2, attempts=2))
    assert exposed.value("cached_tokens_predicted_total", endpoint=E2, mode="text") == 64
    assert (exposed.value("fallbacks_total"), exposed.value("attempts_total")) == (1, 2)


def test_endpoints_that_are_gone_leave_no_series(exposed: Exposed, decision: Decision, outcome_of: OutcomeOf) -> None:
    """Counts of an endpoint go with it, so that months of churn do not fill the memory."""
    exposed.metrics.finished(decision, outcome_of())
    del exposed.statuses[0]
    assert exposed.value("prompt_tokens_total", endpoint=E1) is None
    assert exposed.value("prefix_prediction_error_ratio", endpoint=E1, mode="text") is None


def test_a_flood_of_models_adds_one_series(exposed: Exposed, decision: Decision, outcome_of: OutcomeOf) -> None:
    """Clients cannot grow the exposition by making up models."""
    exposed.metrics.finished(decision, outcome_of())
    before = generate_latest(exposed.registry).count(b'model="')
    for number in range(5_000):
        request = msgspec.structs.replace(decision.request, model=f"m-{number}")
        exposed.metrics.finished(msgspec.structs.replace(decision, request=request), outcome_of())
    assert generate_latest(exposed.registry).count(b'model="') == 2 * before


def test_success_needs_every_watched_file(exposed: Exposed) -> None:
    """One broken file keeps the gauge at 0 until it is mended, whatever other files do."""
    exposed.metrics.config_reloaded("chat.yaml", applied=False)
    exposed.metrics.config_reloaded("kvpicker.yaml", applied=True)
    assert exposed.value("config_reload_success") == 0
    exposed.metrics.config_reloaded("chat.yaml", applied=True)
    assert exposed.value("config_reload_success") == 1


def test_endpoints_are_read_at_the_scrape(exposed: Exposed) -> None:
    """Gauges of endpoints show the snapshot of the moment."""
    at = {"endpoint": E1, "pool": "chat"}
    assert exposed.value("endpoint_in_flight", **at) == 3
    assert exposed.value("endpoint_queue_seconds", **at) == 0.5
    assert exposed.value("endpoint_state", **at, state="ready") == 1
    exposed.statuses[0] = msgspec.structs.replace(exposed.statuses[0], health=HealthStatus(state=HealthState.EJECTED))
    assert exposed.value("endpoint_state", **at, state="ready") is None
    assert exposed.value("endpoint_state", **at, state="ejected") == 1


def test_readings_of_metrics_are_counted_with_what_was_missing(busy: Exposed) -> None:
    """A renamed family and an engine that stopped answering can both be alerted on."""
    assert busy.value("scrape_attempts_total", result="ok") == 1
    assert busy.value("scrape_missing_total", engine="vllm", signal="kv_usage") == 1
    assert busy.value("scrape_age_seconds", endpoint=E1, pool="chat") == 0.75
    busy.statuses[0] = msgspec.structs.replace(busy.statuses[0], signals_age=None)
    assert busy.value("scrape_age_seconds", endpoint=E1, pool="chat") is None


def test_degradation_is_visible_before_and_while_it_lasts(exposed: Exposed) -> None:
    """A reason for degradation is 0 while all is well, so that an alert can be tested."""
    assert exposed.value("degraded", reason="access_log_silent") == 0
    exposed.degraded["access_log_silent"] = True
    assert exposed.value("degraded", reason="access_log_silent") == 1


def test_every_exposed_family_is_documented_and_every_documented_one_exposed(busy: Exposed) -> None:
    """The table of metrics is exactly what a scrape returns."""
    exposed = {f.name + ("_total" if f.type == "counter" else "") for f in _exposed_families(busy)}
    documented = set(re.findall(r"^\| `(\w+)`", families.reference(), flags=re.MULTILINE))
    assert exposed == documented == {family.name for family in families.FAMILIES}


def test_families_keep_the_rules_of_promtool(busy: Exposed) -> None:
    """Help is there, only counters end in _total, units are base units, and no value is NaN."""
    for family in _exposed_families(busy):
        assert family.documentation.endswith("."), family.name
        assert family.samples, family.name
        assert not re.search(r"_(total|ms|milliseconds|us|kb|mb|count|sum|bucket)$", family.name), family.name
        assert all(math.isfinite(sample.value) for sample in family.samples), family.name


def test_labels_are_those_that_are_documented(busy: Exposed) -> None:
    """Each sample has exactly the labels of its family."""
    documented = {family.name: set(family.labels) for family in families.FAMILIES}
    for family in _exposed_families(busy):
        name = family.name + ("_total" if family.type == "counter" else "")
        assert all(sample.labels.keys() - {"le"} == documented[name] for sample in family.samples)


def test_the_exposition_is_valid_openmetrics(busy: Exposed) -> None:
    """A strict parser reads the OpenMetrics form."""
    text = exposition.generate_latest(busy.registry).decode()
    assert list(parser.text_string_to_metric_families(text))


def test_the_process_is_exposed_too(exposed: Exposed) -> None:
    """Memory and CPU of the process come with the same scrape."""
    assert b"process_resident_memory_bytes" in generate_latest(exposed.registry)


def test_the_reuse_of_prefixes_is_a_gauge_once_it_is_known(exposed: Exposed) -> None:
    """Before the first prompt there is no sample, because zero would be a statement."""
    assert exposed.value("prefix_reuse_ratio") == 0.25
    exposed.reuse = None
    assert exposed.value("prefix_reuse_ratio") is None


def test_the_tasks_of_the_process_are_counted(exposed: Exposed) -> None:
    """What runs in the process can be watched for growth."""
    assert exposed.value("tasks") == 9


def test_waiting_rooms_and_bounds_say_how_full_they_are(busy: Exposed) -> None:
    """What has a bound shows how near it is."""
    assert busy.value("queue_requests", pool="chat") == 3
    assert busy.value("queue_bytes", pool="chat") == 5000
    assert busy.value("promises", pool="chat") == 7
    assert busy.value("fill_ratio", structure="leases") == 0.25
    assert busy.value("queue_wait_seconds_sum", pool="chat") == 0.5


def test_reasons_of_strangers_do_not_pile_up(decision: Decision) -> None:
    """A strategy that makes a reason of each session would make a series of each."""
    metrics = Metrics(frozenset)
    for number in range(2 * MOST_REASONS):
        metrics.decided(msgspec.structs.replace(decision, reason=f"session_{number}"), 0.0)
    metrics.catch_up()
    counts = metrics.tallies[families.DECISIONS].counts
    assert len(counts) == MOST_REASONS + 1
    assert counts[decision.strategy, "other"] == MOST_REASONS


def test_few_ends_wait_to_be_counted(decision: Decision, outcome_of: OutcomeOf) -> None:
    """What is counted by the dozen holds no more than some dozens, and none is lost where endpoints go."""
    metrics = Metrics(frozenset)
    for _ in range(1000):
        metrics.decided(decision, 0.0)
        metrics.finished(decision, outcome_of())
    tally = metrics.tallies[families.ATTEMPTS]
    assert tally.counts[()] > 900
    metrics.forget_endpoints(frozenset())
    assert tally.counts[()] == 1000
    assert not metrics.tallies[families.PROMPT_TOKENS].counts
