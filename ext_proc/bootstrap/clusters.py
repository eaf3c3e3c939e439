"""The clusters: the engines, the kvpicker processes, and one per process for the access log."""

from __future__ import annotations

from pathlib import PurePath

from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request import v3 as least_request
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host import v3 as override_host
from envoy_data_plane.envoy.extensions.upstreams.http import v3 as http
from envoy_data_plane.envoy.type import v3 as envoy_type
from envoy_data_plane.envoy.type.metadata import v3 as metadata
from envoy_data_plane.google.protobuf import Any as AnyMessage

from ext_proc.bootstrap.encryption import transport_socket
from ext_proc.bootstrap.names import ACCESS_LOG, ENDPOINTS, PROCESSORS
from ext_proc.bootstrap.options import EnvoyOptions
from ext_proc.bootstrap.typed import address, extension, is_numeric, packed, seconds
from ext_proc.core.errors import ConfigError
from ext_proc.core.names import DESTINATION, EXT_PROC_SERVICE, LB_NAMESPACE, SERVED

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
NO_LIMIT = 100_000
RETRIES_LIMIT = 1_000

_STATIC = cluster.ClusterDiscoveryType.STATIC
_NAMES = cluster.ClusterDiscoveryType.STRICT_DNS
"""Each address of a name is a host of its own, which override_host finds by its ip:port."""


def clusters(options: EnvoyOptions) -> list[cluster.Cluster]:
    """All clusters of the lean profile."""
    logs = [_access_log(options, number, text) for number, text in enumerate(options.processors)]
    return [_endpoints(options), _processors(options), *logs]


def _endpoints(options: EnvoyOptions) -> cluster.Cluster:
    """Build the engines' cluster: the endpoint that kvpicker names, else least request among the healthy ones."""
    engines = cluster.Cluster(
        name=ENDPOINTS,
        connect_timeout=seconds(options.connect_timeout),
        load_balancing_policy=_policy("envoy.load_balancing_policies.override_host", _named_else_least_request()),
        circuit_breakers=_circuit_breakers(),
        typed_extension_protocol_options=_http1(options.keep_idle),
        # Entries that EDS marks unhealthy are other pools' engines: they must not serve even when all others fail.
        common_lb_config=_no_panic(),
        ignore_health_on_host_removal=True,
    )
    if options.endpoints:
        engines.type = _discovery(options.endpoints)
        if engines.type == _NAMES:
            _require_names(options.endpoints)
            # As kvpicker itself looks names up: an engine with both kinds of addresses goes by the same one here.
            engines.dns_lookup_family = cluster.ClusterDnsLookupFamily.V4_PREFERRED
        engines.load_assignment = _assignment(ENDPOINTS, options.endpoints, "endpoints")
    else:
        engines.type = cluster.ClusterDiscoveryType.EDS
        engines.eds_cluster_config = _eds(options.endpoints_file)
    return engines


def _require_names(addresses: tuple[str, ...]) -> None:
    for text in addresses:
        if is_numeric(text):
            raise ConfigError(f"{text!r} stands beside a host name; write addresses or names", path="endpoints")


def _eds(path: str) -> cluster.ClusterEdsClusterConfig:
    directory = str(PurePath(path).parent)
    return cluster.ClusterEdsClusterConfig(
        service_name=ENDPOINTS,
        eds_config=core.ConfigSource(
            resource_api_version=core.ApiVersion.V3,
            path_config_source=core.PathConfigSource(
                path=path, watched_directory=core.WatchedDirectory(path=directory)
            ),
        ),
    )


def _named_else_least_request() -> override_host.OverrideHost:
    return override_host.OverrideHost(
        # Metadata only: a header would let clients choose.
        override_host_sources=[override_host.OverrideHostOverrideHostSource(metadata=_metadata_key(DESTINATION))],
        selected_host_key=_metadata_key(SERVED),
        fallback_policy=_policy("envoy.load_balancing_policies.least_request", least_request.LeastRequest()),
    )


