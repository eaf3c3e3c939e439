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
    ANSWER_HEADERS,
    ASKER,
    ENGINE_ORDERS,
    EXPLAIN,
    EXPLAIN_PASSED,
    GATEWAY_HEADERS,
    KVPICKER_NAMESPACE,
    LB_NAMESPACE,
    LEGACY_NAMES,
    OVERRIDES,
    RANK,
    READ_HEADERS,
    SUBSET_NAMESPACE,
)

# Three of them are for kvpicker's refusals: the rules hold for the headers of immediate responses as well.
# Envoy refuses a regular expression of more than 100 RE2 instructions, and each version needs other numbers of them.
OWN_HEADERS = rf"x-(gateway|kvpicker|llm-d-request-dropped)-.+|{RANK}|content-type|retry-after"
REWRITTEN_HEADERS = rf"x-(gateway|kvpicker|llm-d)-.+|{RANK}|content-(type|length)|retry-after"
"""The same where another model may be written into a body: the length of the one that came is then taken away."""

ENVOYS_PREFIX = "x-envoy-"
STRIPPED_PREFIXES = ("x-gateway-destination-endpoint", "x-kvpicker-", ENVOYS_PREFIX, RANK)
ORDER_PREFIXES = (OVERRIDES, *(name for name in ENGINE_ORDERS if not name.startswith(OVERRIDES)))

_HEADERS = processor.ProcessingModeHeaderSendMode
_BODY = processor.ProcessingModeBodySendMode


def filters(options: EnvoyOptions) -> list[hcm.HttpFilter]:
    """The chain of ordinary requests."""
    duplex = options.profile == "duplex"
    return [
        _strip(options),
        *name_sessions(options),
        _picker(options, _full_duplex() if duplex else _requests_only(options)),
        # In full duplex kvpicker sees the answers itself.
        *([] if duplex else [_filter("envoy.filters.http.lua", read_usage())]),
        _router(options),
    ]


def upgrade_filters(options: EnvoyOptions) -> list[hcm.HttpFilter]:
    """The chain of upgraded connections: picked by their headers, because their body has no end to wait for."""
    return [_strip(options), *name_sessions(options), _picker(options, _headers_only()), _router(options)]


def _headers_only() -> processor.ProcessingMode:
    return processor.ProcessingMode(request_header_mode=_HEADERS.SEND, response_header_mode=_HEADERS.SKIP)


def _requests_only(options: EnvoyOptions) -> processor.ProcessingMode:
    """Show requests; of answers nothing, or their beginning."""
    mode = _headers_only()
    mode.request_body_mode = _BODY.BUFFERED if options.profile == "buffered" else _BODY.BUFFERED_PARTIAL
    mode.response_body_mode = _BODY.STREAMED if options.first_token else _BODY.NONE
    return mode


def _full_duplex() -> processor.ProcessingMode:
    """Show requests and answers whole, trailers too: Envoy insists on those."""
    return processor.ProcessingMode(
        request_header_mode=_HEADERS.SEND,
        request_body_mode=_BODY.FULL_DUPLEX_STREAMED,
        request_trailer_mode=_HEADERS.SEND,
        response_header_mode=_HEADERS.SEND,
        response_body_mode=_BODY.FULL_DUPLEX_STREAMED,
        response_trailer_mode=_HEADERS.SEND,
    )


def _filter(name: str, message: betterproto2.Message) -> hcm.HttpFilter:
    return hcm.HttpFilter(name=name, typed_config=packed(message))


def _router(options: EnvoyOptions) -> hcm.HttpFilter:
    return _filter(
        "envoy.filters.http.router",
        router.Router(
            # In full duplex kvpicker tells engines' answers from Envoy's own by them; clients do not get them either.
            suppress_envoy_headers=options.profile != "duplex",
            upstream_log=attempts_logs(options),
            # At once: the request that goes on elsewhere may last for minutes.
            upstream_log_options=router.RouterUpstreamAccessLogOptions(flush_upstream_log_on_upstream_stream=True),
        ),
    )


def _strip(options: EnvoyOptions) -> hcm.HttpFilter:
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
    mutations += map(_remove_all, STRIPPED_PREFIXES)
    if not options.engine_orders:
        mutations += map(_remove_all, ORDER_PREFIXES)
    of_answers = [_remove_all(ENVOYS_PREFIX)] if options.profile == "duplex" else []
    return _filter(
        "envoy.filters.http.header_mutation",
        header_mutation.HeaderMutation(
            mutations=header_mutation.Mutations(request_mutations=mutations, response_mutations=of_answers)
        ),
    )


def _remove_all(prefix: str) -> mutation_rules.HeaderMutation:
    return mutation_rules.HeaderMutation(
        remove_on_match=mutation_rules.HeaderMutationRemoveOnMatch(key_matcher=matcher.StringMatcher(prefix=prefix))
    )


def _picker(options: EnvoyOptions, mode: processor.ProcessingMode) -> hcm.HttpFilter:
    return _filter(
        "envoy.filters.http.ext_proc",
        processor.ExternalProcessor(
            grpc_service=_processors(),
            failure_mode_allow=options.failure_mode == "open",
            status_on_error=envoy_type.HttpStatus(code=envoy_type.StatusCode.ServiceUnavailable),
            message_timeout=seconds(options.message_timeout),
            max_message_timeout=seconds(options.max_message_timeout) if options.max_message_timeout else None,
            processing_mode=mode,
            request_attributes=[ASKER],
            allow_mode_override=True,
            forward_rules=processor.HeaderForwardingRules(
                allowed_headers=matcher.ListStringMatcher(
                    patterns=[matcher.StringMatcher(exact=name) for name in _read_headers(options)]
                )
            ),
            # A body that is buffered whole keeps its length anyhow.
            allow_content_length_header=options.profile != "buffered" or options.first_token,
            mutation_rules=mutation_rules.HeaderMutationRules(
                disallow_all=True,
                allow_expression=matcher.RegexMatcher(
                    regex=REWRITTEN_HEADERS if options.gateway_headers else OWN_HEADERS
                ),
            ),
            metadata_options=processor.MetadataOptions(
                receiving_namespaces=_namespaces(LB_NAMESPACE, KVPICKER_NAMESPACE),
                forwarding_namespaces=_namespaces(LB_NAMESPACE, SUBSET_NAMESPACE),
            ),
        ),
    )


def _read_headers(options: EnvoyOptions) -> list[str]:
    """Name what kvpicker is told of headers; those that have two names by both."""
    labels = [name.lower() for name in (options.tenant_header, options.priority_header) if name is not None]
    labels += [LEGACY_NAMES[name] for name in labels if name in LEGACY_NAMES]
    if options.gateway_headers:
        labels += [name for name in GATEWAY_HEADERS if name not in labels]
    of_answers = sorted(ANSWER_HEADERS - {*READ_HEADERS}) if options.profile == "duplex" else []
    return [*READ_HEADERS, *labels, *of_answers]


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
