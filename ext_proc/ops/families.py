"""Every metric family that kvpicker exposes: its name, kind, labels and meaning, in one place."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

DECISION_BUCKETS = (20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 20e-3, 100e-3)
LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Family(msgspec.Struct, frozen=True):
    """One metric family.

    Attributes:
        name: as in the exposition; counters end in `_total`.
        kind: counter, gauge or histogram.
        meaning: the HELP text.
        labels: names of its labels.
        buckets: upper bounds of a histogram, in the unit of the name.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, meaning: str, *labels: str) -> Family:
    return Family(f"kvpicker_{name}_total", "counter", meaning, labels)


def _gauge(name: str, meaning: str, *labels: str) -> Family:
    return Family(f"kvpicker_{name}", "gauge", meaning, labels)


def _histogram(name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Family:
    return Family(f"kvpicker_{name}", "histogram", meaning, labels, buckets)


REQUESTS = _counter(
    "requests", "Requests that were given an endpoint, by how they ended.", "model", "operation", "ending"
)
REFUSALS = _counter("refusals", "Requests that kvpicker answered itself.", "reason")
QUEUED = _counter(
    "queued",
    "Requests that waited for a place, by how that ended: served, refused since no endpoint was left, deadline, "
    "displaced, gone or stopped.",
    "pool",
    "result",
)
QUEUE_WAIT_SECONDS = _histogram("queue_wait_seconds", "How long requests waited for a place.", LATENCY_BUCKETS, "pool")
QUEUE_REQUESTS = _gauge("queue_requests", "Requests that wait for a place.", "pool")
QUEUE_BYTES = _gauge("queue_bytes", "Bytes held by requests that wait for a place.", "pool")
PROMISES = _gauge("promises", "Refused requests that were told when to come back and have not yet.", "pool")
FILL_RATIO = _gauge(
    "fill_ratio", "How full a bounded structure is, from 0 to 1; of several of a kind the fullest.", "structure"
)
PASSED = _counter("passed", "Requests left to Envoy's fallback policy.", "reason")
DECISIONS = _counter("decisions", "Decisions, by strategy and its reason.", "strategy", "reason")
DECISION_SECONDS = _histogram("decision_seconds", "What deciding took.", DECISION_BUCKETS)
DURATION_SECONDS = _histogram(
    "request_duration_seconds",
    "From the first byte of a request to the last byte of its response.",
    LATENCY_BUCKETS,
    "model",
)
FIRST_BYTE_SECONDS = _histogram(
    "first_byte_seconds", "From a request sent to an engine to the first byte of its headers.", LATENCY_BUCKETS, "model"
)
FIRST_TOKEN_SECONDS = _histogram(
    "time_to_first_token_seconds",
    "From a decision to the first token of a streamed answer, where Envoy shows it (--first-token).",
    LATENCY_BUCKETS,
    "model",
)
PROMPT_TOKENS = _counter("prompt_tokens", "Prompt tokens that engines reported.", "endpoint")
COMPLETION_TOKENS = _counter("completion_tokens", "Generated tokens that engines reported.", "endpoint")
CACHED_PREDICTED = _counter(
    "cached_tokens_predicted",
    "Cached prompt tokens that were expected, of requests whose engine reported how many there were, by how they were "
    "predicted: by text in our own history, or by token in what the engine reports.",
    "endpoint",
    "mode",
)
CACHED_ACTUAL = _counter("cached_tokens_actual", "Cached prompt tokens that engines reported.", "endpoint", "mode")
PREDICTIONS_EXACT = _counter(
    "cached_tokens_exact", "Requests whose cached tokens were predicted to the token.", "endpoint", "mode"
)
PREDICTIONS = _counter(
    "cached_tokens_compared", "Requests whose predicted cached tokens could be compared.", "endpoint", "mode"
)
PREDICTION_ERROR = _gauge(
    "prefix_prediction_error_ratio",
    "Cached tokens predicted too many (above 0) or too few (below), as a share of the prompts, lately.",
    "endpoint",
    "mode",
)
TOKEN_LOOKUPS = _counter(
    "token_lookups",
    "Looks for the exact tokens of a request: cached, asked, or why the text had to do (late, busy, no_reports, ...).",
    "pool",
    "result",
)
PREFIX_REUSE = _gauge(
    "prefix_reuse_ratio",
    "Share of recent prompt tokens that earlier prompts began with: what an endless cache could save. Sampled.",
)
ATTEMPTS = _counter("attempts", "Endpoints that Envoy tried.")
FALLBACKS = _counter("fallbacks", "Requests answered by another endpoint than the chosen one.")
UNHASHED = _counter("unhashed", "Requests decided without the prefix index.", "reason")
MODELS_UNSEEN = _counter(
    "models_unseen",
    "Requests decided without the model that they may name: it stands behind what is read of the body, or is encoded.",
)
EXCHANGE_FAILURES = _counter(
    "exchange_failures", "Exchanges ended by a fault of kvpicker or of the data plane.", "reason"
)
STRATEGY_FAILURES = _counter("strategy_failures", "Decisions that another strategy had to make.", "strategy")
HEALTH_CHANGES = _counter("health_changes", "Changes of the state of endpoints, by the state entered.", "state")
EJECTIONS = _counter(
    "ejections",
    "Ejections of endpoints, by what caused them: how a request ended, failure_ratio, probe or silent.",
    "reason",
)
PROBES = _counter(
    "probes", "Active probes, by what they found: good, loading, busy, failed, unsupported, or local.", "result"
)
WAKE_CALLS = _counter(
    "wake_calls", "Calls that were to wake a sleeping engine, by result: ok, refused, timeout, unreachable.", "result"
)
HEALTH_PANIC = _gauge(
    "health_panic", "1 while ill endpoints of a pool are used because there would be too few without them.", "pool"
)
LEASES = _gauge("leases", "Requests believed to be in flight.")
LEASES_EXPIRED = _counter("leases_expired", "Requests whose end was never heard of.")
TASKS = _gauge("tasks", "Coroutines that run in the process; they grow with endpoints and open exchanges only.")
ACCESS_LOG_ENTRIES = _counter("access_log_entries", "Access log entries received from Envoy.", "result")
RELOAD_SUCCESS = _gauge("config_reload_success", "1 if the latest content of every watched file was usable, else 0.")
RELOADS = _counter("config_reloads", "Changes of watched files, by result: applied or rejected.", "result")
LOG_LINES_SUPPRESSED = _counter(
    "log_lines_suppressed", "Log lines held back, since there were too many of their kind.", "event"
)
DEGRADED = _gauge("degraded", "1 while kvpicker decides with less than it should know.", "reason")
BUILD_INFO = _gauge("build_info", "Always 1; the versions are in the labels.", "version", "python")
IN_FLIGHT = _gauge("endpoint_in_flight", "Requests in flight at an endpoint.", "endpoint", "pool")
TOKENS_IN_FLIGHT = _gauge("endpoint_tokens_in_flight", "Tokens in flight at an endpoint.", "endpoint", "pool")
QUEUE_SECONDS = _gauge("endpoint_queue_seconds", "Estimated wait for the work in front.", "endpoint", "pool")
STATE = _gauge("endpoint_state", "1 for the state an endpoint is in.", "endpoint", "pool", "state")
LIFECYCLE = _gauge(
    "endpoint_lifecycle",
    "1 for where an endpoint stands: active, cordoned, draining, drained, unready (so says its source) or asleep.",
    "endpoint",
    "pool",
    "stage",
)
INDEX_BLOCKS = _gauge(
    "endpoint_index_blocks",
    "Blocks the index keeps of an endpoint, some that have expired included.",
    "endpoint",
    "pool",
)
PREFILL_RATE = _gauge(
    "endpoint_prefill_rate", "Prefill tokens per second that were learnt of an endpoint.", "endpoint", "pool"
)
SCRAPES = _counter("scrape_attempts", "Readings of engines' metrics, by result: ok or what was wrong.", "result")
SCRAPE_MISSING = _counter(
    "scrape_missing", "Load signals that an engine usually gives and that were not on its page.", "engine", "signal"
)
SCRAPE_AGE = _gauge("scrape_age_seconds", "Time since an engine's metrics were read.", "endpoint", "pool")
KV_MESSAGES = _counter(
    "kv_event_messages", "Messages with KV events of engines, by result: ok or what was wrong.", "result"
)
KV_SKIPPED = _counter("kv_events_skipped", "KV events that had no effect, by reason.", "reason")
KV_RECOVERIES = _counter(
    "kv_event_recoveries",
    "Missing KV events, by what became of them: replayed, lost or unanswered at the start; restart for a new process.",
    "result",
)
KV_SILENCE = _gauge("kv_events_silent_seconds", "Time since an engine sent KV events.", "endpoint", "pool")
KV_BLOCKS = _gauge("endpoint_resident_blocks", "Blocks that an engine reports to hold.", "endpoint", "pool")

FAMILIES = tuple(value for value in list(globals().values()) if isinstance(value, Family))


def reference() -> str:
    """Render the families as a markdown table."""
    rows = [f"| `{f.name}` | {f.kind} | {', '.join(f.labels)} | {f.meaning} |" for f in FAMILIES]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"
