"""The configuration: one YAML file becomes one frozen object, or one error that says how to mend it."""

from ext_proc.config.admin import AdminConfig
from ext_proc.config.dns import DnsConfig
from ext_proc.config.envoy import EnvoyConfig
from ext_proc.config.health import HealthConfig, ProbesConfig
from ext_proc.config.kubernetes import KubernetesConfig, KubernetesPoolConfig
from ext_proc.config.kv_events import KvEventsConfig
from ext_proc.config.loader import load, located, parse, parse_endpoints
from ext_proc.config.reference import HEADER, reference, rows, schema
from ext_proc.config.settings import (
    Config,
    EndpointConfig,
    FailureMode,
    IndexConfig,
    LeasesConfig,
    LogConfig,
    ModelConfig,
    PoolConfig,
    PromptsConfig,
    ScrapeConfig,
    StrategyConfig,
)
from ext_proc.config.tls import TlsConfig

__all__ = [
    "HEADER",
    "AdminConfig",
    "Config",
    "DnsConfig",
    "EndpointConfig",
    "EnvoyConfig",
    "FailureMode",
    "HealthConfig",
    "IndexConfig",
    "KubernetesConfig",
    "KubernetesPoolConfig",
    "KvEventsConfig",
    "LeasesConfig",
    "LogConfig",
    "ModelConfig",
    "PoolConfig",
    "ProbesConfig",
    "PromptsConfig",
    "ScrapeConfig",
    "StrategyConfig",
    "TlsConfig",
    "load",
    "located",
    "parse",
    "parse_endpoints",
    "reference",
    "rows",
    "schema",
]
