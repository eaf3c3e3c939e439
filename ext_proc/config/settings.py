"""Every setting with its unit, its default and the reason; the reference table is generated from here."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, field

from ext_proc.config.admin import AdminConfig
from ext_proc.config.dns import DnsConfig
from ext_proc.config.envoy import EnvoyConfig
from ext_proc.config.gateway import GatewayConfig
from ext_proc.config.health import HealthConfig
from ext_proc.config.kubernetes import KubernetesConfig, KubernetesPoolConfig
from ext_proc.config.kv_events import KvEventsConfig, Ranks
from ext_proc.config.overload import CapsConfig, QueueConfig, TenantsConfig
from ext_proc.config.section import Port, Seconds, Section, Text
from ext_proc.config.tls import TlsConfig
from ext_proc.config.tokens import TokensConfig
from ext_proc.core.model import MetricsSource
from ext_proc.core.pool import EndpointSpec

FailureMode: TypeAlias = Literal["open", "refuse"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["json", "console"]
TransportName: TypeAlias = Literal["auto", "queue", "aio"]
EngineName: TypeAlias = Literal["vllm", "sglang", "tensorrt-llm", "triton", "tgi", "llama-cpp", "ollama"]

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
StrategyName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
UrlPath = Annotated[str, Meta(min_length=1, max_length=256)]
LinesPerSecond = Annotated[int, Meta(ge=1, le=1_000_000)]
SomeTokens = Annotated[int, Meta(ge=1, le=10_000_000_000)]


class StrategyConfig(Section, frozen=True, kw_only=True):
    """Which strategy ranks the endpoints of a pool.

    Attributes:
        name: Name of an installed strategy (entry point group `kvpicker.strategies`). The default estimates
            which endpoint produces the first token soonest.
        parameters: The strategy's own parameters, checked by the strategy; empty takes its defaults.
    """

    name: StrategyName = "least-wait"
    parameters: dict[str, Any] = field(default_factory=dict)


class EndpointConfig(Section, frozen=True, kw_only=True):
    """One engine. `10.0.0.11:8000` is short for `{address: "10.0.0.11:8000"}`.

    Attributes:
        address: `ip:port`, IPv6 in brackets; or `name:port`, which becomes an endpoint per address of the name (see
            `dns`); or without the port where `port` is given.
        port: Port, where `address` has none.
        models: Names of the models it serves; empty takes those of the pool.
        kv_tokens: Capacity of its KV cache in tokens, of all its ranks together. Unset learns it from the engine's
            metrics; where those do not say it either, the smallest known capacity of the candidates counts; if none is
            known, waiting for KV memory costs nothing.
        prefill_rate: Its prefill speed in tokens per second, that of one rank where it has several. Unset takes the
            strategy's default.
        ranks: Data-parallel ranks of the engine. Unset takes `kv_events.ranks` of the pool if that is above 1, or else
            learns it from the engine's metrics; where those do not say it, it is 1.
        labels: Free text pairs that explain the endpoint, such as `gpu: h100`.
        engine: What answers there, where it differs from the pool's.
        metrics_path: Path of its page of metrics, where it differs from the pool's.
        metrics_port: Port of its page of metrics, where it differs from the pool's.
        kv_events_port: Port of its first publisher of KV events, where it differs from the pool's.
        kv_replay_port: Port where the events of that publisher can be asked for again, the same.
        caps: What it may hold at most, where that differs from the pool's.
    """

    address: str
    port: Port | None = None
    models: tuple[ModelName, ...] = ()
    kv_tokens: SomeTokens | None = None
    prefill_rate: Annotated[float, Meta(ge=1, le=100_000_000)] | None = None
    ranks: Ranks | None = None
    labels: dict[str, str] = field(default_factory=dict)
    engine: EngineName | None = None
    metrics_path: UrlPath | None = None
    metrics_port: Port | None = None
    kv_events_port: Port | None = None
    kv_replay_port: Port | None = None
    caps: CapsConfig = CapsConfig()


class PoolConfig(Section, frozen=True, kw_only=True):
    """Endpoints that share a strategy.

    Attributes:
        strategy: How endpoints are ranked.
        endpoints: The engines, each an `ip:port` or a mapping.
        endpoints_file: Path of a YAML file with one key, `endpoints`; it is watched, and a change applies
            without restart.
        kubernetes: An InferencePool or a Service of a Kubernetes cluster, whose endpoints are followed.
        models: Models of every endpoint of the pool that declares none; empty learns them from `/v1/models`.
        engine: What answers at the endpoints, whose names the metrics have. Unset detects it by the page. `ollama` has
            no metrics and is not asked for any.
        metrics_path: Path of the engines' page of metrics. Unset takes `/metrics`, and `/prometheus/metrics` for
            `tensorrt-llm` or where the first is none.
        metrics_port: Port of the engines' page of metrics, at their own addresses. Unset takes the endpoint's, and
            8002 for `triton`.
        tokens: How the exact tokens of requests are found. Unset goes by their text.
        kv_events: Where the engines tell what their caches hold. Unset listens to none.
        api_key_env: Name of an environment variable that holds the engines' API key, sent as a bearer token with what
            kvpicker itself asks them: `/v1/models`, `/tokenize`, probes. Requests of clients carry their own.
        caps: What each endpoint may hold at most, as long as ends of requests are heard of, by Envoy's access log or in
            full duplex. None by default.
        queue: How requests wait when all endpoints are at their caps.
    """

    strategy: StrategyConfig = StrategyConfig()
    endpoints: tuple[EndpointConfig | str, ...] = ()
    endpoints_file: Text | None = None
    kubernetes: KubernetesPoolConfig | None = None
    models: tuple[ModelName, ...] = ()
    engine: EngineName | None = None
    metrics_path: UrlPath | None = None
    metrics_port: Port | None = None
    tokens: TokensConfig | None = None
    kv_events: KvEventsConfig | None = None
    api_key_env: Text | None = None
    caps: CapsConfig = CapsConfig()
    queue: QueueConfig = QueueConfig()

    @property
    def specs(self) -> tuple[EndpointSpec, ...]:
        """The endpoints listed in the configuration file itself, each with its models."""
        return tuple(spec(entry, self.models) for entry in self.endpoints)

    def ranked(self, endpoint: EndpointSpec) -> EndpointSpec:
        """Have an endpoint that does not say how many ranks it has take what the pool says."""
        return endpoint if self.kv_events is None else self.kv_events.ranked(endpoint)


class ModelConfig(Section, frozen=True, kw_only=True):
    """What holds for requests for one model, whichever pool serves it.

    Attributes:
        strategy: How endpoints are ranked for this model, in place of the strategy of their pool.
    """

    strategy: StrategyConfig


class PromptsConfig(Section, frozen=True, kw_only=True):
    """How much of a request is read.

    Attributes:
        inspect_bytes: Bytes of a body that are inspected, after decompression; the rest goes on unread. The
            default holds about two million tokens and stops decompression bombs.
        collect_bytes: Bytes of a body in full duplex that are held back until the pick, at most. What is longer is
            placed by its beginning, and goes on as it comes. In other modes Envoy holds bodies back, with limits of
            its own.
        collect_s: Seconds for which they are held back, at most; then what has come must do.
    """

    inspect_bytes: Annotated[int, Meta(ge=1_024, le=1_073_741_824)] = 8 * 1024 * 1024
    collect_bytes: Annotated[int, Meta(ge=1_024, le=1_073_741_824)] = 2 * 1024 * 1024
    collect_s: Seconds = 10.0


class IndexConfig(Section, frozen=True, kw_only=True):
    """The prefix index.

    Attributes:
        max_blocks: Blocks remembered over all endpoints, at most; the endpoint that holds most gives up what it has not
            used for longest. The default takes about 110 MB when full.
        first_block_bytes: Bytes of prompt in one of the first blocks. Below 64 the index would hold many
            blocks per prompt and gain nothing, since engines cache whole blocks of 16 tokens or more.
        last_block_bytes: Bytes of prompt in a block far into a long prompt, where blocks may be coarse; at
            least `first_block_bytes`.
    """

    max_blocks: Annotated[int, Meta(ge=1_000, le=1_000_000_000)] = 1_000_000
    first_block_bytes: Annotated[int, Meta(ge=64, le=65_536)] = 256
    last_block_bytes: Annotated[int, Meta(ge=64, le=65_536)] = 4_096


class LeasesConfig(Section, frozen=True, kw_only=True):
    """How long a request counts as in flight when its end is never heard of.

    Attributes:
        timeout_s: Seconds until a lease ends if no access log entry speaks of its request.
        renewal_timeout_s: The same, once Envoy has been seen to report requests as running: then silence about one
            means that its end was missed. More than four reports, which come every 10 s. An Envoy that reports nothing
            must not share a kvpicker with one that does.
        max_leases: Requests that count as in flight, at most. Of more, those not heard of for longest end, as if their
            time were over. The default takes some hundred megabytes when full.
    """

    timeout_s: Seconds = 900.0
    renewal_timeout_s: Seconds = 45.0
    max_leases: Annotated[int, Meta(ge=100, le=10_000_000)] = 100_000


class ScrapeConfig(Section, frozen=True, kw_only=True):
    """Reading the engines' metrics.

    Attributes:
        enabled: Whether it is done. Without it the sizes of KV caches must be configured.
        interval_s: Seconds between two readings of an engine. Shorter is of little use: what is in flight is known
            without them.
        idle_interval_s: The same for an engine that has had nothing to do for ten seconds, unless `interval_s` is
            longer.
        token_env: Name of an environment variable that holds a bearer token, sent with each reading.
    """

    enabled: bool = True
    interval_s: Seconds = 1.0
    idle_interval_s: Seconds = 5.0
    token_env: Text | None = None

    @property
    def fresh_s(self) -> float:
        """Seconds for which a reading is believed in full: the longest interval, and two more for a late answer."""
        return max(self.idle_interval_s, self.interval_s) + 2 * self.interval_s


class ExplainConfig(Section, frozen=True, kw_only=True):
    """What clients are told of decisions, in response headers.

    Attributes:
        header: Whether responses carry `x-kvpicker-decision`: the decision's id, the engine, predicted cached and all
            prompt tokens, and the reason. Refusals by kvpicker and requests that Envoy places by itself, since
            kvpicker does not know their path, do not carry it.
        networks: Networks, such as `10.0.0.0/8`, whose clients get `x-kvpicker-explanation` on a request with
            `x-kvpicker-explain: 1`: the candidates with every term of their cost, and the filters. It shows addresses
            of engines; the load on each can be inferred from the waits, and from the cached tokens that somebody sent a
            prompt which begins alike. So name networks of operators only. Requests whose path kvpicker does not know
            get none. What counts
            is the client's address as Envoy sees it; behind a proxy of yours that is the proxy's, unless Envoy is told
            to trust it.
    """

    header: bool = False
    networks: tuple[str, ...] = ()


class LogConfig(Section, frozen=True, kw_only=True):
    """What is logged to standard output.

    Attributes:
        level: The least severe level that is written. `info` writes one line per request.
        format: `json` for machines, `console` for people.
        max_per_second: Lines in a second of one kind, at most: of an event, and of one value of the field that it is
            limited by. Further ones are counted, in `suppressed` of the kind's next line. Requests that failed on an
            engine's side, and refusals, are limited so.
        max_requests_per_second: The same for lines of all other requests together. Unset writes them all.
    """

    level: LogLevel = "info"
    format: LogFormat = "json"
    max_per_second: LinesPerSecond = 10
    max_requests_per_second: LinesPerSecond | None = None


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration file.

    Attributes:
        listen: Addresses of the gRPC server that Envoy calls, each `ip:port` or `unix:/path`. Loopback,
            because an ext_proc server sees prompts.
        tls: Encryption of `listen`, except for Unix sockets. Unset encrypts nothing.
        health_listen: Further addresses, like those of `listen`, on which a gRPC server answers health checks alone and
            is not encrypted, for the probes of Kubernetes, which speak no TLS.
        transport: How the gRPC server is driven: `queue` by grpcio's own completion queue, which under load takes a
            third of the CPU of the other; `aio` by grpc.aio; `auto` by the queue where a check at the start finds that
            it works with the installed grpcio.
        admin: The admin server.
        default_pool: Pool for requests without a model and for Envoy's own choice while kvpicker is away.
            With one pool it is that one; with several and none named, such requests are refused rather than
            sent to a wrong model.
        pools: The pools by name.
        models: What differs for single models, by the name that requests use.
        envoy: What kvpicker and Envoy agree on.
        prompts: How much of a request is read.
        index: The prefix index.
        leases: How long a request counts as in flight.
        health: When an endpoint is left alone.
        scrape: Reading the engines' metrics.
        dns: How host names of endpoints become addresses.
        kubernetes: How the API server is reached.
        explain: What clients are told of decisions.
        gateway: What the gateway says of requests in headers.
        tenants: On whose behalf requests are sent, and which go first when they must wait.
        failure_mode: What happens to a request on an internal error of kvpicker: `open` leaves it to Envoy's
            fallback policy, `refuse` answers 503.
        drain_s: Seconds that kvpicker still serves after SIGTERM while it says it is not ready; longer than Envoy's
            health check takes to notice (two checks, one a second).
        passing_s: Seconds that kvpicker then waits for answers that pass through it in full duplex (Istio, Envoy AI
            Gateway), at most: they would be cut with it. With `drain_s` it must fit into the time that a stop may take,
            30 s in Kubernetes.
        log: What is logged.
    """

    listen: tuple[str, ...] = ("127.0.0.1:9002",)
    tls: TlsConfig | None = None
    health_listen: tuple[str, ...] = ()
    transport: TransportName = "auto"
    admin: AdminConfig = AdminConfig()
    default_pool: str | None = None
    pools: dict[Name, PoolConfig]
    models: dict[ModelName, ModelConfig] = field(default_factory=dict)
    envoy: EnvoyConfig = EnvoyConfig()
    prompts: PromptsConfig = PromptsConfig()
    index: IndexConfig = IndexConfig()
    leases: LeasesConfig = LeasesConfig()
    health: HealthConfig = HealthConfig()
    scrape: ScrapeConfig = ScrapeConfig()
    dns: DnsConfig = DnsConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    explain: ExplainConfig = ExplainConfig()
    gateway: GatewayConfig = GatewayConfig()
    tenants: TenantsConfig = TenantsConfig()
    failure_mode: FailureMode = "open"
    drain_s: Annotated[float, Meta(ge=0, le=3_600)] = 3.0
    passing_s: Annotated[float, Meta(ge=0, le=86_400)] = 20.0
    log: LogConfig = LogConfig()


class EndpointsFile(Section, frozen=True, kw_only=True):
    """A file of endpoints that is watched.

    Attributes:
        endpoints: The engines, each an `ip:port` or a mapping; may be empty.
    """

    endpoints: tuple[EndpointConfig | str, ...]


def spec(entry: EndpointConfig | str, models: tuple[str, ...]) -> EndpointSpec:
    """Make the endpoint that an entry describes; `models` are for entries that declare none."""
    if isinstance(entry, str):
        return EndpointSpec(address=entry, models=frozenset(models))
    return EndpointSpec(
        address=entry.address,
        models=frozenset(entry.models or models),
        kv_tokens=entry.kv_tokens,
        prefill_rate=entry.prefill_rate,
        ranks=entry.ranks,
        labels=entry.labels,
        metrics=MetricsSource(
            entry.engine, entry.metrics_path, entry.metrics_port, entry.kv_events_port, entry.kv_replay_port
        ),
        caps=entry.caps.caps,
    )