def _policy(name: str, message: override_host.OverrideHost | least_request.LeastRequest) -> cluster.LoadBalancingPolicy:
    return cluster.LoadBalancingPolicy(
        policies=[cluster.LoadBalancingPolicyPolicy(typed_extension_config=extension(name, message))]
    )


def _metadata_key(key: str) -> metadata.MetadataKey:
    return metadata.MetadataKey(key=LB_NAMESPACE, path=[metadata.MetadataKeyPathSegment(key=key)])


def _processors(options: EnvoyOptions) -> cluster.Cluster:
    """Build the kvpicker processes' cluster, each watched by gRPC health checks."""
    return cluster.Cluster(
        name=PROCESSORS,
        type=_discovery(options.processors),
        connect_timeout=seconds(0.25),
        load_assignment=_assignment(PROCESSORS, options.processors, "processors"),
        circuit_breakers=_circuit_breakers(),
        typed_extension_protocol_options=_http2(),
        transport_socket=transport_socket(options),
        common_lb_config=_no_panic(),
        health_checks=[
            core.HealthCheck(
                timeout=seconds(0.5),
                interval=seconds(1),
                no_traffic_interval=seconds(1),
                unhealthy_interval=seconds(0.25),
                unhealthy_threshold=2,
                healthy_threshold=1,
                grpc_health_check=core.HealthCheckGrpcHealthCheck(service_name=EXT_PROC_SERVICE),
            )
        ],
    )


def _access_log(options: EnvoyOptions, number: int, text: str) -> cluster.Cluster:
    """Build the cluster of one process alone: every process must see every entry."""
    name = ACCESS_LOG.format(number)
    return cluster.Cluster(
        name=name,
        type=_discovery((text,)),
        connect_timeout=seconds(1),
        load_assignment=_assignment(name, (text,), "processors"),
        circuit_breakers=_circuit_breakers(),
        typed_extension_protocol_options=_http2(),
        transport_socket=transport_socket(options),
    )


def _discovery(addresses: tuple[str, ...]) -> cluster.ClusterDiscoveryType:
    return _STATIC if all(map(is_numeric, addresses)) else _NAMES


def _assignment(name: str, addresses: tuple[str, ...], path: str) -> endpoint.ClusterLoadAssignment:
    entries = [endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=address(text, path=path))) for text in addresses]
    return endpoint.ClusterLoadAssignment(
        cluster_name=name, endpoints=[endpoint.LocalityLbEndpoints(lb_endpoints=entries)]
    )


def _circuit_breakers() -> cluster.CircuitBreakers:
    """Set limits out of reach: the defaults (1024) refuse requests that kvpicker has admitted."""
    return cluster.CircuitBreakers(
        thresholds=[
            cluster.CircuitBreakersThresholds(
                max_connections=NO_LIMIT,
                max_pending_requests=NO_LIMIT,
                max_requests=NO_LIMIT,
                max_retries=RETRIES_LIMIT,
            )
        ]
    )


def _no_panic() -> cluster.ClusterCommonLbConfig:
    return cluster.ClusterCommonLbConfig(healthy_panic_threshold=envoy_type.Percent(value=0.0))


def _http1(idle: float) -> dict[str, AnyMessage]:
    config = http.HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=core.Http1ProtocolOptions())
    common = core.HttpProtocolOptions(idle_timeout=seconds(idle))
    options = http.HttpProtocolOptions(explicit_http_config=config, common_http_protocol_options=common)
    return {HTTP_OPTIONS: packed(options)}


def _http2() -> dict[str, AnyMessage]:
    keepalive = core.KeepaliveSettings(interval=seconds(30), timeout=seconds(5))
    config = http.HttpProtocolOptionsExplicitHttpConfig(
        http2_protocol_options=core.Http2ProtocolOptions(connection_keepalive=keepalive)
    )
    return {HTTP_OPTIONS: packed(http.HttpProtocolOptions(explicit_http_config=config))}
