"""Filters that give a conversation its name before the picker sees the request.

They copy one header or cookie of the client's choice of names into a header of ours, so that no other cookie, and no
credential beside it, ever leaves Envoy.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation_rules
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.header_mutation import v3 as header_mutation
from envoy_data_plane.envoy.extensions.filters.http.header_to_metadata import v3 as header_to_metadata
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm

from ext_proc.bootstrap.options import EnvoyOptions
from ext_proc.bootstrap.typed import packed
from ext_proc.core.names import SESSION

_NAMESPACE = "kvpicker.session"
_KEY = "cookie"


def name_sessions(options: EnvoyOptions) -> list[hcm.HttpFilter]:
    """Return the filters; none if no header and no cookie is named."""
    made: list[hcm.HttpFilter] = []
    values: list[str] = []
    if options.session_header is not None:
        values.append(f"%REQ({options.session_header})%")
    if options.session_cookie is not None:
        made.append(_read_cookie(options.session_cookie))
        values.append(f"%DYNAMIC_METADATA({_NAMESPACE}:{_KEY})%")
    if values:
        made.append(_set_header(values))
    return made


def _read_cookie(name: str) -> hcm.HttpFilter:
    rule = header_to_metadata.ConfigRule(
        cookie=name,
        on_header_present=header_to_metadata.ConfigKeyValuePair(metadata_namespace=_NAMESPACE, key=_KEY),
    )
    config = header_to_metadata.Config(request_rules=[rule])
    return hcm.HttpFilter(name="envoy.filters.http.header_to_metadata", typed_config=packed(config))


def _set_header(values: list[str]) -> hcm.HttpFilter:
    """Set our header to the first of the values that is not empty."""
    mutations = [
        mutation_rules.HeaderMutation(
            append=core.HeaderValueOption(
                header=core.HeaderValue(key=SESSION, value=value),
                append_action=core.HeaderValueOptionHeaderAppendAction.ADD_IF_ABSENT,
            )
        )
        for value in values
    ]
    config = header_mutation.HeaderMutation(mutations=header_mutation.Mutations(request_mutations=mutations))
    return hcm.HttpFilter(name="envoy.filters.http.header_mutation", typed_config=packed(config))
