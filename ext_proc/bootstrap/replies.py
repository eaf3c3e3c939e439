"""The errors that Envoy answers itself, in the shape of the API that the client called."""

from __future__ import annotations

from typing import Any, NamedTuple

from envoy_data_plane.envoy.config.accesslog import v3 as accesslog
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.access_loggers.filters.cel import v3 as cel_filter
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.extensions.formatter.cel import v3 as cel_formatter
from envoy_data_plane.envoy.type.matcher import v3 as matcher
from envoy_data_plane.google.protobuf import Struct

from ext_proc.bootstrap.typed import extension, packed
from ext_proc.core.names import KVPICKER_NAMESPACE, REFUSED_KEY
from ext_proc.core.own_answers import ENGINE_TIMEOUT, ENGINE_UNREACHABLE, NO_ENGINE_READY

ANTHROPIC_PATH = r"^[^?]*/v1/messages(/[^?]*)?(\?.*)?$"
UNAVAILABLE = 503

_PICKER_FAILED = "response.code_details.startsWith('ext_proc_error') || response.code_details == 'spurious_message'"


class _Cause(NamedTuple):
    """Why Envoy answers, as a CEL condition, and what the client is told."""

    condition: str
    message: str
    code: str
    openai_type: str
    anthropic_type: str


_CAUSES = (
    _Cause(
        _PICKER_FAILED,
        "The endpoint picker is not available and this gateway refuses requests without it.",
        "picker_unavailable",
        "server_error",
        "overloaded_error",
    ),
    _Cause(
        "response.code == 413",
        "The request body is too large.",
        "request_too_large",
        "invalid_request_error",
        "request_too_large",
    ),
    _Cause(
        "response.code < 500",
        "The gateway cannot accept this request.",
        "bad_request",
        "invalid_request_error",
        "invalid_request_error",
    ),
    _Cause(
        "response.code_details == 'no_healthy_upstream'",
        NO_ENGINE_READY,
        "no_ready_endpoint",
        "server_error",
        "overloaded_error",
    ),
    _Cause(
        "response.code == 504 || response.code == 408",
        ENGINE_TIMEOUT,
        "engine_timeout",
        "server_error",
        "api_error",
    ),
    _Cause(
        "response.code_details.startsWith('upstream_')",
        ENGINE_UNREACHABLE,
        "engine_unreachable",
        "server_error",
        "api_error",
    ),
)
_OTHERWISE = _Cause("true", "The gateway failed to handle this request.", "gateway_error", "server_error", "api_error")


def local_replies() -> hcm.LocalReplyConfig:
    """Shape all of Envoy's own errors; kvpicker's refusals, marked by metadata, are in shape already."""
    openai: dict[str, Any] = {
        "error": {"message": _cel("message"), "type": _cel("openai_type"), "param": None, "code": _cel("code")}
    }
    anthropic: dict[str, Any] = {
        "type": "error",
        "error": {"type": _cel("anthropic_type"), "message": _cel("message")},
    }
    return hcm.LocalReplyConfig(
        mappers=[
            hcm.ResponseMapper(filter=_is_refusal(), body_format_override=_as_it_is()),
            # A silent picker would be a 504, an absent one a 503; to the client they are the same.
            _picker_unavailable(_all(_picker_failed(), _calls_anthropic()), anthropic),
            _picker_unavailable(_picker_failed(), openai),
            hcm.ResponseMapper(filter=_calls_anthropic(), body_format_override=_json(anthropic)),
        ],
        body_format=_json(openai),
    )


def _cel(field: str) -> str:
    """A format command that chooses the text of a field by cause."""
    choices = "".join(f"{cause.condition} ? '{getattr(cause, field)}' : " for cause in _CAUSES)
    return f"%CEL({choices}'{getattr(_OTHERWISE, field)}')%"


def _json(body: dict[str, Any]) -> core.SubstitutionFormatString:
    return core.SubstitutionFormatString(
        json_format=Struct.from_dict(body),
        content_type="application/json",
        formatters=[extension("envoy.formatter.cel", cel_formatter.Cel())],
    )


def _as_it_is() -> core.SubstitutionFormatString:
    return core.SubstitutionFormatString(
        text_format_source=core.DataSource(inline_string="%LOCAL_REPLY_BODY%"), content_type="application/json"
    )


def _picker_unavailable(when: accesslog.AccessLogFilter, body: dict[str, Any]) -> hcm.ResponseMapper:
    retry_after = core.HeaderValueOption(header=core.HeaderValue(key="retry-after", value="1"))
    return hcm.ResponseMapper(
        filter=when, status_code=UNAVAILABLE, headers_to_add=[retry_after], body_format_override=_json(body)
    )


def _is_refusal() -> accesslog.AccessLogFilter:
    marked = matcher.MetadataMatcher(
        filter=KVPICKER_NAMESPACE,
        path=[matcher.MetadataMatcherPathSegment(key=REFUSED_KEY)],
        value=matcher.ValueMatcher(present_match=True),
    )
    return accesslog.AccessLogFilter(
        metadata_filter=accesslog.MetadataFilter(matcher=marked, match_if_key_not_found=False)
    )


def _calls_anthropic() -> accesslog.AccessLogFilter:
    path = route.HeaderMatcher(
        name=":path", string_match=matcher.StringMatcher(safe_regex=matcher.RegexMatcher(regex=ANTHROPIC_PATH))
    )
    return accesslog.AccessLogFilter(header_filter=accesslog.HeaderFilter(header=path))


def _picker_failed() -> accesslog.AccessLogFilter:
    return accesslog.AccessLogFilter(
        extension_filter=accesslog.ExtensionFilter(
            name="envoy.access_loggers.extension_filters.cel",
            typed_config=packed(cel_filter.ExpressionFilter(expression=_PICKER_FAILED)),
        )
    )


def _all(*filters: accesslog.AccessLogFilter) -> accesslog.AccessLogFilter:
    return accesslog.AccessLogFilter(and_filter=accesslog.AndFilter(filters=list(filters)))
