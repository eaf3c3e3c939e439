"""The listener: connection manager, route, access log."""

from __future__ import annotations

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.listener import v3 as listener
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm

from ext_proc.bootstrap.access_log import requests_logs
from ext_proc.bootstrap.filters import filters, upgrade_filters
from ext_proc.bootstrap.names import ENDPOINTS, LISTENER
from ext_proc.bootstrap.options import MIB, EnvoyOptions
from ext_proc.bootstrap.replies import local_replies
from ext_proc.bootstrap.typed import address, packed, seconds
from ext_proc.bootstrap.versions import LIMIT_OF_BODIES, lacks
from ext_proc.core.names import (
    DECISION_HEADER,
    EXPLAIN_PASSED,
    EXPLANATION_HEADER,
    EXPLANATION_KEY,
    KVPICKER_NAMESPACE,
    SHOWN_KEY,
)

CONNECTION_BUFFER = MIB
RETRY_ON = "connect-failure,refused-stream,reset-before-request"
"""What no engine has begun."""

REPEAT_ON = f"{RETRY_ON},reset"
"""What an engine may have begun as well, where that does no harm; not its errors, which the next would make too."""


def entry(options: EnvoyOptions) -> listener.Listener:
    """The listener that clients connect to."""
    manager = listener.Filter(
        name="envoy.filters.network.http_connection_manager", typed_config=packed(_manager(options))
    )
    return listener.Listener(
        name=LISTENER,
        address=address(options.listen, path="listen"),
        per_connection_buffer_limit_bytes=_connection_buffer(options),
        filter_chains=[listener.FilterChain(filters=[manager])],
    )


def _connection_buffer(options: EnvoyOptions) -> int:
    """Return the bytes that Envoy may hold of a connection; where nothing else bounds bodies, so does this."""
    if lacks(options.envoy_version, LIMIT_OF_BODIES):
        return options.body_limit
    return min(options.body_limit, CONNECTION_BUFFER)


def _manager(options: EnvoyOptions) -> hcm.HttpConnectionManager:
    return hcm.HttpConnectionManager(
        stat_prefix="entry",
        route_config=_routes(options),
        http_filters=filters(options),
        upgrade_configs=[
            hcm.HttpConnectionManagerUpgradeConfig(upgrade_type="websocket", filters=upgrade_filters(options))
        ],
        access_log=requests_logs(options),
        access_log_options=hcm.HttpConnectionManagerHcmAccessLogOptions(
            access_log_flush_interval=seconds(options.log_period)
        ),
        local_reply_config=local_replies(),
        use_remote_address=True,
        generate_request_id=True,
        preserve_external_request_id=True,
        server_header_transformation=hcm.HttpConnectionManagerServerHeaderTransformation.PASS_THROUGH,
        stream_idle_timeout=seconds(options.stream_idle_timeout),
        request_headers_timeout=seconds(10),
        delayed_close_timeout=seconds(0.1),
    )


def _routes(options: EnvoyOptions) -> route.RouteConfiguration:
    """Route all paths to the one cluster, without a time limit, with retries only where nothing is done twice."""
    # Where nothing is tried again these would be as all others.
    repeatable = options.repeatable if options.attempts_after else ()
    routes = [_route(path, route.RouteMatch(path=path), REPEAT_ON, options) for path in repeatable]
    routes.append(_route("engines", route.RouteMatch(prefix="/"), RETRY_ON, options))
    host = route.VirtualHost(name="all", domains=["*"], routes=routes, request_body_buffer_limit=options.body_limit)
    return route.RouteConfiguration(
        name="kvpicker",
        virtual_hosts=[host],
        request_headers_to_remove=[EXPLAIN_PASSED],
        response_headers_to_add=[_told(DECISION_HEADER, SHOWN_KEY), _told(EXPLANATION_HEADER, EXPLANATION_KEY)],
    )


def _route(name: str, match: route.RouteMatch, retry_on: str, options: EnvoyOptions) -> route.Route:
    action = route.RouteAction(
        cluster=ENDPOINTS,
        timeout=seconds(0),
        idle_timeout=seconds(options.stream_idle_timeout),
    )
    if options.attempts_after:
        action.retry_policy = route.RetryPolicy(
            retry_on=retry_on,
            num_retries=options.attempts_after,
            retry_back_off=route.RetryPolicyRetryBackOff(base_interval=seconds(0.01), max_interval=seconds(0.05)),
        )
    return route.Route(name=name, match=match, route=action)


def _told(header: str, key: str) -> core.HeaderValueOption:
    """A response header of what kvpicker has to say; left out where it says nothing."""
    return core.HeaderValueOption(
        header=core.HeaderValue(key=header, value=f"%DYNAMIC_METADATA({KVPICKER_NAMESPACE}:{key})%"),
        append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )
