"""The access log by which kvpicker learns what became of requests, and of each attempt that failed."""

from __future__ import annotations

from envoy_data_plane.envoy.config.accesslog import v3 as accesslog
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.access_loggers.grpc import v3 as grpc_log

from ext_proc.bootstrap.names import ACCESS_LOG
from ext_proc.bootstrap.options import EnvoyOptions
from ext_proc.bootstrap.typed import packed, seconds


def requests_logs(options: EnvoyOptions) -> list[accesslog.AccessLog]:
    """One log of all requests for each kvpicker process: every process must see every entry."""
    return [_access_log(options, number) for number in range(len(options.processors))]


def attempts_logs(options: EnvoyOptions) -> list[accesslog.AccessLog]:
    """The same of attempts that failed, which go over the same streams; the others cost nothing."""
    logs = requests_logs(options)
    for log in logs:
        log.filter = accesslog.AccessLogFilter(response_flag_filter=accesslog.ResponseFlagFilter())
    return logs


def _access_log(options: EnvoyOptions, number: int) -> accesslog.AccessLog:
    common = grpc_log.CommonGrpcAccessLogConfig(
        log_name=options.log_name,
        transport_api_version=core.ApiVersion.V3,
        grpc_service=core.GrpcService(envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=ACCESS_LOG.format(number))),
        buffer_flush_interval=seconds(options.log_flush),
        buffer_size_bytes=options.log_buffer,
    )
    return accesslog.AccessLog(
        name="envoy.access_loggers.http_grpc",
        typed_config=packed(grpc_log.HttpGrpcAccessLogConfig(common_config=common)),
    )
