"""The HTTP filters in front of the engines: strip, pick, read usage, route."""

from __future__ import annotations

import betterproto2
from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation_rules
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as processor
from envoy_data_plane.envoy.extensions.filters.http.header_mutation import v3 as header_mutation
from envoy_data_plane.envoy.extensions.filters.http.router import v3 as router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts import v3 as previous_hosts
from envoy_data_plane.envoy.type import v3 as envoy_type
from envoy_data_plane.envoy.type.matcher import v3 as matcher

from ext_proc.bootstrap.access_log import attempts_logs
from ext_proc.bootstrap.names import PROCESSORS
from ext_proc.bootstrap.options import EnvoyOptions
from ext_proc.bootstrap.sessions import name_sessions
from ext_proc.bootstrap.typed import packed, seconds
from ext_proc.bootstrap.usage import read_usage
from ext_proc.core.names import (
    ASKER,
    EXPLAIN,
    EXPLAIN_PASSED,
    KVPICKER_NAMESPACE,
    LB_NAMESPACE,
    RANK,
    READ_HEADERS,
    SUBSET_NAMESPACE,
)

# The last three are for kvpicker's refusals: the rules hold for the headers of immediate responses as well.
OWN_HEADERS = rf"^(x-(gateway|kvpicker)-.*|{RANK}|content-type|retry-after|x-llm-d-request-dropped-reason)$"
STRIPPED_PREFIXES = ("x-gateway-destination-endpoint", "x-kvpicker-", "x-envoy-", RANK)

_HEADERS = processor.ProcessingModeHeaderSendMode
_BODY = processor.ProcessingModeBodySendMode


def filters(options: EnvoyOptions) -> list[hcm.HttpFilter]:
    """The chain of ordinary requests."""
    return [
        _strip(),
        *name_sessions(options),
        _picker(options, _BODY.BUFFERED_PARTIAL, _BODY.STREAMED if options.first_token else _BODY.NONE),
        _filter("envoy.filters.http.lua", read_usage()),
        _router(options),
    ]


def upgrade_filters(options: EnvoyOptions) -> list[hcm.HttpFilter]:
    """The chain of upgraded connections: picked by their headers, because their body has no end to wait for."""
    return [_strip(), *name_sessions(options), _picker(options, _BODY.NONE, _BODY.NONE), _router(options)]


def _filter(name: str, message: betterproto2.Message) -> hcm.HttpFilter:
    return hcm.HttpFilter(name=name, typed_config=packed(message))


def _router(options: EnvoyOptions) -> hcm.HttpFilter:
    return _filter(
        "envoy.filters.http.router",
        router.Router(
            suppress_envoy_headers=True,
            upstream_log=attempts_logs(options),
            # At once: the request that goes on elsewhere may last for minutes.
            upstream_log_options=router.RouterUpstreamAccessLogOptions(flush_upstream_log_on_upstream_stream=True),
        ),
    )


def _strip() -> hcm.HttpFilter:
    """Remove what only this Envoy and kvpicker may say. In a filter, since route-level removal also hits our own.

    That a client asks for an explanation is passed on under another name.
    """
    explain = core.HeaderValueOption(
        header=core.HeaderValue(key=EXPLAIN_PASSED, value=f"%REQ({EXPLAIN})%"),
        append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )
    mutations = [
        mutation_rules.HeaderMutation(remove=EXPLAIN_PASSED),
        mutation_rules.HeaderMutation(append=explain),
    ]
    mutations += [
        mutation_rules.HeaderMutation(
            remove_on_match=mutation_rules.HeaderMutationRemoveOnMatch(key_matcher=matcher.StringMatcher(prefix=prefix))
        )
        for prefix in STRIPPED_PREFIXES
    ]
    return _filter(
        "envoy.filters.http.header_mutation",
        header_mutation.HeaderMutation(mutations=header_mutation.Mutations(request_mutations=mutations)),
    )


def _picker(
    options: EnvoyOptions,
    request_body: processor.ProcessingModeBodySendMode,
    response_body: processor.ProcessingModeBodySendMode,
) -> hcm.HttpFilter:
    return _filter(
        "envoy.filters.http.ext_proc",
        processor.ExternalProcessor(
            grpc_service=_processors(),
            failure_mode_allow=options.failure_mode == "open",
            status_on_error=envoy_type.HttpStatus(code=envoy_type.StatusCode.ServiceUnavailable),
            message_timeout=seconds(options.message_timeout),
            max_message_timeout=seconds(options.max_message_timeout) if options.max_message_timeout else None,
            processing_mode=processor.ProcessingMode(
                request_header_mode=_HEADERS.SEND,
                request_body_mode=request_body,
                response_header_mode=_HEADERS.SKIP,
                response_body_mode=response_body,
            ),
            request_attributes=[ASKER],
            allow_mode_override=True,
            forward_rules=processor.HeaderForwardingRules(
                allowed_headers=matcher.ListStringMatcher(
                    patterns=[matcher.StringMatcher(exact=name) for name in (*READ_HEADERS, *_labels(options))]
                )
            ),
            allow_content_length_header=True,
            mutation_rules=mutation_rules.HeaderMutationRules(
                disallow_all=True, allow_expression=matcher.RegexMatcher(regex=OWN_HEADERS)
            ),
            metadata_options=processor.MetadataOptions(
                receiving_namespaces=_namespaces(LB_NAMESPACE, KVPICKER_NAMESPACE),
                forwarding_namespaces=_namespaces(LB_NAMESPACE, SUBSET_NAMESPACE),
            ),
        ),
    )


def _labels(options: EnvoyOptions) -> list[str]:
    return [name.lower() for name in (options.tenant_header, options.priority_header) if name is not None]


def _namespaces(*names: str) -> processor.MetadataOptionsMetadataNamespaces:
    return processor.MetadataOptionsMetadataNamespaces(untyped=list(names))


def _processors() -> core.GrpcService:
    return core.GrpcService(
        envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=PROCESSORS),
        retry_policy=core.RetryPolicy(
            retry_on="connect-failure,refused-stream,unavailable,reset-before-request",
            num_retries=2,
            # Without this the retry may meet the same dead process again.
            retry_host_predicate=[
                core.RetryPolicyRetryHostPredicate(
                    name="envoy.retry_host_predicates.previous_hosts",
                    typed_config=packed(previous_hosts.PreviousHostsPredicate()),
                )
            ],
            host_selection_retry_max_attempts=3,
            retry_back_off=core.BackoffStrategy(base_interval=seconds(0.005), max_interval=seconds(0.02)),
        ),
    )
